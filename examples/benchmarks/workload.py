"""A fairseq trainer and a batch of random tokens, so that what is timed is a real training step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options, tasks, utils
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.trainer import Trainer
from torch import Tensor

import fairseq_stochattn  # noqa: F401  (registers archs, criterions and optimizers)

WORDS = 8000  # IWSLT14's vocabularies have 6632 and 8848 entries
TOKENS_A_STEP = 512
HELD_OUT_LENGTH = 64


def write_dictionaries(folder: Path, words: int = WORDS) -> None:
    """Those of all tasks that are timed; there is no data, batches are made here."""
    lines = "".join(f"w{index} 1\n" for index in range(words))
    for name in ("dict.de.txt", "dict.en.txt", "dict.txt", "input0/dict.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(lines)
    (folder / "label").mkdir(exist_ok=True)
    (folder / "label" / "dict.txt").write_text("0 1\n1 1\n")


def make_trainer(data: Path, flags: list[str]) -> Trainer:
    """The trainer that ``fairseq-train DATA flags`` would use."""
    languages = ("-s", "de", "-t", "en") if "translation" in flags else ()
    common = ("--optimizer", "adam", "--lr", "1e-4", "--clip-norm", "1.0", "--batch-size", "8")
    device = () if torch.cuda.is_available() else ("--cpu",)
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(
        parser, input_args=[str(data), *languages, *common, *device, *flags]
    )
    config = convert_namespace_to_omegaconf(args)
    task = tasks.setup_task(config.task)
    utils.set_torch_seed(1)
    if languages:  # where a method looks at held-out sentences
        task.datasets["valid"] = translation_data(task.src_dict, task.tgt_dict, HELD_OUT_LENGTH, 2)
    model = task.build_model(config.model)
    trainer = Trainer(config, task, model, task.build_criterion(config.criterion))
    _ = trainer.optimizer  # built on first use, which must not be timed
    return trainer


def lengths_of(length: int, seed: int, tokens: int | None = None) -> list[int]:
    """Sentence lengths of a batch: 0.7 to 1 of the longest, as batches by length have them."""
    generator = torch.Generator().manual_seed(seed)
    count = max(1, round((tokens or TOKENS_A_STEP) / length))
    shares = 0.7 + 0.3 * torch.rand(count, generator=generator)
    shares[0] = 1.0
    return [max(2, round(length * share)) for share in shares.tolist()]


def sentences(
    dictionary: Dictionary, length: int, seed: int, tokens: int | None = None
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for count in lengths_of(length, seed, tokens):
        words = torch.randint(dictionary.nspecial, len(dictionary), (count,), generator=generator)
        words[-1] = dictionary.eos()
        made.append(words)
    return made


def make_batch(task: Any, length: int, seed: int = 0, tokens: int | None = None) -> dict[str, Any]:
    """One batch as the task's own data would give it, of ``tokens`` in all (translation: fixed)."""
    if hasattr(task, "tgt_dict"):
        return translation_batch(task.src_dict, task.tgt_dict, length, seed)
    made = sentences(task.source_dictionary, length, seed, tokens)
    padded = torch.nn.utils.rnn.pad_sequence(
        made, batch_first=True, padding_value=task.source_dictionary.pad()
    )
    sizes = torch.tensor([len(tokens) for tokens in made])
    sample = {
        "id": torch.arange(len(made)),
        "nsentences": len(made),
        "ntokens": int(sizes.sum()),
        "net_input": {"src_tokens": padded, "src_lengths": sizes},
    }
    if isinstance(task, MaskedLMTask):
        pad = task.source_dictionary.pad()
        chance = torch.rand(padded.shape, generator=torch.Generator().manual_seed(seed))
        masked = chance.lt(task.cfg.mask_prob) & padded.ne(pad)
        sample["net_input"]["src_tokens"] = padded.masked_fill(masked, task.mask_idx)
        return {**sample, "target": padded.masked_fill(~masked, pad)}
    if isinstance(task, LanguageModelingTask):
        return {**sample, "target": padded}
    return {**sample, "target": torch.arange(len(made)).remainder(2).unsqueeze(1)}


def translation_batch(source: Dictionary, target: Dictionary, length: int, seed: int) -> dict:
    data = translation_data(source, target, length, seed)
    return data.collater([data[index] for index in range(len(data))])


def translation_data(
    source: Dictionary, target: Dictionary, length: int, seed: int
) -> LanguagePairDataset:
    of_source, of_target = sentences(source, length, seed), sentences(target, length, seed + 1)
    return LanguagePairDataset(
        of_source, np.array([len(x) for x in of_source]), source,
        of_target, np.array([len(x) for x in of_target]), target,
        shuffle=False,
    )  # fmt: skip


def training_step(
    trainer: Trainer, length: int, updates: int = 1, tokens: int | None = None
) -> Callable[[], None]:
    batch = make_batch(trainer.task, length, tokens=tokens)

    def step() -> None:
        for _ in range(updates):
            trainer.train_step([copy.copy(batch)])

    return step


def generation(trainer: Trainer, length: int, beam: int = 5) -> Callable[[], None]:
    """Beam search of as many steps in every model, however little an untrained one has to say."""
    config = copy.deepcopy(trainer.cfg.generation)
    config.beam, config.min_len, config.max_len_a, config.max_len_b = beam, length, 0, length
    model = trainer.model.eval()
    model.prepare_for_inference_(trainer.cfg)
    generator = trainer.task.build_generator([model], config)
    batch = make_batch(trainer.task, length)
    if trainer.cuda:
        batch = utils.move_to_cuda(batch)

    def translate() -> None:
        trainer.task.inference_step(generator, [model], batch)

    return translate

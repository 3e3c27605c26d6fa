"""fairseq trainers and batches of random tokens: the benchmark times real training steps."""

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

import fairseq_stochattn.models  # noqa: F401  (registers archs, criterions and optimizers)

WORDS = 8000  # the vocabularies of IWSLT14 have 6632 and 8848 entries
TOKENS_PER_STEP = 512
VALID_LENGTH = 64


def write_dictionaries(folder: Path, words: int = WORDS) -> None:
    """Write the dictionaries of all tasks; the batches are made by ``make_batch``."""
    lines = "".join(f"w{index} 1\n" for index in range(words))
    for name in ("dict.de.txt", "dict.en.txt", "dict.txt", "input0/dict.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(lines)
    (folder / "label").mkdir(exist_ok=True)
    (folder / "label" / "dict.txt").write_text("0 1\n1 1\n")


def make_trainer(data: Path, flags: list[str]) -> Trainer:
    """Return the trainer that ``fairseq-train DATA flags`` would use."""
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
    if languages:  # AttendOut takes its reward set from it
        task.datasets["valid"] = translation_data(task.src_dict, task.tgt_dict, VALID_LENGTH, 2)
    model = task.build_model(config.model)
    trainer = Trainer(config, task, model, task.build_criterion(config.criterion))
    _ = trainer.optimizer  # built on first use; that must not be timed
    return trainer


def lengths_of(length: int, seed: int, tokens: int | None = None) -> list[int]:
    """Return the sentence lengths of a batch: 0.7 to 1 times the longest, as in sorted batches."""
    generator = torch.Generator().manual_seed(seed)
    count = max(1, round((tokens or TOKENS_PER_STEP) / length))
    shares = 0.7 + 0.3 * torch.rand(count, generator=generator)
    shares[0] = 1.0
    return [max(2, round(length * share)) for share in shares.tolist()]


def sentences(
    dictionary: Dictionary, length: int, seed: int, tokens: int | None = None
) -> list[Tensor]:
    """Return random sentences of one batch, each with an end-of-sentence token."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for count in lengths_of(length, seed, tokens):
        words = torch.randint(dictionary.nspecial, len(dictionary), (count,), generator=generator)
        words[-1] = dictionary.eos()
        rows.append(words)
    return rows


def make_batch(task: Any, length: int, seed: int = 0, tokens: int | None = None) -> dict[str, Any]:
    """Return a batch in the format of the task, with ``tokens`` tokens (except in translation)."""
    if hasattr(task, "tgt_dict"):
        return translation_batch(task.src_dict, task.tgt_dict, length, seed)
    rows = sentences(task.source_dictionary, length, seed, tokens)
    padded = torch.nn.utils.rnn.pad_sequence(
        rows, batch_first=True, padding_value=task.source_dictionary.pad()
    )
    sizes = torch.tensor([len(row) for row in rows])
    batch = {
        "id": torch.arange(len(rows)),
        "nsentences": len(rows),
        "ntokens": int(sizes.sum()),
        "net_input": {"src_tokens": padded, "src_lengths": sizes},
    }
    if isinstance(task, MaskedLMTask):
        pad = task.source_dictionary.pad()
        chance = torch.rand(padded.shape, generator=torch.Generator().manual_seed(seed))
        masked = chance.lt(task.cfg.mask_prob) & padded.ne(pad)
        batch["net_input"]["src_tokens"] = padded.masked_fill(masked, task.mask_idx)
        return {**batch, "target": padded.masked_fill(~masked, pad)}
    if isinstance(task, LanguageModelingTask):
        return {**batch, "target": padded}
    return {**batch, "target": torch.arange(len(rows)).remainder(2).unsqueeze(1)}


def translation_batch(source: Dictionary, target: Dictionary, length: int, seed: int) -> dict:
    """Return a batch of random sentence pairs."""
    data = translation_data(source, target, length, seed)
    return data.collater([data[index] for index in range(len(data))])


def translation_data(
    source: Dictionary, target: Dictionary, length: int, seed: int
) -> LanguagePairDataset:
    """Return a data set of random sentence pairs, as many as fit into one batch."""
    sources, targets = sentences(source, length, seed), sentences(target, length, seed + 1)
    return LanguagePairDataset(
        sources, np.array([len(x) for x in sources]), source,
        targets, np.array([len(x) for x in targets]), target,
        shuffle=False,
    )  # fmt: skip


def training_step(
    trainer: Trainer, length: int, updates: int = 1, tokens: int | None = None
) -> Callable[[], None]:
    """Return a function that makes ``updates`` training updates on one batch."""
    batch = make_batch(trainer.task, length, tokens=tokens)

    def step() -> None:
        for _ in range(updates):
            trainer.train_step([copy.copy(batch)])

    return step


def generation(trainer: Trainer, length: int, beam: int = 5) -> Callable[[], None]:
    """Return a function that runs a beam search of exactly ``length`` steps, in every model."""
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

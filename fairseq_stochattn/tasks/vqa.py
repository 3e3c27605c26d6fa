"""``--task vqa``: answers questions about images, one of a fixed list of answers each.

The target of a question is a score between 0 and 1 per answer: how many people gave that answer
(see data-prep/prepare_vqa2.py). Images are given as features of regions, from a file that is mapped
into memory. ``--image-noise`` adds Gaussian noise to the features, as in the robustness experiments
of the BABN paper (§5.3) and the alignment paper (§4.3).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary, FairseqDataset, data_utils
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, MISSING
from torch import Tensor, nn

from ..compat import UsageError, exit_on_bad_input
from .token_tagging import data_dictionary
from .vqa_file import Layout, Split, read_layout, read_split

QUESTIONS = "question"  # the folder of the binarised questions
NO_LIMIT = 10**6  # words per question: neither LSTM nor attention has a limit
NO_ANSWER = -1  # the most frequent answer, if no answer of the question is in the list


@dataclass
class VQAConfig(FairseqDataclass):
    """The flags of the task."""

    data: str = field(default=MISSING, metadata={"help": "data directory that data-prep wrote"})
    image_noise: float = field(
        default=0.0,
        metadata={
            "help": "standard deviation of Gaussian noise that is added to the features of all "
            "images; an image always gets the same noise, which follows --seed"
        },
    )
    no_image: bool = field(
        default=False,
        metadata={"help": "set all features to 0: a baseline that only reads the question"},
    )
    no_shuffle: bool = field(
        default=False, metadata={"help": "read the questions in the order of the data"}
    )
    seed: int = II("common.seed")


class VQADataset(FairseqDataset):
    """Questions with the regions of their images and, if there are labels, their soft answers."""

    def __init__(
        self, questions: FairseqDataset, split: Split, layout: Layout, pad: int, cfg: VQAConfig
    ) -> None:
        self.questions, self.split, self.layout = questions, split, layout
        self.pad, self.cfg = pad, cfg
        self.sizes = np.asarray(questions.sizes)  # words per question
        self.epoch = 1

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "id": index,
            "tokens": self.questions[index].long(),
            "regions": self.regions(index),
            "target": None if self.split.answers is None else self.target(index),
        }

    def regions(self, index: int) -> Tensor:
        """The features (R, width) of the question's image, with noise or set to 0 on request."""
        x = self.split.features(index)
        if self.cfg.no_image:
            x[:] = 0
        elif self.cfg.image_noise:
            # One generator per image: the noise does not depend on batches, workers or epochs.
            random = np.random.default_rng([self.cfg.seed, int(self.split.image[index])])
            x += self.cfg.image_noise * random.standard_normal(x.shape, dtype=np.float32)
        return torch.from_numpy(x)

    def target(self, index: int) -> Tensor:
        """The score of every answer, (answers,)."""
        answers, scores = self.split.soft_answers(index)
        target = torch.zeros(len(self.layout.answers))
        target[torch.from_numpy(answers)] = torch.from_numpy(scores)
        return target

    def collater(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        if not samples:
            return {}
        rows = [sample["regions"] for sample in samples]
        questions = data_utils.collate_tokens([sample["tokens"] for sample in samples], self.pad)
        batch = {
            "id": torch.tensor([sample["id"] for sample in samples]),
            "net_input": {
                "src_tokens": questions,
                "regions": nn.utils.rnn.pad_sequence(rows, batch_first=True),
                "num_regions": torch.tensor([len(row) for row in rows]),
            },
            "nsentences": len(samples),
            "ntokens": sum(len(sample["tokens"]) for sample in samples),
        }
        if samples[0]["target"] is not None:
            batch["target"] = torch.stack([sample["target"] for sample in samples])
            first = [self.split.soft_answers(sample["id"])[0][:1] for sample in samples]
            numbers = [int(x[0]) if len(x) else NO_ANSWER for x in first]
            batch["most_frequent"] = torch.tensor(numbers)
        return batch

    def num_tokens(self, index: int) -> int:
        """Words and regions, by which ``--max-tokens`` counts."""
        return int(self.sizes[index]) + self.split.num_regions(index)

    def size(self, index: int) -> int:
        return int(self.sizes[index])

    def ordered_indices(self) -> np.ndarray:
        if self.cfg.no_shuffle:
            return np.arange(len(self))
        return np.random.default_rng([self.cfg.seed, self.epoch]).permutation(len(self))

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        return False  # each epoch has other batches

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@register_task("vqa", dataclass=VQAConfig)
class VQATask(FairseqTask):
    """Visual question answering with soft answers."""

    def __init__(self, cfg: VQAConfig, dictionary: Dictionary, layout: Layout) -> None:
        super().__init__(cfg)
        if not 0 <= cfg.image_noise < float("inf"):
            raise UsageError(f"--image-noise must not be negative, but is {cfg.image_noise}")
        self.dictionary, self.layout = dictionary, layout
        self.answers, self.feature_width = layout.answers, layout.width

    @classmethod
    def setup_task(cls, cfg: VQAConfig, **kwargs: Any) -> "VQATask":
        with exit_on_bad_input():
            layout = read_layout(Path(cfg.data))
        return cls(cfg, data_dictionary(cfg.data, QUESTIONS), layout)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        model = super().build_model(cfg, from_checkpoint)
        if not getattr(model, "reads_images", False):
            raise UsageError("--task vqa needs an mcan arch, such as mcan_babn")
        return model

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> FairseqDataset:
        with exit_on_bad_input():
            found = read_split(Path(self.cfg.data), split, self.layout)
        path = Path(self.cfg.data) / QUESTIONS / split
        questions = data_utils.load_indexed_dataset(str(path), self.dictionary)
        if questions is None or len(questions) != len(found.image):
            count = 0 if questions is None else len(questions)
            raise UsageError(
                f"the {split} set has images for {len(found.image)} questions, but {count} "
                "questions; prepare the data again"
            )
        pad = self.dictionary.pad()
        self.datasets[split] = VQADataset(questions, found, self.layout, pad, self.cfg)
        return self.datasets[split]

    def max_positions(self) -> int:
        return NO_LIMIT

    @property
    def source_dictionary(self) -> Dictionary:
        return self.dictionary

    @property
    def target_dictionary(self) -> None:
        return None

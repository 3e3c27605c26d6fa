"""ELECTRA's pre-training (Clark et al. 2020), with the data and flags of fairseq's masked_lm.

15 % of the tokens are masked for the generator: 85 % of these become <mask>, 15 % stay unchanged.
The discriminator reads the generator's samples at the masked positions. ``criterions/electra.py``
computes the losses.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fairseq.criterions import FairseqCriterion
from fairseq.data import Dictionary
from fairseq.tasks import register_task
from fairseq.tasks.masked_lm import MaskedLMConfig, MaskedLMTask
from torch import nn

from ..compat import UsageError
from ..criterions.electra import ElectraCriterion


@dataclass
class ElectraTaskConfig(MaskedLMConfig):
    """The flags of masked_lm with ELECTRA's defaults."""

    tokens_per_sample: int = field(
        default=512,
        metadata={"help": "number of tokens per training example (ELECTRA-small uses 128)"},
    )
    leave_unmasked_prob: float = field(
        default=0.15,
        metadata={"help": "share of masked tokens that stay unchanged in the generator's input"},
    )
    random_token_prob: float = field(
        default=0.0,
        metadata={"help": "share of masked tokens that become random in the generator's input"},
    )


@register_task("electra", dataclass=ElectraTaskConfig)
class ElectraTask(MaskedLMTask):
    """Pre-trains the generator and the discriminator together."""

    needs_generator: ClassVar[bool] = True  # read by ElectraModel.build_model

    def __init__(self, cfg: ElectraTaskConfig, dictionary: Dictionary | None = None) -> None:
        if not 0 < cfg.mask_prob < 1:
            raise UsageError(f"--mask-prob must be between 0 and 1, not {cfg.mask_prob}")
        shares = cfg.leave_unmasked_prob, cfg.random_token_prob
        if min(shares) < 0 or sum(shares) > 1:
            raise UsageError(
                "--leave-unmasked-prob and --random-token-prob are shares of the masked tokens: "
                "neither may be negative, and they may be together at most 1"
            )
        if cfg.skip_masking or cfg.d2v2_multi:
            raise UsageError("--skip-masking and --d2v2-multi leave nothing for ELECTRA to replace")
        super().__init__(cfg, dictionary)

    @classmethod
    def load_dict(cls, cfg: ElectraTaskConfig) -> Dictionary:
        with _missing_data_in_one_line():
            return super().load_dict(cfg)

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        with _missing_data_in_one_line():
            super().load_dataset(split, epoch, combine, **kwargs)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> nn.Module:
        model = super().build_model(cfg, from_checkpoint)
        if getattr(model, "generator", None) is None:
            raise UsageError("--task electra needs an electra arch, such as electra_small")
        return model

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> FairseqCriterion:
        criterion = super().build_criterion(cfg, from_checkpoint)
        if not isinstance(getattr(criterion, "task_criterion", criterion), ElectraCriterion):
            raise UsageError(
                "--task electra needs --criterion electra, or one that wraps it, such as elbo"
            )
        return criterion


@contextmanager
def _missing_data_in_one_line() -> Iterator[None]:
    """Within the block, a missing file is reported as a one-line error."""
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError(
            f"the data directory has no data of fairseq-preprocess --only-source: {error}"
        ) from None

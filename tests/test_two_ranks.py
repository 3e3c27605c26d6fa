"""Two ranks on the CPU: after every update both have the same state, bit by bit.

CI runs three methods. ``make ranks`` runs every method, criterion and optimizer of the package.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import runner
import sizes
from fairseq_stochattn.core.method import METHODS
from precision import distance
from thorough import THOROUGH

UPDATES = 6
PLUGIN = runner.ROOT / "tests" / "rank_digest"


def transformer(method: str, criterion: str, *more: object) -> tuple:
    arch = ("--arch", f"transformer_{method}", *sizes.TRANSFORMER)
    return ("translation_data", *arch, "--criterion", criterion, *more)


# Two rounds of AttendOut and the start of a third, so that its generator learns.
ROUNDS = ("--attendout-steps", 2, "--attendout-samples", 5, "--attendout-lr", 0.01)
# Name → (data fixture, flags). Every name but those of EXTRA is a method of METHODS.
CASES = {
    "babn": transformer("babn", "elbo", "--kl-anneal-updates", 0),
    "bam": transformer("bam", "elbo", "--kl-anneal-updates", 0),
    "alignment": transformer("alignment", "alignment", "--alignment", "gan"),
    "asa": transformer("asa", "asa"),
    "bernoulli": transformer("bernoulli", "asa"),
    "scheduled": transformer("scheduled", "asa"),
    "magnitude": transformer("magnitude", "asa"),
    "attendout": transformer("attendout", "attendout", *ROUNDS),
    "cell_dropout": transformer("cell_dropout", "attention_losses"),
    "layerdrop": transformer("layerdrop", "attention_losses", "--attention-layerdrop", 0.5),
    "deterministic": transformer("deterministic", "attention_losses"),
}
EXTRA = {
    "alignment ot": transformer("alignment", "alignment", "--alignment", "ot"),
    "alignment ct": transformer("alignment", "alignment", "--alignment", "ct"),
    "freelb": transformer("deterministic", "freelb"),
    "smart": transformer("deterministic", "smart"),
    "smart bregman": transformer(
        *("deterministic", "smart", "--smart-bregman-weight", 1, "--smart-momentum", 0.5)
    ),
    "head_diversity": transformer("deterministic", "head_diversity"),
    **{
        f"repulsive {rule}": transformer(
            *("deterministic", "attention_losses", "--optimizer", "repulsive"),
            *("--repulsive-rule", rule, "--repulsive-beta", 1e4),
        )
        for rule in ("directions", "svgd", "spos", "sgld")
    },
    "fused_adamw": transformer("babn", "elbo", "--optimizer", "fused_adamw"),
    "babn and asa, amp": transformer("babn", "asa", "--attention", "babn,asa", "--amp"),
    "lstm babn": (
        *("translation_data", "--arch", "lstm_babn", *sizes.LSTM),
        *("--criterion", "elbo", "--kl-anneal-updates", 0),
    ),
    "transformer_lm asa": (
        *("lm_data", "--arch", "transformer_lm_asa", *sizes.TRANSFORMER_LM),
        *("--criterion", "asa"),
    ),
    "electra asa": (
        *("lm_data", "--arch", "electra_asa", *sizes.ELECTRA, *sizes.REPLACED_TOKENS),
        *("--criterion", "asa"),
    ),
    "albert babn": (
        *("lm_data", "--arch", "albert_babn", *sizes.ALBERT, *sizes.MASKED_LM),
        *("--criterion", "elbo", "--kl-anneal-updates", 0),
    ),
    "albert repulsive": (
        *("lm_data", "--arch", "albert_alignment", *sizes.ALBERT, *sizes.MASKED_LM),
        *("--criterion", "alignment", "--alignment", "gan", "--optimizer", "repulsive"),
    ),
    "roberta attendout": (
        *("classification_data", "--arch", "roberta_attendout", *sizes.ROBERTA),
        *(*sizes.CLASSIFICATION, "--criterion", "attendout", *ROUNDS),
        # The head for masked tokens is not used in fine-tuning.
        "--find-unused-parameters",
    ),
    "self_attentive": (
        *("classification_data", "--arch", "self_attentive", *sizes.SELF_ATTENTIVE),
        *(*sizes.CLASSIFICATION, "--criterion", "head_diversity", "--optimizer", "repulsive"),
    ),
}
IN_CI = ("babn", "alignment", "attendout")


def test_every_method_has_a_case() -> None:
    ours = {name for name, x in METHODS.items() if x.__module__.startswith("fairseq_stochattn.")}
    assert set(CASES) == ours


@pytest.mark.parametrize("case", [*CASES, *EXTRA] if THOROUGH else IN_CI)
def test_both_ranks_stay_bit_equal(
    case: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """With fairseq's and with torch's backend, whose results are the same to 1e-5."""
    fixture, *flags = {**CASES, **EXTRA}[case]
    flags = (*flags, "--max-update", UPDATES, "--max-tokens", 200)
    data = request.getfixturevalue(fixture)
    for backend in ("legacy_ddp", "pytorch_ddp"):
        save = tmp_path / backend
        ranks = runner.train_on_two_ranks(data, save, *flags, user_dir=PLUGIN, ddp_backend=backend)
        first, second = (states(rank.stdout) for rank in ranks)
        assert [update for update, *_ in first] == list(range(1, UPDATES + 1))
        assert len({model for _, model, *_ in first}) == UPDATES  # every update changes the model
        assert first == second
    assert distance(tmp_path / "legacy_ddp", tmp_path / "pytorch_ddp") < 1e-5


def states(stdout: str) -> list[tuple[int, ...]]:
    """The (update, hash of the model, of the criterion, of the optimizer) that a rank printed."""
    lines = [line.split() for line in stdout.splitlines() if line.startswith("state ")]
    return [(int(update), *digests) for _, update, *digests in lines]

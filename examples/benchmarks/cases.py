"""The methods and backbones of the benchmark, their fairseq flags, and the aims."""

from __future__ import annotations

from dataclasses import dataclass

# Flags of fairseq-train per backbone; {} in the arch is replaced by the name of the method.
BACKBONES: dict[str, tuple[str, ...]] = {
    # 6 + 6 layers of width 512, 4 heads.
    "transformer": (
        *("--task", "translation", "--arch", "transformer{}_iwslt_de_en"),
        *("--share-decoder-input-output-embed", "--label-smoothing", "0.1"),
        *("--criterion", "label_smoothed_cross_entropy"),
    ),
    # 2 + 2 layers of the same width, to measure how the cost grows with the length.
    "shallow": (
        *("--task", "translation", "--arch", "transformer{}_iwslt_de_en"),
        *("--encoder-layers", "2", "--decoder-layers", "2", "--label-smoothing", "0.1"),
        *("--share-decoder-input-output-embed", "--criterion", "label_smoothed_cross_entropy"),
    ),
    "lstm": (
        *("--task", "translation", "--arch", "lstm{}_luong_iwslt_de_en"),
        *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"),
    ),
    # The size of MiniLM: 6 layers of width 384, 12 heads.
    "roberta": (
        *("--task", "sentence_prediction", "--arch", "roberta{}", "--num-classes", "2"),
        *("--encoder-layers", "6", "--encoder-embed-dim", "384"),
        *("--encoder-ffn-embed-dim", "1536", "--encoder-attention-heads", "12"),
        *("--criterion", "sentence_prediction", "--max-positions", "512"),
    ),
    "transformer_lm": (
        *("--task", "language_modeling", "--arch", "transformer_lm{}"),
        *("--decoder-layers", "6", "--decoder-attention-heads", "8"),
        *("--criterion", "cross_entropy", "--share-decoder-input-output-embed"),
    ),
}


@dataclass(frozen=True)
class Method:
    """The flags of a method, in addition to those of the backbone."""

    infix: str = ""  # part of the arch
    flags: tuple[str, ...] = ()
    updates: int = 1  # updates that are timed together, if their costs differ


METHODS: dict[str, Method] = {
    "deterministic": Method("_deterministic"),
    "babn": Method("_babn", ("--criterion", "elbo")),
    "bam": Method("_bam", ("--criterion", "elbo")),
    "gan": Method("_alignment", ("--criterion", "alignment", "--alignment", "gan")),
    "ct": Method("_alignment", ("--criterion", "alignment", "--alignment", "ct")),
    "ot": Method("_alignment", ("--criterion", "alignment", "--alignment", "ot")),
    "repulsive": Method("", ("--optimizer", "repulsive", "--repulsive-base", "adam")),
    "asa": Method("_asa", ("--criterion", "asa")),
    "freelb2": Method("", ("--criterion", "freelb", "--freelb-steps", "2")),
    "freelb3": Method("", ("--criterion", "freelb", "--freelb-steps", "3")),
    "smart": Method("", ("--criterion", "smart")),
    # One round of its training loop is timed as a whole. It has five updates here, 20 by default.
    "attendout": Method(
        "_attendout",
        ("--criterion", "attendout", "--attendout-steps", "5", "--attendout-subset", "valid"),
        updates=5,
    ),
}


@dataclass(frozen=True)
class Aim:
    """A row of the table: the largest ratio to plain fairseq that we aim for, and other ratios."""

    method: str
    backbone: str
    length: int
    train: float | None  # aim for the time of an update; None for a baseline, which has no aim
    paper: str = "–"  # ratio that the paper reports
    released: str = "–"  # ratio measured with the authors' code


AIMS = (
    Aim("deterministic", "transformer", 64, 1.00),
    Aim("babn", "transformer", 30, 1.12, "1.38 (LSTM), 1.58 (ALBERT)", "3.68 (module)"),
    Aim("babn", "transformer", 128, 1.30, "1.38 (LSTM), 1.58 (ALBERT)", "3.68 (module)"),
    Aim("bam", "transformer", 64, 1.08, "1.25, 1.35", "1.04–1.09, no KL gradient"),
    Aim("gan", "transformer", 64, 1.12, "1.24", "1.21"),
    Aim("ct", "transformer", 64, 1.20, "1.44", "1.37"),
    Aim("ot", "transformer", 64, 1.60, "–", "does not run"),
    Aim("repulsive", "transformer", 64, 1.03, "1.13–1.18", "–"),
    Aim("asa", "transformer", 64, 2.05, "about 2", "2.17"),
    Aim("freelb2", "transformer", 64, None),
    Aim("freelb3", "transformer", 64, None),
    Aim("smart", "transformer", 64, None),
    Aim("attendout", "transformer", 64, 2.2, "about 2", "–"),
    Aim("babn", "lstm", 30, 1.25, "1.38", "–"),
)
BASELINES = {aim.method for aim in AIMS if aim.train is None}
# These methods generate with plain fairseq's attention, or in the same way as another method.
PLAIN_AT_TEST = {"repulsive": "plain", "ct": "as `gan`", "ot": "as `gan`"}
PLAIN_AT_TEST |= dict.fromkeys(BASELINES, "plain")
GENERATION_AIMS = {"babn": 1.10}
GENERATION_AIM = 1.02  # of all other methods
MEMORY_AIMS = {"babn": 1.35, "attendout": 2.3}
LENGTHS = (30, 64, 128, 256, 512)


def flags_of(backbone: str, method: str | None = None) -> list[str]:
    """Return the flags of fairseq-train for a method on a backbone; None is plain fairseq.

    fairseq uses the last value of a repeated flag, so a method's criterion replaces the plain one.
    """
    chosen = METHODS[method] if method else Method()
    return [flag.format(chosen.infix) for flag in BACKBONES[backbone]] + list(chosen.flags)


def arch_of(backbone: str, method: str | None = None) -> str:
    """Return the arch of a method on a backbone."""
    flags = flags_of(backbone, method)
    return flags[flags.index("--arch") + 1]

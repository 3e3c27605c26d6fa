"""Training, generation, export and resuming with fairseq's own commands, on every backbone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

import runner
import sizes
import zoo
from fairseq_stochattn.commands import export
from fairseq_stochattn.models.backbone import BACKBONES

NO_DROPOUT = ("--dropout", 0)


def bleu(output: runner.Output) -> str:
    """Return the line with BLEU, without its details."""
    return re.search(r"Generate .* BLEU4 = [^\n]+", output.text).group(0).split(" (")[0]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return torch.load(checkpoint, weights_only=True)["model"]


def same_weights(first: Path, second: Path) -> bool:
    """Return whether two checkpoints have the same parameters, bit for bit."""
    one, other = weights(first), weights(second)
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def plain_run(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a plain fairseq Transformer without the plugin; return the folder of checkpoints."""
    folder = tmp_path_factory.mktemp("plain")
    model = ("--arch", "transformer", *sizes.TRANSFORMER, *NO_DROPOUT)
    runner.train(translation_data, folder, *model, "--max-epoch", 12, user_dir=None)
    return folder


OURS = ("--arch", "transformer_deterministic", *sizes.TRANSFORMER, *NO_DROPOUT)

# Name → fixture of the data, flags; the first word of the name is the backbone.
MODELS = {
    "transformer": ("translation_data", sizes.TRANSFORMER),
    "lstm": ("translation_data", sizes.LSTM),
    "transformer_lm": ("lm_data", sizes.TRANSFORMER_LM),
    "roberta": ("lm_data", (*sizes.ROBERTA, *sizes.MASKED_LM)),
    "electra": ("lm_data", (*sizes.ELECTRA, *sizes.REPLACED_TOKENS)),
    "albert": ("lm_data", (*sizes.ALBERT, *sizes.MASKED_LM)),
    "electra classification": ("classification_data", (*sizes.ELECTRA, *sizes.CLASSIFICATION)),
    "roberta classification": ("classification_data", (*sizes.ROBERTA, *sizes.CLASSIFICATION)),
}


@pytest.mark.parametrize("name", MODELS)
def test_training_equals_plain_fairseq(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """With the same seed and data, the losses of ten updates equal those of plain fairseq."""
    fixture, flags = MODELS[name]
    data, backbone = request.getfixturevalue(fixture), name.split()[0]
    dropout = NO_DROPOUT if backbone == "lstm" else (*NO_DROPOUT, "--attention-dropout", 0)
    losses = []
    for arch in (backbone, f"{backbone}_deterministic"):
        common = ("--arch", arch, *flags, *dropout, "--max-update", 10, "--no-save")
        output = runner.train(data, tmp_path, *common)
        losses.append([float(row["loss"]) for row in output.stats["train_inner"]])
    assert len(losses[0]) == 10
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], abs=2e-3)  # the log has three decimals


def test_plain_checkpoint_translates_the_same_in_our_arch(
    translation_data: Path, plain_run: Path, tmp_path: Path
) -> None:
    checkpoint = plain_run / "checkpoint_best.pt"
    state = torch.load(checkpoint, weights_only=True)
    args = state["cfg"]["model"]
    args._name = args.arch = "transformer_deterministic"
    torch.save(state, tmp_path / "ours.pt")
    plain = runner.generate(translation_data, checkpoint, "--beam", 5)
    ours = runner.generate(translation_data, tmp_path / "ours.pt", "--beam", 5)
    assert bleu(plain) == bleu(ours)
    hypotheses = [re.findall(r"^H-.*$", output.text, re.M) for output in (plain, ours)]
    texts = [[line.split("\t")[::2] for line in lines] for lines in hypotheses]
    scores = [[float(line.split("\t")[1]) for line in lines] for lines in hypotheses]
    assert len(texts[0]) == 40
    assert texts[0] == texts[1]
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


@pytest.mark.parametrize("flag", ["--finetune-from-model", "--restore-file"])
def test_plain_checkpoint_loads_into_our_arch_and_exports_back(
    flag: str, translation_data: Path, plain_run: Path, tmp_path: Path
) -> None:
    """After one update with learning rate 0 and an export, all weights are equal bit for bit."""
    checkpoint = plain_run / "checkpoint_last.pt"
    reset = () if flag == "--finetune-from-model" else ("--reset-optimizer", "--reset-dataloader")
    until = 1 if flag == "--finetune-from-model" else 200
    runner.train(
        translation_data,
        tmp_path / "ours",
        *(*OURS, flag, checkpoint, *reset),
        *("--lr", 0, "--max-epoch", 1, "--max-update", until),
    )
    ours = tmp_path / "ours" / "checkpoint_last.pt"
    assert same_weights(ours, checkpoint)
    exported = tmp_path / "plain.pt"
    export.main([str(ours), str(exported)])
    assert same_weights(exported, checkpoint)
    output = runner.generate(translation_data, exported, "--beam", 5)
    assert bleu(output) == bleu(runner.generate(translation_data, checkpoint, "--beam", 5))


def test_exported_checkpoint_continues_in_plain_fairseq(
    translation_data: Path, tmp_path: Path
) -> None:
    """After an export in the middle of a run, plain fairseq continues as our arch does."""
    runner.train(translation_data, tmp_path / "ours", *OURS, "--max-epoch", 2)
    middle = tmp_path / "ours" / "checkpoint_last.pt"
    plain = tmp_path / "plain" / "checkpoint_last.pt"
    plain.parent.mkdir()
    export.main([str(middle), str(plain)])
    more = ("--max-epoch", 3)
    ours = runner.train(translation_data, middle.parent, *OURS, *more)
    arch = ("--arch", "transformer", *sizes.TRANSFORMER, *NO_DROPOUT)
    theirs = runner.train(translation_data, plain.parent, *arch, *more, user_dir=None)
    assert theirs.losses() == pytest.approx(ours.losses(), abs=2e-3)
    assert len(ours.losses()) > 3


@pytest.mark.parametrize("name", MODELS)
def test_every_backbone_exports(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The exported file is a model of the backbone's plain class, with the same outputs."""
    fixture, flags = MODELS[name]
    data, backbone = request.getfixturevalue(fixture), name.split()[0]
    common = ("--arch", f"{backbone}_deterministic", *flags, "--max-update", 2)
    runner.train(data, tmp_path, *common)
    ours, plain = tmp_path / "checkpoint_last.pt", tmp_path / "plain.pt"
    export.main([str(ours), str(plain)])
    assert same_weights(ours, plain)
    models = [checkpoint_utils.load_model_ensemble([str(path)])[0][0] for path in (ours, plain)]
    assert type(models[1]) is BACKBONES[backbone].model
    models = [model.eval() for model in models]
    tokens = zoo.sentences(6, 4)
    if "classification" in name:
        head = {"classification_head_name": "sentence_classification_head"}
        outputs = [model(zoo.pad(tokens) % 20 + 4, **head)[0] for model in models]
    else:
        rows = [row % 20 + 4 for row in tokens]
        outputs = [zoo.run(model, backbone, rows, rows) for model in models]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("arch", ["transformer_deterministic", "transformer_toy", "lstm_toy"])
@pytest.mark.parametrize("batches", [(), ("--update-epoch-batch-itr", True)], ids=["once", "each"])
def test_resuming_continues_exactly(
    batches: tuple, arch: str, translation_data: Path, tmp_path: Path
) -> None:
    """With dropout and sampling, stopping after 2 of 4 epochs changes no bit of the result.

    This holds if fairseq composes its batches once per process, and once in each epoch.
    """
    size = sizes.LSTM if arch.startswith("lstm") else sizes.TRANSFORMER
    model = ("--arch", arch, *size, "--dropout", 0.2, "--criterion", "attention_losses", *batches)
    whole = runner.train(translation_data, tmp_path / "whole", *model, "--max-epoch", 4)
    runner.train(translation_data, tmp_path / "parts", *model, "--max-epoch", 2)
    rest = runner.train(translation_data, tmp_path / "parts", *model, "--max-epoch", 4)
    assert rest.losses() == whole.losses()[-len(rest.losses()) :]
    assert 0 < len(rest.losses()) < len(whole.losses())
    names = ("whole/checkpoint_last.pt", "parts/checkpoint_last.pt")
    assert same_weights(*(tmp_path / name for name in names))


def test_resuming_within_an_epoch_continues_exactly(translation_data: Path, tmp_path: Path) -> None:
    model = ("--arch", "transformer_toy", *sizes.TRANSFORMER, "--dropout", 0.2)
    whole = runner.train(translation_data, tmp_path / "whole", *model, "--max-update", 5)
    runner.train(translation_data, tmp_path / "parts", *model, "--max-update", 2)
    rest = runner.train(translation_data, tmp_path / "parts", *model, "--max-update", 5)
    assert rest.losses() == whole.losses()[2:]
    assert same_weights(*(tmp_path / name / "checkpoint_last.pt" for name in ("whole", "parts")))


def test_two_checkpoints_translate_as_an_ensemble(translation_data: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        flags = (*OURS, "--max-epoch", 6, "--seed", seed)
        runner.train(translation_data, folder, *flags)
    paths = ":".join(str(tmp_path / str(seed) / "checkpoint_best.pt") for seed in (1, 2))
    output = runner.generate(translation_data, paths, "--beam", 5)
    alone = runner.generate(translation_data, paths.split(":")[0], "--beam", 5)
    assert len(re.findall(r"^H-", output.text, re.M)) == 40
    assert re.findall(r"^H-.*", output.text, re.M) != re.findall(r"^H-.*", alone.text, re.M)


def test_validation_loss_equals_that_of_plain_fairseq(
    translation_data: Path, plain_run: Path, tmp_path: Path
) -> None:
    """fairseq-validate gives the same loss for our arch, also with other sites by override."""
    runner.train(
        translation_data,
        tmp_path,
        *(*OURS, "--finetune-from-model", plain_run / "checkpoint_best.pt"),
        *("--lr", 0, "--max-update", 1),
    )
    ours = tmp_path / "checkpoint_last.pt"
    plain = runner.validate(translation_data, plain_run / "checkpoint_best.pt")
    all_sites = runner.validate(translation_data, ours)
    one_site = runner.validate(
        translation_data, ours, "--model-overrides", "{'attention_sites': 'cross'}"
    )
    outputs = (plain, all_sites, one_site)
    losses = [float(output.stats["valid"][-1]["valid_loss"]) for output in outputs]
    assert losses[1:] == pytest.approx([losses[0]] * 2, abs=1e-3)


@pytest.mark.parametrize("count", [5, 37])
def test_every_sentence_is_translated(
    count: int, text: Path, translation_data: Path, plain_run: Path, tmp_path: Path
) -> None:
    """Also if the number of sentences is not a multiple of eight."""
    for side in ("src", "tgt"):
        lines = (text / f"test.{side}").read_text().splitlines(keepends=True)[:count]
        (tmp_path / f"few.{side}").write_text("".join(lines))
    dictionary = ("--srcdict", translation_data / "dict.src.txt", "--joined-dictionary")
    few = ("-s", "src", "-t", "tgt", "--testpref", tmp_path / "few")
    runner.preprocess(*few, *dictionary, out=tmp_path / "data")
    output = runner.generate(tmp_path / "data", plain_run / "checkpoint_best.pt")
    numbers = sorted(int(number) for number in re.findall(r"^H-(\d+)", output.text, re.M))
    assert numbers == list(range(count))


def test_eval_lm_gives_the_same_loss_after_export(lm_data: Path, tmp_path: Path) -> None:
    model = ("--arch", "transformer_lm_deterministic", *sizes.TRANSFORMER_LM, "--max-epoch", 2)
    runner.train(lm_data, tmp_path, *model)
    exported = tmp_path / "plain.pt"
    export.main([str(tmp_path / "checkpoint_last.pt"), str(exported)])
    losses = [
        re.search(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)", output.text).groups()
        for output in (
            runner.eval_lm(lm_data, tmp_path / "checkpoint_last.pt"),
            runner.eval_lm(lm_data, exported),
        )
    ]
    assert losses[0] == losses[1]
    assert torch.load(exported, weights_only=True)["cfg"]["model"]["_name"] == "transformer_lm"


def test_interactive_translates_as_plain_fairseq(
    translation_data: Path, text: Path, plain_run: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few.src"
    few.write_text("".join((text / "test.src").read_text().splitlines(keepends=True)[:6]))
    start = ("--finetune-from-model", plain_run / "checkpoint_best.pt", "--lr", 0)
    runner.train(translation_data, tmp_path, *OURS, *start, "--max-update", 1)
    ours, plain = (
        re.findall(r"^[DH]-.*$", runner.interactive(translation_data, path, few).text, re.M)
        for path in (tmp_path / "checkpoint_last.pt", plain_run / "checkpoint_best.pt")
    )
    assert len(ours) == 12
    assert [line.split("\t")[2] for line in ours] == [line.split("\t")[2] for line in plain]


def test_pretrained_checkpoint_is_fine_tuned_with_another_method(
    lm_data: Path, classification_data: Path, tmp_path: Path
) -> None:
    pretrain = ("--arch", "roberta_toy", *sizes.ROBERTA, *sizes.MASKED_LM, "--max-positions", 32)
    runner.train(lm_data, tmp_path / "pre", *pretrain, "--max-epoch", 1)
    finetune = ("--arch", "roberta_deterministic", *sizes.ROBERTA, *sizes.CLASSIFICATION)
    output = runner.train(
        classification_data,
        tmp_path / "fine",
        *(*finetune, "--max-epoch", 12),
        *("--finetune-from-model", tmp_path / "pre" / "checkpoint_last.pt"),
    )
    assert float(output.stats["valid"][-1]["valid_accuracy"]) > 60

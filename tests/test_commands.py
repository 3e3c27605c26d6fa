"""The life of a model through fairseq's own commands, on every backbone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

import commands
import sizes
import zoo
from fairseq_stochattn import cli
from fairseq_stochattn.models.backbone import BACKBONES

SILENT = ("--dropout", 0)


def bleu(output: commands.Output) -> str:
    return re.search(r"Generate .* BLEU4 = [^\n]+", output.text).group(0).split(" (")[0]


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    return torch.load(checkpoint, weights_only=True)["model"]


def same(first: Path, second: Path) -> bool:
    one, other = weights(first), weights(second)
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def plain_run(translation_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of a plain fairseq Transformer, trained without the plugin's archs."""
    folder = tmp_path_factory.mktemp("plain")
    model = ("--arch", "transformer", *sizes.TRANSFORMER, *SILENT)
    commands.train(translation_data, folder, *model, "--max-epoch", 12, user_dir=None)
    return folder


OURS = ("--arch", "transformer_deterministic", *sizes.TRANSFORMER, *SILENT)

LIVES = {
    "transformer": ("translation_data", sizes.TRANSFORMER),
    "lstm": ("translation_data", sizes.LSTM),
    "transformer_lm": ("lm_data", sizes.TRANSFORMER_LM),
    "roberta": ("lm_data", (*sizes.ROBERTA, *sizes.MASKED_LM)),
    "electra": ("lm_data", (*sizes.ELECTRA, *sizes.REPLACED_TOKENS)),
    "electra classification": ("classification_data", (*sizes.ELECTRA, *sizes.CLASSIFICATION)),
    "roberta classification": ("classification_data", (*sizes.ROBERTA, *sizes.CLASSIFICATION)),
}


@pytest.mark.parametrize("life", LIVES)
def test_training_equals_plain_fairseq(
    life: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Same seed, same data: the losses of ten updates are those of plain fairseq."""
    fixture, flags = LIVES[life]
    data, backbone = request.getfixturevalue(fixture), life.split()[0]
    dropout = SILENT if backbone == "lstm" else (*SILENT, "--attention-dropout", 0)
    found = []
    for arch in (backbone, f"{backbone}_deterministic"):
        common = ("--arch", arch, *flags, *dropout, "--max-update", 10, "--no-save")
        output = commands.train(data, tmp_path, *common)
        found.append([float(row["loss"]) for row in output.stats["train_inner"]])
    assert len(found[0]) == 10
    assert found[0][-1] < found[0][0]
    assert found[1] == pytest.approx(found[0], abs=2e-3)  # the log has three decimals


def test_same_bleu_and_hypotheses_on_the_same_checkpoint(
    translation_data: Path, plain_run: Path, tmp_path: Path
) -> None:
    checkpoint = plain_run / "checkpoint_best.pt"
    state = torch.load(checkpoint, weights_only=True)
    args = state["cfg"]["model"]
    args._name = args.arch = "transformer_deterministic"
    torch.save(state, tmp_path / "ours.pt")
    plain = commands.generate(translation_data, checkpoint, "--beam", 5)
    ours = commands.generate(translation_data, tmp_path / "ours.pt", "--beam", 5)
    assert bleu(plain) == bleu(ours)
    hypotheses = [re.findall(r"^H-.*$", output.text, re.M) for output in (plain, ours)]
    texts = [[line.split("\t")[::2] for line in lines] for lines in hypotheses]
    scores = [[float(line.split("\t")[1]) for line in lines] for lines in hypotheses]
    assert len(texts[0]) == 40
    assert texts[0] == texts[1]
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


@pytest.mark.parametrize("flag", ["--finetune-from-model", "--restore-file"])
def test_plain_checkpoint_into_our_arch_and_back(
    flag: str, translation_data: Path, plain_run: Path, tmp_path: Path
) -> None:
    """Loaded with lr 0 for one update, then exported: the weights never change a bit."""
    checkpoint = plain_run / "checkpoint_last.pt"
    reset = () if flag == "--finetune-from-model" else ("--reset-optimizer", "--reset-dataloader")
    until = 1 if flag == "--finetune-from-model" else 200
    commands.train(
        translation_data,
        tmp_path / "ours",
        *(*OURS, flag, checkpoint, *reset),
        *("--lr", 0, "--max-epoch", 1, "--max-update", until),
    )
    ours = tmp_path / "ours" / "checkpoint_last.pt"
    assert same(ours, checkpoint)
    exported = tmp_path / "plain.pt"
    cli.export_main([str(ours), str(exported)])
    assert same(exported, checkpoint)
    output = commands.generate(translation_data, exported, "--beam", 5)
    assert bleu(output) == bleu(commands.generate(translation_data, checkpoint, "--beam", 5))


def test_exported_checkpoint_continues_in_plain_fairseq(
    translation_data: Path, tmp_path: Path
) -> None:
    """Export in the middle of a run; plain fairseq goes on from there as our arch would."""
    commands.train(translation_data, tmp_path / "ours", *OURS, "--max-epoch", 2)
    middle = tmp_path / "ours" / "checkpoint_last.pt"
    plain = tmp_path / "plain" / "checkpoint_last.pt"
    plain.parent.mkdir()
    cli.export_main([str(middle), str(plain)])
    more = ("--max-epoch", 3)
    ours = commands.train(translation_data, middle.parent, *OURS, *more)
    arch = ("--arch", "transformer", *sizes.TRANSFORMER, *SILENT)
    theirs = commands.train(translation_data, plain.parent, *arch, *more, user_dir=None)
    assert theirs.losses() == pytest.approx(ours.losses(), abs=2e-3)
    assert len(ours.losses()) > 3


@pytest.mark.parametrize("life", LIVES)
def test_every_backbone_exports(life: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The exported file is a model of fairseq's own class, with the same outputs."""
    fixture, flags = LIVES[life]
    data, backbone = request.getfixturevalue(fixture), life.split()[0]
    common = ("--arch", f"{backbone}_deterministic", *flags, "--max-update", 2)
    commands.train(data, tmp_path, *common)
    ours, plain = tmp_path / "checkpoint_last.pt", tmp_path / "plain.pt"
    cli.export_main([str(ours), str(plain)])
    assert same(ours, plain)
    models = [checkpoint_utils.load_model_ensemble([str(path)])[0][0] for path in (ours, plain)]
    assert type(models[1]) is BACKBONES[backbone].model
    models = [model.eval() for model in models]
    tokens = zoo.sentences(6, 4)
    if "classification" in life:
        extra = {"classification_head_name": "sentence_classification_head"}
        found = [model(zoo.pad(tokens) % 20 + 4, **extra)[0] for model in models]
    else:
        rows = [row % 20 + 4 for row in tokens]
        found = [zoo.run(model, backbone, rows, rows) for model in models]
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("arch", ["transformer_deterministic", "transformer_toy", "lstm_toy"])
def test_resuming_continues_exactly(arch: str, translation_data: Path, tmp_path: Path) -> None:
    """With dropout and sampling on: stop after 2 of 4 epochs, resume, compare bit for bit."""
    size = sizes.LSTM if arch.startswith("lstm") else sizes.TRANSFORMER
    # fairseq composes batches once a process; made anew each epoch they do not depend on the start.
    model = ("--arch", arch, *size, "--dropout", 0.2, "--update-epoch-batch-itr", True)
    model = (*model, "--criterion", "attention_losses")
    whole = commands.train(translation_data, tmp_path / "whole", *model, "--max-epoch", 4)
    commands.train(translation_data, tmp_path / "parts", *model, "--max-epoch", 2)
    rest = commands.train(translation_data, tmp_path / "parts", *model, "--max-epoch", 4)
    assert rest.losses() == whole.losses()[-len(rest.losses()) :]
    assert 0 < len(rest.losses()) < len(whole.losses())
    names = ("whole/checkpoint_last.pt", "parts/checkpoint_last.pt")
    assert same(*(tmp_path / name for name in names))


def test_resuming_within_an_epoch_continues_exactly(translation_data: Path, tmp_path: Path) -> None:
    model = ("--arch", "transformer_toy", *sizes.TRANSFORMER, "--dropout", 0.2)
    whole = commands.train(translation_data, tmp_path / "whole", *model, "--max-update", 5)
    commands.train(translation_data, tmp_path / "parts", *model, "--max-update", 2)
    rest = commands.train(translation_data, tmp_path / "parts", *model, "--max-update", 5)
    assert rest.losses() == whole.losses()[2:]
    assert same(*(tmp_path / name / "checkpoint_last.pt" for name in ("whole", "parts")))


def test_ensemble_of_two_checkpoints(translation_data: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        flags = (*OURS, "--max-epoch", 6, "--seed", seed)
        commands.train(translation_data, folder, *flags)
    paths = ":".join(str(tmp_path / str(seed) / "checkpoint_best.pt") for seed in (1, 2))
    output = commands.generate(translation_data, paths, "--beam", 5)
    alone = commands.generate(translation_data, paths.split(":")[0], "--beam", 5)
    assert len(re.findall(r"^H-", output.text, re.M)) == 40
    assert re.findall(r"^H-.*", output.text, re.M) != re.findall(r"^H-.*", alone.text, re.M)


def test_validate(translation_data: Path, plain_run: Path, tmp_path: Path) -> None:
    """fairseq-validate on the same weights as plain and as our arch; sites by model override."""
    commands.train(
        translation_data,
        tmp_path,
        *(*OURS, "--finetune-from-model", plain_run / "checkpoint_best.pt"),
        *("--lr", 0, "--max-update", 1),
    )
    ours = tmp_path / "checkpoint_last.pt"
    plain = commands.validate(translation_data, plain_run / "checkpoint_best.pt")
    whole = commands.validate(translation_data, ours)
    part = commands.validate(
        translation_data, ours, "--model-overrides", "{'attention_sites': 'cross'}"
    )
    found = [float(output.stats["valid"][-1]["valid_loss"]) for output in (plain, whole, part)]
    assert found[1:] == pytest.approx([found[0]] * 2, abs=1e-3)


@pytest.mark.parametrize("count", [5, 37])
def test_every_sentence_is_translated(
    count: int, text: Path, translation_data: Path, plain_run: Path, tmp_path: Path
) -> None:
    """Also where the last batch does not fill a multiple of eight sentences."""
    for side in ("src", "tgt"):
        lines = (text / f"test.{side}").read_text().splitlines(keepends=True)[:count]
        (tmp_path / f"few.{side}").write_text("".join(lines))
    dictionary = ("--srcdict", translation_data / "dict.src.txt", "--joined-dictionary")
    few = ("-s", "src", "-t", "tgt", "--testpref", tmp_path / "few")
    commands.preprocess(*few, *dictionary, out=tmp_path / "data")
    output = commands.generate(tmp_path / "data", plain_run / "checkpoint_best.pt")
    found = sorted(int(number) for number in re.findall(r"^H-(\d+)", output.text, re.M))
    assert found == list(range(count))


def test_eval_lm(lm_data: Path, tmp_path: Path) -> None:
    model = ("--arch", "transformer_lm_deterministic", *sizes.TRANSFORMER_LM, "--max-epoch", 2)
    commands.train(lm_data, tmp_path, *model)
    exported = tmp_path / "plain.pt"
    cli.export_main([str(tmp_path / "checkpoint_last.pt"), str(exported)])
    found = [
        re.search(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)", output.text).groups()
        for output in (
            commands.eval_lm(lm_data, tmp_path / "checkpoint_last.pt"),
            commands.eval_lm(lm_data, exported),
        )
    ]
    assert found[0] == found[1]
    assert torch.load(exported, weights_only=True)["cfg"]["model"]["_name"] == "transformer_lm"


def test_interactive(translation_data: Path, text: Path, plain_run: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.src"
    few.write_text("".join((text / "test.src").read_text().splitlines(keepends=True)[:6]))
    start = ("--finetune-from-model", plain_run / "checkpoint_best.pt", "--lr", 0)
    commands.train(translation_data, tmp_path, *OURS, *start, "--max-update", 1)
    ours, plain = (
        re.findall(r"^[DH]-.*$", commands.interactive(translation_data, path, few).text, re.M)
        for path in (tmp_path / "checkpoint_last.pt", plain_run / "checkpoint_best.pt")
    )
    assert len(ours) == 12
    assert [line.split("\t")[2] for line in ours] == [line.split("\t")[2] for line in plain]


def test_masked_lm_checkpoint_into_classification(
    lm_data: Path, classification_data: Path, tmp_path: Path
) -> None:
    """Pre-train with one method, fine-tune with another."""
    pretrain = ("--arch", "roberta_toy", *sizes.ROBERTA, *sizes.MASKED_LM, "--max-positions", 32)
    commands.train(lm_data, tmp_path / "pre", *pretrain, "--max-epoch", 1)
    finetune = ("--arch", "roberta_deterministic", *sizes.ROBERTA, *sizes.CLASSIFICATION)
    output = commands.train(
        classification_data,
        tmp_path / "fine",
        *(*finetune, "--max-epoch", 12),
        *("--finetune-from-model", tmp_path / "pre" / "checkpoint_last.pt"),
    )
    assert float(output.stats["valid"][-1]["valid_accuracy"]) > 60

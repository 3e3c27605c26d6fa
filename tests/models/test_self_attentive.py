"""The self-attentive classifier (Lin et al. 2017): formulas, padding, pairs and commands."""

from __future__ import annotations

import copy
import os
import random
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor

import labelled
import prepare_glue
import runner
import sizes
import zoo
from fairseq_stochattn.analysis.heads import head_distances, masked_head
from fairseq_stochattn.commands import heads as heads_command
from fairseq_stochattn.commands import methods
from fairseq_stochattn.core.additive_attention import AdditiveAttention
from fairseq_stochattn.core.heads import by_head, find_heads
from fairseq_stochattn.methods.head_diversity import mean_distance
from fairseq_stochattn.models.config import complete
from fairseq_stochattn.models.self_attentive import SelfAttentiveConfig
from launch import HYDRA
from precision import PRECISIONS

SENTENCES = zoo.sentences(9, 1, 4, 7)
EMPTY = torch.full((5,), zoo.PAD)
DATA = Path(os.environ.get("STOCHATTN_DATA", runner.ROOT.parent / "shared" / "data"))
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def attention() -> tuple[AdditiveAttention, Tensor, Tensor]:
    """A module with three heads, states (3, 5, 6) and the padding mask of lengths 5, 3, 1."""
    torch.manual_seed(0)
    module = AdditiveAttention(6, 4, 3).double()
    h = torch.randn(3, 5, 6, dtype=torch.double)
    return module, h, torch.arange(5) >= torch.tensor([[5], [3], [1]])


def test_attention_equals_the_formula_of_the_paper() -> None:
    """The reference loops over heads and words: a = softmax(vᵀ tanh(W hᵀ)) and z = a H."""
    module, h, padding = attention()
    z, a = module(h, padding)
    w, v = module.w.weight, module.v.weight
    for b, n in enumerate((5, 3, 1)):
        for i in range(3):
            scores = [torch.dot(v[i], torch.tanh(w @ h[b, t])).exp() for t in range(n)]
            expected = torch.zeros(6, dtype=torch.double)
            for t in range(n):
                weight = scores[t] / sum(scores)
                torch.testing.assert_close(a[b, i, t], weight)
                expected = expected + weight * h[b, t]
            torch.testing.assert_close(z[b, i], expected)
            assert not a[b, i, n:].any()


def test_attention_gradients() -> None:
    module, h, padding = attention()
    h.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: module(x, padding), h)
    h.grad = None
    module(h, padding)[0].sum().backward()
    assert not h.grad[padding].any()
    assert all(p.grad.any() for p in module.parameters())


def test_output_equals_the_formulas_without_padding_or_packing() -> None:
    """The reference computes the whole model in double precision, sentence by sentence."""
    model = zoo.classifier().double().eval()
    found = zoo.classify(model, SENTENCES, width=20)
    encoder, mlp = model.encoder, model.classification_heads["sentence_classification_head"]
    for row, sentence in enumerate(SENTENCES):
        h = encoder.lstm(encoder.embed_tokens(sentence).unsqueeze(0))[0][0]  # (n, 2h)
        scores = encoder.attention.w(h).tanh() @ encoder.attention.v.weight.t()  # (n, M)
        z = scores.softmax(dim=0).t() @ h  # (M, 2h)
        expected = mlp.out_proj(mlp.dense(z.flatten()).relu())
        torch.testing.assert_close(found[row], expected)


@pytest.mark.parametrize("pairs", [False, True])
def test_output_does_not_depend_on_batch_or_padding_side(pairs: bool) -> None:
    model = zoo.classifier(sentence_pairs=pairs).eval()
    rows = [torch.cat([a, b]) for a, b in zip(SENTENCES, zoo.sentences(3, 8, 1, 5), strict=True)]
    rows = rows if pairs else SENTENCES
    together = zoo.classify(model, rows)
    for other in (
        torch.cat([zoo.classify(model, [row]) for row in rows]),
        zoo.classify(model, rows[::-1]).flip(0),
        zoo.classify(model, rows, width=30),
        zoo.classify(model, rows, width=30, left=True),
    ):
        torch.testing.assert_close(other, together, **CLOSE)
    assert not torch.allclose(together[0], together[1])


def test_padding_has_weight_zero() -> None:
    model = zoo.classifier().eval()
    _, extra = model(zoo.pad([*SENTENCES, EMPTY], width=15))
    a = extra["attention"]  # (B, M, n)
    for row, sentence in enumerate(SENTENCES):
        assert (a[row, :, : len(sentence)] > 0).all()
        assert not a[row, :, len(sentence) :].any()
        torch.testing.assert_close(a[row].sum(dim=-1), torch.ones(3))
    assert not a[-1].any()
    assert not extra["head_features"][-1].any()


@pytest.mark.parametrize("half", [False, True])
def test_empty_and_one_word_sentences_stay_finite(half: bool) -> None:
    model = zoo.classifier().train()
    model = model.half() if half else model
    with torch.no_grad():
        model.encoder.attention.v.weight.mul_(1e4)
    for rows in ([*SENTENCES, EMPTY], [EMPTY], [SENTENCES[1]]):
        model.zero_grad()
        out = zoo.classify(model, rows).float()
        out.square().mean().backward()
        assert out.isfinite().all()
        assert all(p.grad.isfinite().all() for p in model.parameters())


def test_half_precision_is_close_to_fp32() -> None:
    model = zoo.classifier().eval()
    expected = zoo.classify(model, SENTENCES)
    found = zoo.classify(copy.deepcopy(model).half(), SENTENCES)
    assert found.dtype == torch.half
    torch.testing.assert_close(found.float(), expected, rtol=0.01, atol=0.01)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = zoo.classify(model, SENTENCES)
        mixed.float().sum().backward()
    torch.testing.assert_close(mixed.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("separator", [None, zoo.EOS, 7])
def test_pairs_are_the_factored_interaction_of_two_sentences(separator: int | None) -> None:
    """Head i gives (z_i W_i) ⊙ (z'_i W'_i), where z, z' encode the two sentences separately."""
    model = zoo.classifier(separator=separator, sentence_pairs=True).double().eval()
    alone = zoo.classifier().double().eval()
    alone.load_state_dict(model.state_dict(), strict=False)
    second = zoo.sentences(3, 8, 1, 5, seed=1)
    between = torch.tensor([] if separator is None else [separator], dtype=torch.long)
    rows = [torch.cat([a, between, b]) for a, b in zip(SENTENCES, second, strict=True)]
    found, extra = model(zoo.pad(rows))
    z = [alone(zoo.pad(sentences))[0] for sentences in (SENTENCES, second)]
    torch.testing.assert_close(extra["head_features"], torch.cat(z))
    left, right = model.interaction.factors
    for b in range(len(rows)):
        for i in range(3):
            torch.testing.assert_close(
                found[b, i], (z[0][b, i] @ left[i]) * (z[1][b, i] @ right[i])
            )


@pytest.mark.parametrize("pairs", [False, True])
def test_masking_a_head_equals_zeroing_its_columns_of_the_mlp(pairs: bool) -> None:
    """Also, Dist is the mean distance between the heads' features, without empty sentences."""
    model = zoo.classifier(sentence_pairs=pairs).eval()
    rows = [torch.cat([row, row]) for row in SENTENCES] if pairs else SENTENCES
    z = model(zoo.pad(rows))[1]["head_features"]
    assert z.shape == ((2 if pairs else 1) * len(rows), 3, 8)
    (group,) = find_heads(model)
    (dist,) = head_distances([group], lambda: zoo.classify(model, [*rows, EMPTY]))
    assert dist == pytest.approx(mean_distance(z).mean().item())
    dense = model.classification_heads["sentence_classification_head"].dense
    for i in range(3):
        with masked_head(group, i):
            expected = zoo.classify(model, rows)
        columns = dense.weight.data[:, 8 * i : 8 * (i + 1)]
        kept = columns.clone()
        columns.zero_()
        torch.testing.assert_close(zoo.classify(model, rows), expected)
        columns.copy_(kept)
        assert not torch.allclose(zoo.classify(model, rows), expected, rtol=0, atol=1e-5)


def test_particles_are_the_scoring_vectors_of_heads() -> None:
    model = zoo.classifier()
    (group,) = find_heads(model)
    assert (group.name, group.site, group.layer) == ("encoder.attention", "encoder", 0)
    assert group.num_heads == 3
    ((parameter,),) = group.parameters.values()
    particles = by_head(parameter, group.num_heads)
    assert particles.shape == (3, 5)
    # Exchanging the particles of two heads exchanges their features.
    before = model(zoo.pad(SENTENCES))[0]
    with torch.no_grad():
        particles[[0, 2]] = particles[[2, 0]]
    torch.testing.assert_close(model(zoo.pad(SENTENCES))[0], before[:, [2, 1, 0]])


SIZES = {
    "self_attentive": (300, 300, 30, 350, 2000, 0.5, False),
    "self_attentive_age": (300, 300, 30, 350, 2000, 0.5, False),
    "self_attentive_yelp": (300, 300, 30, 350, 3000, 0.5, False),
    "self_attentive_snli": (300, 300, 30, 150, 4000, 0.0, True),
}


@pytest.mark.parametrize("arch", SIZES)
def test_presets_have_the_sizes_of_the_paper(arch: str) -> None:
    config = complete(Namespace(), SelfAttentiveConfig, ARCH_CONFIG_REGISTRY[arch], typed=True)
    names = ("encoder_embed_dim", "encoder_hidden_size", "encoder_attention_heads")
    names = (*names, "attention_hidden_size", "mlp_hidden_size", "dropout", "sentence_pairs")
    assert tuple(getattr(config, name) for name in names) == SIZES[arch]


CLASSIFIER = (*sizes.CLASSIFICATION, "--arch", "self_attentive", *sizes.SELF_ATTENTIVE)


def validate(data: Path, checkpoint: Path, *flags: object) -> dict:
    return runner.validate(data, checkpoint, *sizes.CLASSIFICATION, *flags).stats["valid"][-1]


def test_train_resume_validate_and_measure_by_commands(
    classification_data: Path, tmp_path: Path
) -> None:
    """The model learns, a resumed run is identical, and other sizes are refused."""
    flags = (*CLASSIFIER, "--lr", 0.02, "--dropout", 0.1)
    whole = runner.train(classification_data, tmp_path / "whole", *flags, "--max-epoch", 8)
    assert whole.losses()[-1] < 0.5 * whole.losses()[0]
    last = whole.stats["valid"][-1]
    assert float(last["valid_accuracy"]) > 70
    runner.train(classification_data, tmp_path / "parts", *flags, "--max-epoch", 7)
    rest = runner.train(classification_data, tmp_path / "parts", *flags, "--max-epoch", 8)
    assert rest.losses() == whole.losses()[-len(rest.losses()) :]
    checkpoint = tmp_path / "parts" / "checkpoint_last.pt"
    found = validate(classification_data, checkpoint)
    assert float(found["valid_loss"]) == pytest.approx(float(last["valid_loss"]), abs=2e-3)
    measured = tmp_path / "heads.json"
    given = (checkpoint, classification_data, "--cpu", "--json", measured)
    assert heads_command.main([str(argument) for argument in given]) == 0
    assert '"encoder.attention"' in measured.read_text()
    narrow = (*flags, "--mlp-hidden-size", 8, "--finetune-from-model", checkpoint)
    with pytest.raises(SystemExit, match="the checkpoint does not fit this model: size mismatch"):
        runner.train(classification_data, tmp_path / "narrow", *narrow)


def test_reduced_precision(classification_data: Path, tmp_path: Path) -> None:
    """The losses of the first updates equal those of fp32 within 0.03."""
    flags = (*CLASSIFIER, "--max-update", 4, "--no-save")
    full = runner.train(classification_data, tmp_path, *flags).losses()
    for precision in PRECISIONS.values():
        more = (*precision, "--fp16-init-scale", 4)
        reduced = runner.train(classification_data, tmp_path, *flags, *more).losses()
        assert len(reduced) == 4
        assert reduced == pytest.approx(full, abs=0.03)


MODEL = """
  _name: self_attentive_yelp
  encoder_embed_dim: 16
  encoder_hidden_size: 12
  attention_hidden_size: 10
"""


def test_hydra_train(classification_data: Path, tmp_path: Path) -> None:
    """fairseq-hydra-train accepts a preset's name and a criterion with flags."""
    config = HYDRA.format(
        user_dir=runner.USER_DIR,
        task="sentence_prediction\n  num_classes: 5",
        data=classification_data,
        save=tmp_path / "run",
        model=MODEL,
    )
    # The task reads two flags of the criterion. They are given here because hydra does not have
    # their defaults before it imports the plugin.
    criterion = ("repulsive", "diversity: frobenius", "regression_target: false")
    criterion = (*criterion, "classification_head_name: sentence_classification_head")
    config = config.replace("_name: attention_losses", "_name: " + "\n  ".join(criterion))
    (tmp_path / "tiny.yaml").write_text(config)
    result = runner.run(
        "fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "tiny", cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr[-2000:]
    checkpoint = str(tmp_path / "run" / "checkpoint_last.pt")
    model = checkpoint_utils.load_model_ensemble([checkpoint])[0][0]
    dense = model.classification_heads["sentence_classification_head"].dense
    assert dense.weight.shape == (3000, 30 * 2 * 12)
    assert '"frobenius_weight": "1"' in result.stdout + result.stderr


def pair_corpus(folder: Path, task: str) -> Path:
    """Write sentence pairs in RTE's or STS-B's format.

    The label is positive if both sentences contain the same letter.
    """
    rng = random.Random(1)
    files = {}
    for split, count in (("train", 240), ("dev", 40)):
        header = "index\tsentence1\tsentence2\tlabel\n"
        if task == "STS-B":
            header = "index\tgenre\tfilename\tyear\told\ts1\ts2\tsentence1\tsentence2\tscore\n"
        rows = []
        for n in range(count):
            first, second = rng.choice("ab"), rng.choice("ab")
            texts = [" ".join([w, *["x"] * rng.randint(0, 2)]) for w in (first, second)]
            label = ["not_entailment", "entailment"][first == second]
            if task == "STS-B":
                texts, label = ["g", "f", "y", "o", "u", "v", *texts], "05"[first == second]
            rows.append("\t".join([str(n), *texts, label]) + "\n")
        files[f"{task}/{split}.tsv"] = header + "".join(rows)
    return labelled.write(folder / "text", files)


@pytest.mark.parametrize("task", ["RTE", "STS-B"])
def test_pairs_learn_a_relation_between_both_sentences(task: str, tmp_path: Path) -> None:
    """RTE is classification with a separator token, STS-B is regression without one."""
    data = tmp_path / "data"
    origin = pair_corpus(tmp_path, task)
    assert labelled.run(prepare_glue, origin, data, "--task", task, "--subwords", "none") == 0
    target = ("--num-classes", 2, "--separator-token", 2)
    if task == "STS-B":
        target = ("--num-classes", 1, "--regression-target")
    flags = (*CLASSIFIER, *target, "--sentence-pairs", "--lr", 0.02, "--max-epoch", 12)
    flags = (*flags, "--log-interval", 100, "--no-save")
    valid = runner.train(data, tmp_path / "run", *flags).stats["valid"]
    assert float(valid[-1]["valid_loss"]) < 0.2 * float(valid[0]["valid_loss"])


def test_sst2(tmp_path: Path) -> None:
    """Trained on 3,000 sentences of SST-2, the model beats the majority class."""
    origin = DATA / "glue" / "SST-2"
    if not origin.is_dir():
        pytest.skip(f"no SST-2 at {origin}")
    part = {
        f"SST-2/{split}.tsv": "".join((origin / f"{split}.tsv").open().readlines()[: count + 1])
        for split, count in (("train", 3000), ("dev", 300))
    }
    folder, data = labelled.write(tmp_path / "text", part), tmp_path / "data"
    assert labelled.run(prepare_glue, folder, data, "--task", "SST-2", "--subwords", "none") == 0
    flags = (*CLASSIFIER, "--num-classes", 2, "--max-positions", 512, "--max-tokens", 2000)
    more = ("--log-interval", 20, "--encoder-embed-dim", 32, "--max-epoch", 1, "--no-save")
    output = runner.train(data, tmp_path / "run", *flags, *more)
    accuracy = float(output.stats["valid"][-1]["valid_accuracy"])
    print(f"SST-2, 3,000 sentences: {accuracy} % of 300")
    assert accuracy > 60


@pytest.mark.parametrize(
    ("flags", "cause"),
    [
        (("--sentence-pairs",), "--sentence-pairs: an example has no second sentence"),
        (("--encoder-attention-heads", 0), "--encoder-attention-heads must be positive"),
        (("--mlp-hidden-size", -1), "--mlp-hidden-size must be positive"),
    ],
)
def test_bad_flags_are_refused(
    flags: tuple, cause: str, classification_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=cause):
        runner.train(classification_data, tmp_path, *CLASSIFIER, *flags, "--max-update", 1)
    assert not list(tmp_path.iterdir())


def test_every_trainable_parameter_gets_a_gradient() -> None:
    """DistributedDataParallel would wait for a missing gradient."""
    model = zoo.classifier(encoder_freeze_embed=True, sentence_pairs=True).train()
    zoo.classify(model, [torch.cat([row, row]) for row in SENTENCES]).sum().backward()
    without = {name for name, p in model.named_parameters() if p.grad is None}
    assert without == {"encoder.embed_tokens.weight"}


def test_stochattn_methods_lists_its_archs_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    methods.main(["--archs"])
    listing = capsys.readouterr().out
    for line in ("--arch self_attentive_snli\n", "--sentence-pairs: ", "--diversity-weight: "):
        assert f"\n  {line}" in listing
    assert "--max-positions" not in listing  # it is a flag of the task

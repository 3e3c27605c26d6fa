"""ELECTRA: losses and gradients, replaced tokens, shared parameters and checkpoints."""

from __future__ import annotations

import copy
import math
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor, nn

import zoo
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.heads import find_heads
from fairseq_stochattn.core.losses import take_losses
from fairseq_stochattn.criterions.electra import ElectraCriterion
from fairseq_stochattn.models.electra_networks import generator_args
from fairseq_stochattn.models.electra_sampling import probabilities
from fairseq_stochattn.pretrained.export_fairseq import is_plugin_parameter

MASK = zoo.VOCABULARY - 1
MASK_PROB = 0.3
TASK = zoo.task(needs_generator=True, cfg=SimpleNamespace(mask_prob=MASK_PROB, seed=7))
SOURCES = zoo.sentences(12, 9, 7, 4)


def pretraining_model(arch: str = "electra", **overrides: object) -> nn.Module:
    return zoo.build(arch, for_task=TASK, **overrides)


def criterion(mlm: float = 1.0, rtd: float = 50.0) -> ElectraCriterion:
    return ElectraCriterion(SimpleNamespace(mlm_weight=mlm, rtd_weight=rtd), TASK)


def make_batch(
    rows: list[Tensor] = SOURCES, width: int = 0, ids: tuple[int, ...] | None = None
) -> dict:
    """A batch in which every third token is masked; one in four masked tokens stays unchanged."""
    original = zoo.pad(rows, width=width)
    columns = torch.arange(original.size(1))
    masked = (columns % 3 == 1) & original.ne(zoo.PAD)
    hidden = masked & (columns % 12 != 1)
    return {
        "id": torch.arange(len(rows)) if ids is None else torch.tensor(ids),
        "net_input": {"src_tokens": original.masked_fill(hidden, MASK)},
        "target": original.masked_fill(~masked, zoo.PAD),
        "ntokens": sum(map(len, rows)),
        "nsentences": len(rows),
    }


def masked_of(batch: dict) -> Tensor:
    return batch["target"].ne(zoo.PAD)


def shared_and_own(model: nn.Module) -> tuple[dict, dict, dict]:
    """The shared parameters, then those of only the discriminator, then of only the generator."""
    parts = [
        dict(x.named_parameters(remove_duplicate=False)) for x in (model.encoder, model.generator)
    ]
    ids = [{id(p) for p in part.values()} for part in parts]
    shared = {name: p for name, p in parts[0].items() if id(p) in ids[1]}
    own = [
        {n: p for n, p in x.items() if id(p) not in y}
        for x, y in zip(parts, ids[::-1], strict=True)
    ]
    return shared, *own


@pytest.mark.parametrize("learner", ["discriminator", "generator"])
def test_each_network_gets_gradients_from_its_own_loss(learner: str) -> None:
    """The only parameters with gradients from both losses are the shared embeddings."""
    model = pretraining_model().train()
    weights = {"mlm": 0.0} if learner == "discriminator" else {"rtd": 0.0}
    loss, _, _ = criterion(**weights)(model, make_batch())
    loss.backward()
    shared, discriminator, generator = shared_and_own(model)
    assert len(shared) == 5  # tokens, positions, segments and the LayerNorm over their sum
    networks = {"discriminator": discriminator, "generator": generator}
    for name, parameters in networks.items():
        if name == learner:
            assert all(p.grad.any() for n, p in parameters.items() if not n.endswith("k_proj.bias"))
        else:
            assert not any(p.grad.any() for p in parameters.values())
    assert all(p.grad.any() for p in shared.values())


@pytest.mark.parametrize("masked_tokens", [True, False])
@pytest.mark.parametrize("arch", ["electra", "electra_babn", "electra_alignment"])
def test_every_parameter_gets_a_gradient(arch: str, masked_tokens: bool) -> None:
    """DistributedDataParallel waits for all gradients, even if a batch has no masked token."""
    model = pretraining_model(arch).train()
    batch = make_batch()
    if not masked_tokens:
        batch["target"].fill_(zoo.PAD)
    loss, sample_size, log = criterion()(model, batch)
    left = [term.value for _, term in take_losses(model)]
    assert torch.isfinite(loss)
    assert sample_size == sum(map(len, SOURCES))
    assert log["nmasked"] == (10 if masked_tokens else 0)
    sum(left, loss).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


class FixedOutputs:
    """A model with fixed outputs."""

    training = False

    def __init__(self, logits: Tensor, guesses: Tensor, corrupted: Tensor) -> None:
        extra = {"guesses": guesses, "probabilities": probabilities(guesses)}
        self.out = logits, {**extra, "corrupted": corrupted}

    def __call__(self, **unused: object) -> tuple[Tensor, dict[str, Tensor]]:
        return self.out


def test_loss_and_counts_equal_a_loop_over_tokens() -> None:
    """The loop is in double precision. A sample that equals the original token is not replaced."""
    torch.manual_seed(0)
    batch = make_batch(width=15)
    original, masked = zoo.pad(SOURCES, width=15), masked_of(batch)
    corrupted = original.clone()
    corrupted[masked] = torch.randint(4, zoo.VOCABULARY, (int(masked.sum()),))
    corrupted[0, 1] = original[0, 1]  # the sample equals the original
    logits = torch.randn(original.shape, dtype=torch.double) * 2
    logits[original.eq(zoo.PAD)] = 1e4  # predictions at padding must be ignored
    guesses = torch.randn(int(masked.sum()), zoo.VOCABULARY, dtype=torch.double)
    mlm = rtd = 0.0
    counts = dict.fromkeys(("nmasked", "nreplaced", "nright", "nfound"), 0)
    for row, sentence in enumerate(SOURCES):
        for t, token in enumerate(sentence.tolist()):
            replaced = corrupted[row, t].item() != token
            probability = 1 / (1 + math.exp(-logits[row, t].item()))
            rtd -= math.log(probability if replaced else 1 - probability)
            right = (probability > 0.5) == replaced
            counts["nreplaced"] += replaced
            counts["nright"] += right
            counts["nfound"] += right and replaced
            if masked[row, t]:
                p = guesses[counts["nmasked"]].exp()
                mlm -= math.log(p[token] / p.sum())
                counts["nmasked"] += 1
    assert 0 < counts["nfound"] < counts["nreplaced"] < counts["nmasked"] == 10
    loss, sample_size, log = criterion()(FixedOutputs(logits, guesses, corrupted), batch)
    assert sample_size == log["ntokens"] == sum(map(len, SOURCES))
    assert log["mlm_loss"].item() == pytest.approx(mlm, rel=1e-12)
    assert log["rtd_loss"].item() == pytest.approx(rtd, rel=1e-12)
    assert loss.item() == pytest.approx(mlm / MASK_PROB + 50 * rtd, rel=1e-12)
    assert {name: log[name].item() for name in counts} == counts


def test_guesses_are_the_generators_logits_at_masked_positions() -> None:
    batch = make_batch()
    tokens, masked = batch["net_input"]["src_tokens"], masked_of(batch)
    model = pretraining_model().eval()
    everywhere = model.generator(tokens)
    assert everywhere.shape == (*tokens.shape, zoo.VOCABULARY)
    _, extra = model(tokens, masked_tokens=masked)
    torch.testing.assert_close(extra["guesses"], everywhere[masked])


def test_only_masked_tokens_are_replaced_and_never_by_padding() -> None:
    model = pretraining_model().train()
    with torch.no_grad():
        model.generator.lm_head.bias[zoo.PAD] = 100.0
    batch = make_batch()
    tokens, masked = batch["net_input"]["src_tokens"], masked_of(batch)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        _, extra = model(tokens, masked_tokens=masked)
        found.append(extra["corrupted"])
        assert torch.equal(found[-1][~masked], tokens[~masked])
        assert not found[-1][masked].eq(zoo.PAD).any()
        assert extra["guesses"].grad_fn is not None
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_discriminator_reads_the_corrupted_tokens() -> None:
    model = pretraining_model().eval()
    batch = make_batch()
    logits, extra = model(**batch["net_input"], masked_tokens=masked_of(batch))
    torch.testing.assert_close(logits, model(extra["corrupted"])[0])
    assert logits.shape == extra["corrupted"].shape


def test_validation_does_not_depend_on_the_batch() -> None:
    """Sums over single sentences equal those over the padded batch, for any random state."""
    model, objective = pretraining_model().eval(), criterion()
    keys = (
        "loss",
        "mlm_loss",
        "rtd_loss",
        "nmasked",
        "nreplaced",
        "nright",
        "nfound",
        "sample_size",
    )
    _, _, together = objective(model, make_batch(width=20))
    torch.manual_seed(99)
    alone = [objective(model, make_batch([row], ids=(n,)))[2] for n, row in enumerate(SOURCES)]
    for key in keys:
        torch.testing.assert_close(sum(log[key] for log in alone), together[key])
    other = objective(model, make_batch(ids=(5, 6, 7, 8)))[2]
    assert not torch.equal(other["rtd_loss"], together["rtd_loss"])


def test_embeddings_are_summed_normalised_and_projected() -> None:
    tokens = torch.tensor([[0, 5, 6, zoo.EOS, 7, zoo.EOS]])
    model = pretraining_model().eval()
    for network, width in ((model.encoder, 16), (model.generator, 5)):
        encoder = network.sentence_encoder
        x, _ = encoder.forward_embedding(tokens)
        segments = encoder.embed_segments.weight[torch.tensor([[0, 0, 0, 0, 1, 1]])]
        total = encoder.embed_tokens(tokens) + encoder.embed_positions(tokens) + segments
        assert total.size(2) == 8
        assert x.size(2) == width
        expected = encoder.embed_project(encoder.layernorm_embedding(total))
        torch.testing.assert_close(x, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_normalize_before": True, "layernorm_embedding": False},
        {"segment_embeddings": 0},
        {"untie_weights_roberta": True},
        {"embedding_dim": 16, "generator_size": 1.0},
        {"encoder_layerdrop": 0.5},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_fairseq_work(options: dict) -> None:
    model = pretraining_model("electra_deterministic", **options).train()
    loss, _, _ = criterion()(model, make_batch())
    loss.backward()
    assert torch.isfinite(loss)
    twin = pretraining_model("electra_deterministic", seed=2, **options)
    twin.load_state_dict(model.state_dict())
    tied = model.generator.lm_head.weight is model.encoder.sentence_encoder.embed_tokens.weight
    assert tied != ("untie_weights_roberta" in options)
    assert hasattr(model.encoder.sentence_encoder, "embed_segments") == (
        "segment_embeddings" not in options
    )
    assert hasattr(model.encoder.sentence_encoder, "embed_project") == (
        "embedding_dim" not in options
    )
    for mode in (model.eval(), twin.eval()):
        assert mode(**make_batch()["net_input"])[0].shape == (4, 12)


def test_embeddings_stay_shared_in_copies_and_half_precision() -> None:
    for model in (pretraining_model().half(), copy.deepcopy(pretraining_model())):
        one, other = model.encoder.sentence_encoder, model.generator.sentence_encoder
        assert other.embed_tokens.weight is one.embed_tokens.weight
        assert model.generator.lm_head.weight is one.embed_tokens.weight
        for name in ("embed_positions", "embed_segments", "layernorm_embedding"):
            assert getattr(other, name) is getattr(one, name)


def test_methods_act_in_the_discriminator_only() -> None:
    model = pretraining_model("electra_babn").train()
    ours = [name for name, _ in model.named_parameters() if is_plugin_parameter(name)]
    assert ours
    assert all(name.startswith("encoder.sentence_encoder.") for name in ours)
    criterion()(model, make_batch())
    assert [name for name, _ in take_losses(model)].count("kl") == 3
    for arch in ("electra_babn", "electra"):
        found = find_heads(pretraining_model(arch))
        expected = [f"encoder.sentence_encoder.layers.{n}.self_attn" for n in range(3)]
        assert [group.name for group in found] == expected
        assert {group.site for group in found} == {"encoder"}


def test_checkpoints_load_from_pretraining_to_finetuning_and_back() -> None:
    """Fine-tuning drops generator and head; pre-training initialises both randomly.

    The new generator has the checkpoint's embeddings.
    """
    before, encoder = pretraining_model(), zoo.build("electra_deterministic", seed=2)
    assert not [n for n, _ in encoder.named_parameters() if "generator" in n or "rtd" in n]
    encoder.load_state_dict(before.state_dict())
    tokens = zoo.pad(SOURCES)
    features = encoder.eval()(tokens, features_only=True)[0]
    torch.testing.assert_close(features, before.eval()(tokens, features_only=True)[0])
    after = pretraining_model("electra_deterministic", seed=3)
    fresh = {name: p.clone() for name, p in after.named_parameters()}
    after.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(after.eval()(tokens, features_only=True)[0], features)
    shared, _, generator = shared_and_own(after)
    stored = encoder.encoder.state_dict()
    assert all(torch.equal(p, stored[name]) for name, p in shared.items())
    assert all(torch.equal(p, fresh[f"generator.{name}"]) for name, p in generator.items())


@pytest.mark.parametrize(
    ("arch", "discriminator", "generator"),
    [
        ("electra_small", (256, 12, 4, 1024, 128), (64, 12, 1, 256)),
        ("electra_base", (768, 12, 12, 3072, 768), (256, 12, 4, 1024)),
        ("electra_babn_base", (768, 12, 12, 3072, 768), (256, 12, 4, 1024)),
        ("electra_large", (1024, 24, 16, 4096, 1024), (256, 24, 4, 1024)),
    ],
)
def test_presets_have_the_sizes_of_the_paper(
    arch: str, discriminator: tuple, generator: tuple
) -> None:
    args = Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    names = [f"encoder_{x}" for x in ("embed_dim", "layers", "attention_heads", "ffn_embed_dim")]
    assert tuple(getattr(args, x) for x in (*names, "embedding_dim")) == discriminator
    assert tuple(getattr(generator_args(args), x) for x in names) == generator


def test_pretraining_without_a_generator_is_refused() -> None:
    batch = make_batch()
    with pytest.raises(UsageError, match="pre-trained by --task electra"):
        zoo.build("electra_deterministic")(**batch["net_input"], masked_tokens=masked_of(batch))

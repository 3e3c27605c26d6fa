"""AttendOut: what is dropped, the policy gradient, rewards and survival in the training loop."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.head_hooks import HasHeadHooks, hook_heads
from fairseq_stochattn.core.stack import Vocabulary
from fairseq_stochattn.methods.attendout import generator as generator_module
from fairseq_stochattn.methods.attendout.attention import (
    AttendOutAttention,
    drop_scores,
    drop_weights,
)
from fairseq_stochattn.methods.attendout.generator import (
    DropoutGenerator,
    grad_log_probability,
    sample_drops,
)
from fairseq_stochattn.methods.attendout.training_loop import (
    LoopSettings,
    PlayerResult,
    TwoPlayerLoop,
    reward_of,
    survival,
)
from fairseq_stochattn.optim.copy_parameters import copy_parameters

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)


def build_generator(
    layers: int = 2, dim: int = 8, drop: float = 0.5, causal: bool = False
) -> DropoutGenerator:
    torch.manual_seed(0)
    dictionary = zoo.dictionary()
    vocabulary = Vocabulary(len(dictionary), dictionary.pad())
    return DropoutGenerator(vocabulary, range(layers), dim, drop, causal)


def build_loop(generator: DropoutGenerator, seed: int = 0, **settings: Any) -> TwoPlayerLoop:
    """A training loop around a model that has nothing but a generator."""
    copy = partial(copy_parameters, with_state=True)
    return TwoPlayerLoop(Holder(generator), LoopSettings(**settings), seed, copy_parameters=copy)


def weights_of(model: nn.Module, backbone: str) -> list[Tensor]:
    """The weights (B, H, T, S) of every layer in a forward pass in training mode."""
    seen = []
    modules = [m for m in model.modules() if isinstance(m, HasHeadHooks)]
    with hook_heads(modules, lambda heads: seen.append(heads.weights.detach())):
        zoo.run(model.train(), backbone, SOURCES, TARGETS)
    assert len(seen) == len(modules) == 3
    return seen


def fix_drops(monkeypatch: pytest.MonkeyPatch, drop: bool) -> None:
    """Drop all pairs, or none."""
    monkeypatch.setattr(
        generator_module, "sample_drops", lambda s: torch.full_like(s, drop, dtype=torch.bool)
    )


@pytest.mark.parametrize("backbone", ["roberta", "transformer_lm"])
def test_fully_dropped_rows_are_uniform_over_the_valid_keys(
    backbone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix_drops(monkeypatch, True)
    rows = SOURCES if backbone == "roberta" else TARGETS
    for weights in weights_of(zoo.build(f"{backbone}_attendout"), backbone):
        for sentence, row in enumerate(rows):
            for t in range(len(row)):
                keys = len(row) if backbone == "roberta" else t + 1
                expected = torch.zeros(weights.size(-1))
                expected[:keys] = 1 / keys
                found = weights[sentence, :, t]
                torch.testing.assert_close(found, expected.expand_as(found))


@pytest.mark.parametrize("on", ["scores", "weights"])
@pytest.mark.parametrize("backbone", ["roberta", "transformer", "transformer_lm", "electra"])
def test_without_dropped_pairs_it_is_plain_attention(
    backbone: str, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In double precision, since plain attention uses a fused kernel that sums in another order."""
    fix_drops(monkeypatch, False)
    plain = zoo.build(f"{backbone}_deterministic").train().double()
    ours = zoo.build(f"{backbone}_attendout", attendout_on=on).train().double()
    ours.load_state_dict(plain.state_dict())
    found = [zoo.run(model, backbone, SOURCES, TARGETS) for model in (plain, ours)]
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-9)


def test_scores_and_weights_dropout_equal_equations_3_and_2() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=generator)
    drop = torch.rand(2, 1, 4, 5, generator=generator) < 0.4
    drop[..., 0] = False
    m = torch.where(drop, -math.inf, 0.0)
    torch.testing.assert_close(drop_scores(logits, drop).softmax(-1), (logits + m).softmax(-1))
    torch.testing.assert_close(
        drop_weights(logits.softmax(-1), drop), logits.softmax(-1) * (~drop).double()
    )


def test_dropped_pairs_have_no_weight_and_scores_dropout_keeps_the_sum() -> None:
    torch.manual_seed(3)
    for on in ("scores", "weights"):
        model = zoo.build("roberta_attendout", attendout_on=on)
        stack = model.encoder.sentence_encoder.attention_stacks["encoder"]
        zoo.run(model.train(), "roberta", SOURCES, TARGETS)  # advances the random state
        for layer, weights in enumerate(weights_of(model, "roberta")):
            drop = stack.state["attendout"].drop[layer, 0]  # (T, S) of the sentence without padding
            partly = ~drop.all(dim=-1)
            assert weights[0][:, drop & partly[:, None]].eq(0).all()
            total = weights[0].sum(-1)[:, partly]
            assert total.sub(1).abs().max() < 1e-6 if on == "scores" else total.min() < 0.9


def test_nothing_is_drawn_at_test_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.build("roberta_attendout").eval()
    monkeypatch.setattr(DropoutGenerator, "act", lambda *_: pytest.fail("drawn at test time"))
    zoo.run(model, "roberta", SOURCES, TARGETS)


def test_cached_decoding_samples_with_retain_dropout() -> None:
    model = zoo.build("transformer_lm_attendout").eval()
    model.make_generation_fast_(retain_dropout=True)
    tokens = torch.stack(zoo.sentences(6, 6))
    state: dict = {}
    steps = [model.decoder(tokens[:, : t + 1], incremental_state=state)[0] for t in range(6)]
    assert all(torch.isfinite(step).all() for step in steps)
    first = [model.decoder(tokens)[0] for _ in range(2)]
    assert not torch.equal(*first)


def test_scores_depend_only_on_the_sentence() -> None:
    """Not on the batch, the side of the padding or, in a causal generator, future tokens."""
    g = build_generator(layers=3)
    row = SOURCES[1]
    alone = g(row[None])[:, 0]  # (n, T, T)
    right, left = (g(zoo.pad(SOURCES, left=side))[:, 1] for side in (False, True))
    torch.testing.assert_close(right[:, : len(row), : len(row)], alone)
    torch.testing.assert_close(left[:, -len(row) :, -len(row) :], alone)
    g = build_generator(layers=3, causal=True)
    changed = row.clone()
    changed[4:] = 5
    found = [g(x[None])[:, 0, :4, :4].tril() for x in (row, changed)]
    torch.testing.assert_close(*found)
    assert g.valid_pairs(row[None])[0].equal(torch.ones(7, 7).tril().bool())


def test_layers_share_parameters_and_differ_in_their_scores() -> None:
    g = build_generator(layers=3)
    assert sum(p.numel() for p in g.parameters()) == sum(
        p.numel() for p in build_generator(1).parameters()
    )
    scores = g(SOURCES[0][None])
    assert not torch.allclose(scores[0], scores[1])
    g.layers = [2]
    torch.testing.assert_close(g(SOURCES[0][None])[0], scores[2])


def test_actions_are_bernoulli_with_the_sigmoid_of_the_score() -> None:
    torch.manual_seed(0)
    scores = torch.tensor([-4.0, -1.0, 0.0, 0.5, 3.0])
    drops = sample_drops(scores.expand(40000, 5)).float()
    p = scores.sigmoid()
    error = (drops.mean(0) - p).abs() / (p * (1 - p) / 40000).sqrt()
    assert error.max() < 4
    assert build_generator(drop=0.2)(SOURCES[0][None]).mean().sigmoid() == pytest.approx(
        0.2, abs=0.1
    )


def test_grad_log_probability_is_the_gradient_of_the_mean_log_probability() -> None:
    """Σ_k 1/(n·l²) Σ_ij log P(d) by a direct loop over the valid pairs in double precision."""
    generator = torch.Generator().manual_seed(1)
    s = torch.randn(2, 2, 3, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    drop = torch.rand(s.shape, generator=generator) < 0.5
    valid = torch.ones(2, 3, 3, dtype=torch.bool)
    valid[1, 2], valid[1, :, 2] = False, False
    total = torch.zeros((), dtype=torch.float64)
    for i, k in itertools.product(range(2), range(2)):
        for a, b in valid[k].nonzero().tolist():
            p = s[i, k, a, b].sigmoid()
            log_p = p.log() if drop[i, k, a, b] else (1 - p).log()
            total = total + log_p / (2 * int(valid[k].sum()))
    (expected,) = torch.autograd.grad(total, s)
    torch.testing.assert_close(grad_log_probability(s.detach().sigmoid(), drop, valid), expected)


@pytest.mark.parametrize("baseline", [0.0, 0.7])
def test_policy_gradient_equals_its_closed_form_on_two_pairs(
    baseline: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One token and two layers have four actions, over which the expectation is summed.

    E[∇ 1/2 Σ log P(d) (r − b)] = 1/2 ∇ E[r] for every b.
    """
    g = build_generator(layers=2).double()
    g.learning = True
    token = torch.tensor([[7]])
    rewards = {(False, False): 0.3, (False, True): -1.0, (True, False): 2.0, (True, True): 0.5}
    leaves = {name: p.detach().clone().requires_grad_() for name, p in g.named_parameters()}
    p = torch.func.functional_call(g, leaves, (token,)).flatten().sigmoid()  # of the two pairs
    expected_reward, estimate = 0.0, 0.0
    for action, reward in rewards.items():
        chance = math.prod(p[i] if d else 1 - p[i] for i, d in enumerate(action))
        expected_reward = expected_reward + chance * reward
        drops = torch.tensor(action).view(2, 1, 1, 1)
        monkeypatch.setattr(generator_module, "sample_drops", lambda s, drops=drops: drops)
        g.act(token)
        trace, sentences = g.take_gradients()
        assert sentences == 1
        estimate = estimate + chance.detach() * trace * (reward - baseline)
    exact = torch.autograd.grad(expected_reward / 2, list(leaves.values()))
    torch.testing.assert_close(estimate, torch.cat([x.flatten() for x in exact]))


class Holder(nn.Module):
    """A model that has nothing but a generator."""

    def __init__(self, generator: DropoutGenerator) -> None:
        super().__init__()
        self.generator = generator


def test_generator_learns_to_drop_the_harmful_key() -> None:
    """Attention averages the words −1, 0, 1 and 3; the right answer is 0, the mean without the 3.

    So the generator should drop the 3 and no other word. It receives one reward per batch.
    """
    values = {9: 3.0, 5: -1.0, 6: 0.0, 7: 1.0}
    sentences = torch.tensor(list(itertools.permutations(values)))  # (24, 4)
    read = torch.tensor([values.get(word, 0.0) for word in range(10)])
    g = build_generator(layers=1, dim=16)
    loop = build_loop(g, lr=0.005)
    loop.updates, g.learning = 0, True
    torch.manual_seed(5)

    def loss(tokens: Tensor, drop: Tensor) -> float:
        weights = drop_scores(torch.zeros(drop.shape), drop).softmax(-1)  # (B, T, S)
        return torch.einsum("bts,bs->bt", weights, read[tokens]).square().mean().item()

    for _ in range(600):
        tokens = sentences[torch.randint(len(sentences), (4,))]
        drop = g.act(tokens).drop[0]
        loop.end_update()
        loop.learn(loss(tokens, torch.zeros_like(drop)) - loss(tokens, drop))
    p = g(sentences)[0].sigmoid().mean(dim=1)  # (24, S): per key, averaged over queries
    assert p[sentences == 9].mean() > 0.9
    assert all(p[sentences == word].mean() < 0.5 for word in (5, 6, 7))


def result(accuracy: float | None, loss: float = 1.0) -> PlayerResult:
    return PlayerResult(loss, accuracy)


def test_rewards() -> None:
    assert reward_of(0.75, 0.5, "scores") == 0.25
    assert [reward_of(a, 0.5, "sign") for a in (0.75, 0.5, 0.25)] == [1, 0, -1]
    attacker, defender = result(0.5, loss=0.4), result(0.75, loss=0.6)
    scores = [player.score("losses") for player in (attacker, defender)]
    assert reward_of(*scores, "losses") == pytest.approx(0.2)
    assert result(None, loss=0.4).score("scores") == -0.4


def test_survival_by_each_rule() -> None:
    better, worse = result(0.8), result(0.6)
    assert survival(better, worse, LoopSettings(reward="scores", survivor="better")) == 1
    assert survival(worse, better, LoopSettings(reward="scores", survivor="better")) == 0
    assert survival(
        better, worse, LoopSettings(reward="scores", survivor="proportional")
    ) == pytest.approx(4 / 7)
    softmax = math.exp(8) / (math.exp(8) + math.exp(6))
    assert survival(better, worse, LoopSettings(reward="scores", temperature=0.1)) == pytest.approx(
        softmax
    )
    unlikely, likely = result(None, loss=2.0), result(None, loss=1.0)
    odds = math.exp(-2) / (math.exp(-2) + math.exp(-1))
    assert survival(
        unlikely, likely, LoopSettings(reward="scores", survivor="proportional")
    ) == pytest.approx(odds)
    for rule in ("softmax", "proportional", "better"):
        assert (
            survival(result(0.0), result(0.0), LoopSettings(reward="scores", survivor=rule)) == 0.5
        )
        assert survival(better, worse, LoopSettings(reward="scores", survivor=rule)) > 0.5


def test_without_a_choice_the_attacker_survives() -> None:
    rule = LoopSettings(survivor="attacker")
    assert survival(result(None, loss=9.0), result(None, loss=1.0), rule) == 1
    assert survival(result(None), result(None), rule) == 1


def test_survivors_are_drawn_with_their_probability() -> None:
    """χ² test with one degree of freedom over 4000 rounds."""
    loop = build_loop(build_generator(), seed=7, reward="scores", survivor="proportional")
    p = survival(result(0.8), result(0.6), loop.settings)
    kept, rounds = 0, 4000
    for loop.rounds in range(rounds):
        kept += loop.random().random() < p
    expected = torch.tensor([p * rounds, (1 - p) * rounds])
    chi = ((torch.tensor([kept, rounds - kept]) - expected).square() / expected).sum()
    assert chi < 10.8  # the 99.9 % quantile
    assert kept > rounds / 2


def test_steps_follow_the_advantage_over_a_moving_average() -> None:
    loop = build_loop(build_generator(), optimizer="sgd", lr=1.0, baseline_decay=0.75)
    g, loop.updates = loop.generators[0], 0
    start = torch.cat([p.flatten() for p in g.parameters()]).clone()
    moved, baseline = torch.zeros_like(start), 0.0
    for reward in (1.0, -2.0, 0.5):
        g.learning = True
        g.act(zoo.pad(SOURCES))
        loop.end_update()
        moved += (reward - baseline) * loop.traces[0]
        loop.learn(reward)
        baseline = 0.75 * baseline + 0.25 * reward
        assert loop.baseline == pytest.approx(baseline)
        assert loop.traces == []
    now = torch.cat([p.flatten() for p in g.parameters()])
    torch.testing.assert_close(now - start, moved, rtol=1e-3, atol=1e-6)


def test_trace_adds_updates_and_averages_sentences() -> None:
    """Two batches of one update are averaged over their sentences; two updates add up."""
    loop = build_loop(build_generator())
    g, loop.updates, g.learning = loop.generators[0], 0, True
    batches = [zoo.pad(SOURCES), zoo.pad(SOURCES[:1]), zoo.pad(SOURCES[1:3])]
    torch.manual_seed(1)
    grads = []
    for batch in batches:
        g.act(batch)
        grads.append(g.take_gradients()[0])
    torch.manual_seed(1)
    g.act(batches[0])
    g.act(batches[1])
    loop.end_update()
    g.act(batches[2])
    loop.end_update()
    expected = (grads[0] + grads[1]) / 5 + grads[2] / 2
    torch.testing.assert_close(loop.traces[0], expected)


def test_generator_stays_in_fp32_in_half_precision_models() -> None:
    model = zoo.build("roberta_attendout").half()
    g = next(m for m in model.modules() if isinstance(m, DropoutGenerator))
    assert {p.dtype for p in g.parameters()} == {torch.float32}
    assert next(model.parameters()).dtype == torch.float16
    assert {p.dtype for p in build_generator().double().parameters()} == {torch.float64}


def test_only_selected_layers_have_dropout() -> None:
    model = zoo.build("roberta_attendout", attention_layers="0,2")
    acting = [m for m in model.modules() if isinstance(m, AttendOutAttention)]
    assert [m.measure for m in acting] == ["drop_encoder_0", "drop_encoder_2"]
    zoo.run(model.train(), "roberta", SOURCES, TARGETS)
    stack = model.encoder.sentence_encoder.attention_stacks["encoder"]
    assert len(stack.state["attendout"].drop) == 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"attendout_drop": 1.0}, "--attendout-drop must be above 0 and below 1"),
        ({"attendout_dim": 2}, "--attendout-dim must be at least 4"),
    ],
)
def test_bad_flags_are_refused(flags: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        zoo.build("roberta_attendout", **flags)

"""AttendOut's mathematics: what is dropped, the policy gradient, the rules of the game."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

import zoo
from fairseq_stochattn.attention import dropout_maker
from fairseq_stochattn.attention.attendout import AttendOut, drop_scores, drop_weights
from fairseq_stochattn.attention.dropout_maker import (
    DropoutMaker,
    log_probability_slope,
    sample_drops,
)
from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.game import SURVIVORS, Game, Result, Rules, reward_of, survival

SOURCES, TARGETS = zoo.sentences(9, 7, 4, 1), zoo.sentences(8, 5, 3, 1, seed=1)


def maker(layers: int = 2, dim: int = 8, drop: float = 0.5, causal: bool = False) -> DropoutMaker:
    torch.manual_seed(0)
    return DropoutMaker(zoo.dictionary(), range(layers), dim, drop, causal)


def weights_of(model: nn.Module, backbone: str) -> list[Tensor]:
    """(B, H, T, S) of every layer, in a forward of training."""
    seen = []
    modules = [m for m in model.modules() if hasattr(m, "watchers")]
    for module in modules:
        module.watchers = [lambda heads: seen.append(heads.weights.detach())]
    zoo.run(model.train(), backbone, SOURCES, TARGETS)
    return seen


def fix_drops(monkeypatch: pytest.MonkeyPatch, drop: bool) -> None:
    monkeypatch.setattr(
        dropout_maker, "sample_drops", lambda s: torch.full_like(s, drop, dtype=torch.bool)
    )


@pytest.mark.parametrize("backbone", ["roberta", "transformer_lm"])
def test_where_all_is_dropped_rows_are_uniform_over_the_valid_keys(
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
def test_where_nothing_is_dropped_it_is_plain_attention(
    backbone: str, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In double precision: plain attention is one kernel, which sums in an order of its own."""
    fix_drops(monkeypatch, False)
    plain = zoo.build(f"{backbone}_deterministic").train().double()
    ours = zoo.build(f"{backbone}_attendout", attendout_on=on).train().double()
    ours.load_state_dict(plain.state_dict())
    found = [zoo.run(model, backbone, SOURCES, TARGETS) for model in (plain, ours)]
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-9)


def test_scores_and_weights_dropout_are_equations_3_and_2() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=generator)
    drop = torch.rand(2, 1, 4, 5, generator=generator) < 0.4
    drop[..., 0] = False
    m = torch.where(drop, -math.inf, 0.0)
    torch.testing.assert_close(drop_scores(logits, drop).softmax(-1), (logits + m).softmax(-1))
    torch.testing.assert_close(
        drop_weights(logits.softmax(-1), drop), logits.softmax(-1) * (~drop).double()
    )


def test_dropped_cells_have_no_weight_and_scores_dropout_keeps_the_sum() -> None:
    torch.manual_seed(3)
    for on in ("scores", "weights"):
        model = zoo.build("roberta_attendout", attendout_on=on)
        stack = model.encoder.sentence_encoder.attention_stacks["encoder"]
        zoo.run(model.train(), "roberta", SOURCES, TARGETS)  # the random state moves on
        for layer, weights in enumerate(weights_of(model, "roberta")):
            drop = stack.state["attendout"].drop[layer, 0]  # (T, S) of the sentence without padding
            partly = ~drop.all(dim=-1)
            assert weights[0][:, drop & partly[:, None]].eq(0).all()
            total = weights[0].sum(-1)[:, partly]
            assert total.sub(1).abs().max() < 1e-6 if on == "scores" else total.min() < 0.9


def test_at_test_time_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.build("roberta_attendout").eval()
    monkeypatch.setattr(DropoutMaker, "act", lambda *_: pytest.fail("drawn at test time"))
    zoo.run(model, "roberta", SOURCES, TARGETS)


def test_cached_decoding_samples_where_retain_dropout_asks_for_it() -> None:
    model = zoo.build("transformer_lm_attendout").eval()
    model.make_generation_fast_(retain_dropout=True)
    tokens = torch.stack(zoo.sentences(6, 6))
    state: dict = {}
    steps = [model.decoder(tokens[:, : t + 1], incremental_state=state)[0] for t in range(6)]
    assert all(torch.isfinite(step).all() for step in steps)
    first = [model.decoder(tokens)[0] for _ in range(2)]
    assert not torch.equal(*first)


def test_a_sentences_scores_depend_on_nothing_else() -> None:
    """Not on the batch, the side of the padding, nor, where it is causal, on the future."""
    g = maker(layers=3)
    row = SOURCES[1]
    alone = g(row[None])[:, 0]  # (n, T, T)
    right, left = (g(zoo.pad(SOURCES, left=side))[:, 1] for side in (False, True))
    torch.testing.assert_close(right[:, : len(row), : len(row)], alone)
    torch.testing.assert_close(left[:, -len(row) :, -len(row) :], alone)
    g = maker(layers=3, causal=True)
    changed = row.clone()
    changed[4:] = 5
    found = [g(x[None])[:, 0, :4, :4].tril() for x in (row, changed)]
    torch.testing.assert_close(*found)
    assert g.visible(row[None])[0].equal(torch.ones(7, 7).tril().bool())


def test_layers_share_one_group_of_parameters_and_differ_in_their_scores() -> None:
    g = maker(layers=3)
    assert sum(p.numel() for p in g.parameters()) == sum(p.numel() for p in maker(1).parameters())
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
    assert maker(drop=0.2)(SOURCES[0][None]).mean().sigmoid() == pytest.approx(0.2, abs=0.1)


def test_slope_is_the_gradient_of_the_mean_log_probability() -> None:
    """Σ_k 1/(n·l²) Σ_ij log P(d), by a direct loop over the valid cells in double precision."""
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
    torch.testing.assert_close(log_probability_slope(s.detach().sigmoid(), drop, valid), expected)


@pytest.mark.parametrize("baseline", [0.0, 0.7])
def test_policy_gradient_is_the_closed_form_on_two_units(
    baseline: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sentence of one token and two layers: four actions, whose expectation is enumerated.

    E[∇ 1/2 Σ log P(d) (r − b)] = 1/2 ∇ E[r], whatever b is.
    """
    g = maker(layers=2).double()
    g.embed_positions.weights = g.embed_positions.weights.double()
    g.learning = True
    token = torch.tensor([[7]])
    rewards = {(False, False): 0.3, (False, True): -1.0, (True, False): 2.0, (True, True): 0.5}
    leaves = {name: p.detach().clone().requires_grad_() for name, p in g.named_parameters()}
    p = torch.func.functional_call(g, leaves, (token,)).flatten().sigmoid()  # of the two units
    expected_reward, estimate = 0.0, 0.0
    for action, reward in rewards.items():
        chance = math.prod(p[i] if d else 1 - p[i] for i, d in enumerate(action))
        expected_reward = expected_reward + chance * reward
        drops = torch.tensor(action).view(2, 1, 1, 1)
        monkeypatch.setattr(dropout_maker, "sample_drops", lambda s, drops=drops: drops)
        g.act(token)
        trace, sentences = g.take_record()
        assert sentences == 1
        estimate = estimate + chance.detach() * trace * (reward - baseline)
    exact = torch.autograd.grad(expected_reward / 2, list(leaves.values()))
    torch.testing.assert_close(estimate, torch.cat([x.flatten() for x in exact]))


class Holder(nn.Module):
    """A model of nothing but a generator."""

    def __init__(self, generator: DropoutMaker) -> None:
        super().__init__()
        self.generator = generator


def test_generator_learns_to_drop_the_harmful_key() -> None:
    """Uniform attention over the words −1, 0, 1, whose mean is the answer, and one that says 3.

    To keep that one is wrong, and so is to drop any of the others. One reward a batch.
    """
    values = {9: 3.0, 5: -1.0, 6: 0.0, 7: 1.0}
    sentences = torch.tensor(list(itertools.permutations(values)))  # (24, 4)
    read = torch.tensor([values.get(word, 0.0) for word in range(10)])
    g = maker(layers=1, dim=16)
    game = Game(Holder(g), Rules(lr=0.005), seed=0)
    game.updates, g.learning = 0, True
    torch.manual_seed(5)

    def loss(tokens: Tensor, drop: Tensor) -> float:
        weights = drop_scores(torch.zeros(drop.shape), drop).softmax(-1)  # (B, T, S)
        return torch.einsum("bts,bs->bt", weights, read[tokens]).square().mean().item()

    for _ in range(600):
        tokens = sentences[torch.randint(len(sentences), (4,))]
        drop = g.act(tokens).drop[0]
        game.end_update()
        game.learn(loss(tokens, torch.zeros_like(drop)) - loss(tokens, drop))
    p = g(sentences)[0].sigmoid().mean(dim=1)  # (24, S): of a key, over queries
    assert p[sentences == 9].mean() > 0.9
    assert all(p[sentences == word].mean() < 0.5 for word in (5, 6, 7))


def result(accuracy: float | None, loss: float = 1.0) -> Result:
    return Result(loss, accuracy)


def test_rewards() -> None:
    assert reward_of(0.75, 0.5, "scores") == 0.25
    assert [reward_of(a, 0.5, "sign") for a in (0.75, 0.5, 0.25)] == [1, 0, -1]
    attacker, defender = result(0.5, loss=0.4), result(0.75, loss=0.6)
    scores = [player.score("losses") for player in (attacker, defender)]
    assert reward_of(*scores, "losses") == pytest.approx(0.2)
    assert result(None, loss=0.4).score("scores") == -0.4


def test_survival_by_each_rule() -> None:
    better, worse = result(0.8), result(0.6)
    assert survival(better, worse, Rules(survivor="better")) == 1
    assert survival(worse, better, Rules(survivor="better")) == 0
    assert survival(better, worse, Rules(survivor="proportional")) == pytest.approx(4 / 7)
    softmax = math.exp(8) / (math.exp(8) + math.exp(6))
    assert survival(better, worse, Rules(temperature=0.1)) == pytest.approx(softmax)
    unlikely, likely = result(None, loss=2.0), result(None, loss=1.0)
    odds = math.exp(-2) / (math.exp(-2) + math.exp(-1))
    assert survival(unlikely, likely, Rules(survivor="proportional")) == pytest.approx(odds)
    for rule in SURVIVORS:
        assert survival(result(0.0), result(0.0), Rules(survivor=rule)) == 0.5
        assert survival(better, worse, Rules(survivor=rule)) > 0.5


def test_draws_prefer_the_better_as_the_rule_says() -> None:
    """χ² with one degree of freedom over 4000 turns of one game."""
    game = Game(Holder(maker()), Rules(survivor="proportional"), seed=7)
    p = survival(result(0.8), result(0.6), game.rules)
    kept, turns = 0, 4000
    for game.turn in range(turns):
        kept += game.random().random() < p
    expected = torch.tensor([p * turns, (1 - p) * turns])
    chi = ((torch.tensor([kept, turns - kept]) - expected).square() / expected).sum()
    assert chi < 10.8  # the 99.9 % quantile
    assert kept > turns / 2


def test_baseline_is_the_moving_average_and_the_advantage_counts() -> None:
    game = Game(Holder(maker()), Rules(optimizer="sgd", lr=1.0, baseline_decay=0.75), seed=0)
    g, game.updates = game.makers[0], 0
    start = torch.cat([p.flatten() for p in g.parameters()]).clone()
    moved, baseline = torch.zeros_like(start), 0.0
    for reward in (1.0, -2.0, 0.5):
        g.learning = True
        g.act(zoo.pad(SOURCES))
        game.end_update()
        moved += (reward - baseline) * game.traces[0]
        game.learn(reward)
        baseline = 0.75 * baseline + 0.25 * reward
        assert game.baseline == pytest.approx(baseline)
        assert game.traces == []
    now = torch.cat([p.flatten() for p in g.parameters()])
    torch.testing.assert_close(now - start, moved, rtol=1e-3, atol=1e-6)


def test_trace_adds_updates_and_averages_sentences() -> None:
    """Two batches of one update count by their sentences, two updates add up."""
    game = Game(Holder(maker()), Rules(), seed=0)
    g, game.updates, g.learning = game.makers[0], 0, True
    batches = [zoo.pad(SOURCES), zoo.pad(SOURCES[:1]), zoo.pad(SOURCES[1:3])]
    torch.manual_seed(1)
    slopes = []
    for batch in batches:
        g.act(batch)
        slopes.append(g.take_record()[0])
    torch.manual_seed(1)
    g.act(batches[0])
    g.act(batches[1])
    game.end_update()
    g.act(batches[2])
    game.end_update()
    expected = (slopes[0] + slopes[1]) / 5 + slopes[2] / 2
    torch.testing.assert_close(game.traces[0], expected)


def test_generator_keeps_its_precision_in_half_models() -> None:
    model = zoo.build("roberta_attendout").half()
    g = next(m for m in model.modules() if isinstance(m, DropoutMaker))
    assert {p.dtype for p in g.parameters()} == {torch.float32}
    assert next(model.parameters()).dtype == torch.float16
    assert {p.dtype for p in maker().double().parameters()} == {torch.float64}


def test_only_chosen_layers_are_dropped_in() -> None:
    model = zoo.build("roberta_attendout", attention_layers="0,2")
    acting = [m for m in model.modules() if isinstance(m, AttendOut)]
    assert [m.measure for m in acting] == ["drop_encoder_0", "drop_encoder_2"]
    zoo.run(model.train(), "roberta", SOURCES, TARGETS)
    stack = model.encoder.sentence_encoder.attention_stacks["encoder"]
    assert len(stack.state["attendout"].drop) == 2


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ({"attendout_drop": 1.0}, "--attendout-drop must be above 0 and below 1"),
        ({"attendout_dim": 2}, "--attendout-dim must be at least 4"),
    ],
)
def test_bad_flags(flags: dict, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        zoo.build("roberta_attendout", **flags)

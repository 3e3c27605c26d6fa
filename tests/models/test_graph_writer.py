"""GraphWriter: invariances of its graphs, the copying of entities, and its probabilities."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

import graph_texts
import zoo
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.graph_text_file import ENTITY, GraphText
from fairseq_stochattn.core.heads import find_heads
from fairseq_stochattn.core.method import METHODS
from fairseq_stochattn.models.graph_text_decoder import IMPOSSIBLE
from fairseq_stochattn.uncertainty.sampling import sampled_attention

CLOSE = {"rtol": 1e-5, "atol": 2e-6}
TITLED = graph_texts.task(titles=True)
MIXED = [
    graph_texts.example(*sizes, seed=seed, title=True)
    for seed, sizes in enumerate([(4, 6), (1, 0), (5, 2), (2, 1)])
]
EMPTY = GraphText([], [], [], "w1 w2", ["w1 w2"], "w3")
# attendout reads the nodes as a sequence, in which their order matters.
ORDERLESS = [name for name in METHODS if name != "attendout"]


def outputs(model: nn.Module, rows: list[GraphText], of=TITLED) -> list[Tensor]:
    """The log-probabilities (T, V + K) of every example."""
    made = graph_texts.batch(rows, of)
    lengths = made["target"].ne(zoo.PAD).sum(dim=1).tolist()
    out = model(**made["net_input"])[0]
    return [row[:length] for row, length in zip(out, lengths, strict=True)]


def renumbered(row: GraphText, order: list[int]) -> GraphText:
    """The same graph in which entity i has the number order[i]."""
    back = [order.index(i) for i in range(len(order))]
    triples = [(order[head], name, order[tail]) for head, name, tail in row.triples]
    symbols = {ENTITY.format(i): ENTITY.format(n) for i, n in enumerate(order)}
    return dataclasses.replace(
        row,
        entities=[row.entities[i] for i in back],
        types=[row.types[i] for i in back],
        triples=triples,
        text=" ".join(symbols.get(word, word) for word in row.text.split()),
    )


@pytest.mark.parametrize("method", ORDERLESS)
def test_order_of_triples_and_of_entities_does_not_matter(method: str) -> None:
    model = graph_texts.build(TITLED, f"graph_writer_{method}").eval()
    row, first = MIXED[0], TITLED.first_entity
    (out,) = outputs(model, [row])
    shuffled = dataclasses.replace(row, triples=[row.triples[i] for i in (3, 0, 5, 1, 4, 2)])
    torch.testing.assert_close(outputs(model, [shuffled])[0], out, **CLOSE)
    order = [2, 0, 3, 1]
    (other,) = outputs(model, [renumbered(row, order)])
    torch.testing.assert_close(other[:, :first], out[:, :first], **CLOSE)
    torch.testing.assert_close(other[:, [first + i for i in order]], out[:, first : first + 4])


def test_direction_and_name_of_a_relation_matter() -> None:
    model, row = graph_texts.build(TITLED).eval(), MIXED[3]
    row = dataclasses.replace(row, triples=[(0, "likes", 1)])
    (out,) = outputs(model, [row])
    for triple in ((1, "likes", 0), (0, "owns", 1)):
        changed = dataclasses.replace(row, triples=[triple])
        assert (outputs(model, [changed])[0] - out).abs().max() > 1e-4


@pytest.mark.parametrize("method", ["deterministic", "babn", "alignment"])
def test_graphs_of_all_sizes_in_one_batch(method: str) -> None:
    """Also an empty graph and one with a single node: a batch changes no output."""
    model = graph_texts.build(TITLED, f"graph_writer_{method}").eval()
    rows = [*MIXED, EMPTY]
    together = outputs(model, rows)
    for row, out in zip(rows, together, strict=True):
        torch.testing.assert_close(outputs(model, [row])[0], out, **CLOSE)


def test_the_title_is_read() -> None:
    model, row = graph_texts.build(TITLED).eval(), MIXED[0]
    (out,) = outputs(model, [row])
    changed = dataclasses.replace(row, title="w7 w8")
    assert (outputs(model, [changed])[0] - out).abs().max() > 1e-4


def test_an_unseen_relation_is_the_unknown_one() -> None:
    model, row = graph_texts.build(TITLED).eval(), MIXED[3]
    names = ("never seen", "<unk>")
    first, second = (
        outputs(model, [dataclasses.replace(row, triples=[(0, name, 1)])])[0] for name in names
    )
    assert torch.equal(first, second)
    made = graph_texts.batch([dataclasses.replace(row, triples=[(0, "no", 1)])], TITLED)
    assert made["net_input"]["relations"].tolist() == [[TITLED.relation_dictionary.unk()]]


def test_probabilities_add_up_to_one_and_only_own_entities_are_possible() -> None:
    model = graph_texts.build(TITLED).double().eval()
    rows = [*MIXED, EMPTY]
    for row, out in zip(rows, outputs(model, rows), strict=True):
        probabilities = out.double().exp()
        # The symbols of entities that the graph lacks have probability e^-30.
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(len(out)).double())
        missing = out[:, TITLED.first_entity + len(row.entities) :]
        assert missing.eq(IMPOSSIBLE).all()
    normalised = model.get_normalized_probs((out, None), log_probs=True)
    torch.testing.assert_close(normalised, out, rtol=0, atol=1e-5)


def test_words_and_copies_share_the_probability_as_the_gate_says() -> None:
    """P = (1 − p)·softmax of words, p·softmax over entities, with the paper's formulas."""
    model = graph_texts.build(TITLED).eval()
    decoder, made = model.decoder, graph_texts.batch(MIXED, TITLED)["net_input"]
    previous = made.pop("prev_output_tokens")
    memory = model.encoder(**made)
    features, _ = decoder.extract_features(previous, memory)
    out = decoder.output_layer(features, memory).exp()
    gate = torch.sigmoid(features @ decoder.gate.weight[0] + decoder.gate.bias)
    first = TITLED.first_entity
    torch.testing.assert_close(out[..., first:].sum(-1), gate, rtol=1e-5, atol=1e-6)
    scores = decoder.copy_projection(features[0]) @ memory["entities"][0][0].t() / 4
    alpha = scores[:, :4].softmax(-1)  # the fifth is padding
    torch.testing.assert_close(out[0, :, first : first + 4], gate[0, :, None] * alpha)
    words = decoder.output_projection(features[0]).softmax(-1)
    torch.testing.assert_close(out[0, :, :first], (1 - gate[0, :, None]) * words)


def test_an_entity_as_input_has_the_embedding_of_its_type() -> None:
    model, row = graph_texts.build(TITLED).eval(), MIXED[0]
    memory = model.encoder(
        **{k: x for k, x in graph_texts.batch([row], TITLED)["net_input"].items() if k[0] != "p"}
    )
    first, table = TITLED.first_entity, model.decoder.embed_tokens.weight
    tokens = torch.tensor([[5, first + 2, first + 4]])
    found = model.decoder.embed(tokens, memory)[0]
    kind = TITLED.target_dictionary.index(row.types[2])
    # The graph has four entities, so the fifth is unknown.
    wanted = table[torch.tensor([5, kind, TITLED.target_dictionary.unk()])]
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("titles", [False, True])
def test_incremental_decoding_equals_the_full_one(titles: bool) -> None:
    of = graph_texts.task(titles)
    model = graph_texts.build(of, "graph_writer_babn").eval()
    made = graph_texts.batch(MIXED, of)["net_input"]
    tokens = made.pop("prev_output_tokens")
    memory, state = model.encoder(**made), {}
    full = model.decoder(tokens, memory)[0]
    steps = [
        model.decoder(tokens[:, : t + 1], memory, incremental_state=state)[0][:, 0]
        for t in range(tokens.size(1))
    ]
    torch.testing.assert_close(torch.stack(steps, dim=1), full, **CLOSE)


def test_scores_of_beam_search_are_those_of_full_decoding() -> None:
    """The search reorders its hypotheses; each must still have the score of its tokens."""
    model = graph_texts.build(TITLED, "graph_writer_deterministic", seed=3).eval()
    rows = [*MIXED, EMPTY]
    made = graph_texts.batch(rows, TITLED)
    made["net_input"].pop("prev_output_tokens")
    search = SequenceGenerator(
        [model], TITLED.target_dictionary, beam_size=4, max_len_b=9, normalize_scores=False,
        match_source_len=False, max_len_a=0,
    )  # fmt: skip
    for row, beams in zip(rows, search.generate([model], made), strict=True):
        assert len(beams) == 4
        for beam in beams:
            words = TITLED.target_dictionary.string(beam["tokens"], include_eos=False)
            (out,) = outputs(model, [dataclasses.replace(row, text=words)])
            score = out.gather(1, beam["tokens"][:, None]).sum()
            torch.testing.assert_close(beam["score"], score, rtol=1e-4, atol=1e-4)


def test_copying_is_learnt_for_entities_that_are_new() -> None:
    """Trained to repeat entity 0, the model copies entity 0 of graphs with unknown words."""
    of = graph_texts.task()
    rows = [graph_texts.example(3, 2, seed) for seed in range(40)]
    # The agent is the only entity of its type and the head of all triples.
    rows = [
        dataclasses.replace(
            row, types=["<agent>", "<patient>", "<patient>"],
            triples=[(0, "likes", 1), (0, "owns", 2)], text="<entity_0> w1",
        )
        for row in rows
    ]  # fmt: skip
    model = graph_texts.build(of, "graph_writer_deterministic").train()
    optimizer, train = torch.optim.Adam(model.parameters(), lr=0.01), graph_texts.batch(rows, of)
    for _ in range(60):
        out = model(**train["net_input"])[0]
        loss = torch.nn.functional.nll_loss(out.flatten(0, 1), train["target"].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    unknown = [dataclasses.replace(row, entities=["new", "unseen", "strange"]) for row in rows]
    model.eval()
    with torch.no_grad():
        for order in ([0, 1, 2], [2, 0, 1]):
            found = outputs(model, [renumbered(unknown[0], order)], of)[0][0].exp()
            assert found[of.first_entity + order[0]] > 0.9


@pytest.mark.parametrize("rows", [[EMPTY], [MIXED[1]], [EMPTY, *MIXED]], ids=["none", "one", "all"])
def test_gradients_are_finite(rows: list[GraphText]) -> None:
    model = graph_texts.build(TITLED, "graph_writer_babn").train()
    made = graph_texts.batch(rows, TITLED)
    out = model(**made["net_input"])[0]
    out.gather(2, made["target"][..., None]).sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert grads
    assert all(grad.isfinite().all() for grad in grads)


def test_heads_of_graph_and_decoder_are_found() -> None:
    model = graph_texts.build(TITLED, "graph_writer_deterministic")
    found = [(x.site, x.layer, x.num_heads, list(x.parameters)) for x in find_heads(model)]
    projections = ["q", "k", "v"]
    assert found == [
        ("encoder", 0, 2, projections),
        ("encoder", 1, 2, projections),
        ("cross", 0, 2, projections),
    ]


@pytest.mark.parametrize("sites", ["encoder", "cross"])
def test_samples_of_the_attention_differ_at_both_sites(sites: str) -> None:
    model = graph_texts.build(TITLED, "graph_writer_babn", attention_sites=sites).eval()
    with sampled_attention([model]):
        first, second = (outputs(model, MIXED)[0] for _ in range(2))
    assert (first - second).abs().max() > 1e-4


def test_the_mask_has_a_cell_per_pair_of_nodes() -> None:
    """The cost that docs/graph_to_text.md states: B·N² cells with N = 1 + E + 2R."""
    model, shapes = graph_texts.build(TITLED).eval(), []
    plain = model.encoder.attend_to_neighbours
    model.encoder.attend_to_neighbours = lambda x, *masks: (
        shapes.append(masks[-1].shape) or plain(x, *masks)
    )
    outputs(model, MIXED)
    nodes = 1 + 5 + 2 * 6
    assert shapes == [(4, nodes, nodes)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"encoder_attention_heads": 3}, "--encoder-attention-heads 3: must divide"),
        ({"encoder_layers": 0}, "--encoder-layers"),
        ({"encoder_embed_dim": 7, "encoder_attention_heads": 7, "decoder_attention_heads": 7},
         "must be even"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_one_line(flags: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        graph_texts.build(TITLED, **flags)


def test_another_task_is_one_line() -> None:
    with pytest.raises(UsageError, match="use --task graph_to_text"):
        graph_texts.build(zoo.task())

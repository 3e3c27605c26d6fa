"""Graph attention: equal to a dense reference, and attention methods on graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import graphs
from fairseq_stochattn.compat import UsageError
from fairseq_stochattn.core.graph import Graph
from fairseq_stochattn.core.graph_network import GraphEncoder
from fairseq_stochattn.core.heads import find_heads
from fairseq_stochattn.core.losses import take_losses
from fairseq_stochattn.methods.alignment import AlignmentAttention
from fairseq_stochattn.uncertainty.sampling import sampled_attention

METHODS = ("deterministic", "babn", "bam", "alignment", "cell_dropout")


def dense_gat(encoder: GraphEncoder, features: Tensor, edges: Tensor) -> Tensor:
    """The logits of a GAT in eval mode, from a dense (N, N) mask."""
    nodes = len(features)
    seen = torch.eye(nodes, dtype=torch.bool)
    seen[edges[1], edges[0]] = True  # a target sees its sources
    h = features
    for number, layer in enumerate(encoder.layers):
        heads = []
        for i in range(layer.num_heads):
            w = layer.weight.view(layer.num_heads, layer.head_dim, -1)[i]
            wh = h @ w.t()
            e = F.leaky_relu((wh @ layer.a_q[i])[:, None] + (wh @ layer.a_k[i])[None], 0.2)
            heads.append(e.masked_fill(~seen, float("-inf")).softmax(-1) @ wh + layer.bias[i])
        last = number == len(encoder.layers) - 1
        h = torch.stack(heads).mean(0) if last else F.elu(torch.cat(heads, dim=1))
    return h


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return graphs.write_graph(tmp_path / "graph")


@pytest.mark.parametrize("method", ["", "_deterministic", "_alignment", "_bam"])
def test_outputs_and_gradients_equal_a_dense_reference(data: Path, method: str) -> None:
    model, graph = graphs.build(data, f"gat{method}", gat_layers=3, gat_output_heads=2)
    model.double().eval()
    model.features.values = model.features.values.double()
    for layer in model.encoder.layers:
        nn.init.normal_(layer.bias)
    edges = graphs.random_edges(40, 90)
    nodes = torch.arange(40)[None]
    wanted = dense_gat(model.encoder, graph.features.dense(), edges)
    found = model(nodes)[0][0]
    assert torch.allclose(found, wanted, atol=1e-6)
    parameters = model.decayed_parameters()
    direction = torch.randn_like(wanted)
    grads = torch.autograd.grad((found * direction).sum(), parameters)
    references = torch.autograd.grad((wanted * direction).sum(), parameters)
    for grad, reference in zip(grads, references, strict=True):
        assert torch.allclose(grad, reference, atol=1e-6)


def test_buckets_hold_every_neighbour_once_and_grow_with_the_edges() -> None:
    # A hub: node 0 is joined with everybody.
    nodes = 3000
    hub = torch.stack([torch.zeros(nodes - 1, dtype=torch.long), torch.arange(1, nodes)])
    graph = Graph(torch.cat([hub, hub.flip(0), hub], dim=1), nodes)
    pairs, cells = set(), 0
    for bucket in graph.buckets():
        padding = bucket.mask.key_padding
        cells += padding.numel()
        for node, row, pad in zip(bucket.nodes, bucket.neighbours, padding, strict=True):
            pairs |= {(int(node), int(x)) for x in row[~pad]}
    assert len(pairs) == graph.num_pairs == 3 * nodes - 2
    assert cells < 2 * graph.num_pairs


@pytest.mark.parametrize("method", METHODS)
def test_renumbered_nodes_have_the_same_outputs(data: Path, method: str) -> None:
    edges, nodes = graphs.random_edges(40, 90), 40
    features, order = torch.randn(nodes, 12), torch.randperm(40)  # node i becomes order[i]
    encoder = graphs.build(data, f"gat_{method}")[0].eval().encoder
    out = encoder(features, Graph(edges, nodes))
    renumbered = encoder(features[order.argsort()], Graph(order[edges], nodes))
    assert torch.allclose(renumbered[order], out, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_and_an_isolated_node_sees_only_itself(data: Path, method: str) -> None:
    model, graph = graphs.build(data, f"gat_{method}", dropout=0.3, attention_dropout=0.3)
    model.train()
    nodes = torch.arange(40)[None]
    loss = model(nodes)[0].square().sum()
    for _, term in take_losses(model):
        if term.weight is not None:
            loss = loss + term.value
    loss.backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)
    # The last node has no neighbour: softmax over one key is 1, so W h and the bias remain.
    model.eval()
    with torch.no_grad():
        h = graph.features.dense()[-1:]
        for number, layer in enumerate(model.encoder.layers):
            h = layer.project(h, layer.weight) + layer.bias
            h = F.elu(h.flatten(1)) if number == 0 else h.mean(1)
        assert torch.allclose(model(nodes)[0][0, -1:], h, atol=1e-6)


@pytest.mark.parametrize("method", ["babn", "bam"])
def test_samples_differ_where_a_node_has_neighbours(data: Path, method: str) -> None:
    model, _ = graphs.build(data, f"gat_{method}")
    model.eval()
    with torch.no_grad(), sampled_attention([model]):
        draws = model(torch.arange(40).repeat(3, 1))[0]
    spread = draws.std(dim=0).amax(dim=-1)
    assert spread[:10].max() > 1e-4
    assert spread[-1] < 1e-6  # isolated


def test_alignment_sees_every_node_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(AlignmentAttention, "observe", lambda self, context: seen.append(context))
    monkeypatch.setattr("fairseq_stochattn.core.graph.GROUP_SIZE", 16)
    model, graph = graphs.build(data, "gat_alignment")
    for training in (False, True):
        seen.clear()
        model.train(training)(torch.arange(40)[None])
        layer, context = model.encoder.layers[0], seen[0]
        keys = layer.a_k * layer.project(graph.features, layer.weight)  # (N, H, d)
        rows = context.k.transpose(1, 2)[~context.key_padding]
        assert len(seen) == 2
        assert len(rows) == 40
        assert torch.allclose(rows.flatten(1).sort(dim=0)[0], keys.flatten(1).sort(dim=0)[0])


def test_repulsive_attention_finds_the_heads(data: Path) -> None:
    model, _ = graphs.build(data, "gat_deterministic")
    first = find_heads(model)[0]
    assert (first.num_heads, first.site, list(first.parameters)) == (8, "encoder", ["q", "k", "v"])
    assert first.parameters["v"][0].view(8, -1).shape == (8, 8 * 12)


def test_what_graphs_cannot_have_is_refused(data: Path) -> None:
    with pytest.raises(UsageError, match="asa does not work on graphs"):
        graphs.build(data, "gat_deterministic", attention="asa")
    with pytest.raises(UsageError, match="neighbours in a graph have no order"):
        graphs.build(data, "gat_babn", babn_upward="positions")

"""Small random graphs for tests, as data of ``--task node_classification``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, build_model
from torch import Tensor, nn

from fairseq_stochattn.tasks.graph_file import GraphData, read_graph


def random_edges(nodes: int, edges: int, seed: int = 1) -> Tensor:
    """Return random edges in both directions, (2, E); the last two nodes are isolated."""
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(nodes - 2, (2, edges), generator=generator)
    return torch.cat([pairs, pairs.flip(0)], dim=1)


def write_graph(folder: Path, nodes: int = 40, edges: int = 90, seed: int = 1) -> Path:
    """Write graph.npz: three classes; a node has words of its class and some others."""
    rng = np.random.default_rng(seed)
    labels = np.arange(nodes) % 3
    words = rng.random((nodes, 12)) < 0.15
    words[np.arange(nodes), labels * 4 + rng.integers(4, size=nodes)] = True
    words[-1] = False
    starts = np.concatenate([[0], words.sum(axis=1).cumsum()])
    third = np.arange(nodes) // 3 % 3
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        folder / "graph.npz",
        shape=np.array(words.shape),
        starts=starts,
        columns=np.nonzero(words)[1],
        values=np.ones(starts[-1], dtype=np.float32),
        edges=random_edges(nodes, edges, seed).numpy(),
        labels=labels,
        **{
            f"nodes_{x}": np.flatnonzero(third == i)
            for i, x in enumerate(("train", "valid", "test"))
        },
    )
    return folder


def build(
    data: Path, arch: str = "gat", seed: int = 1, **flags: object
) -> tuple[nn.Module, GraphData]:
    """Return a small GAT, by default without dropout, and its graph."""
    graph = read_graph(data)
    rates = {"dropout": 0.0, "attention_dropout": 0.0}
    args = Namespace(arch=arch, **{**rates, **flags})
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(seed)
    return build_model(args, SimpleNamespace(graph=graph, cfg=SimpleNamespace())), graph

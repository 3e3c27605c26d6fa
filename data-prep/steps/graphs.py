"""Write a graph with node features, labels and splits as one file of arrays, graph.npz.

``fairseq_stochattn/tasks/graph_file.py`` reads it. The features are a sparse matrix by rows: the
columns of row i are ``columns[starts[i]:starts[i + 1]]``, and ``values`` has the entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

NAME = "graph.npz"


def undirected_edges(neighbours: Mapping[int, Sequence[int]]) -> np.ndarray:
    """Return all edges in both directions, (2, E), sorted, each once and without self-loops."""
    pairs = [(node, other) for node, others in neighbours.items() for other in others]
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    edges = np.concatenate([edges, edges[:, ::-1]])
    edges = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0)
    return np.ascontiguousarray(edges.T)


def normalized_rows(features: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return the features with rows that add up to 1; empty rows stay empty."""
    sums = np.asarray(features.sum(axis=1), dtype=np.float64).ravel()
    scale = np.divide(1.0, sums, out=np.zeros_like(sums), where=sums != 0)
    scaled = sparse.csr_matrix(sparse.diags(scale) @ features, dtype=np.float32)
    scaled.sum_duplicates()
    scaled.eliminate_zeros()
    return scaled


def write_graph(
    folder: Path,
    features: sparse.csr_matrix,
    edges: np.ndarray,
    labels: np.ndarray,
    splits: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """Write graph.npz and return statistics for the manifest.

    ``labels`` (N,) is −1 for nodes without a label; ``splits`` has the nodes of every split.
    """
    arrays = {
        "shape": np.array(features.shape, dtype=np.int64),
        "starts": features.indptr.astype(np.int64),
        "columns": features.indices.astype(np.int64),
        "values": features.data.astype(np.float32),
        "edges": edges.astype(np.int64),
        "labels": labels.astype(np.int64),
        **{f"nodes_{split}": nodes.astype(np.int64) for split, nodes in splits.items()},
    }
    np.savez_compressed(folder / NAME, **arrays)
    degrees = np.bincount(edges[1], minlength=len(labels))
    return {
        "graph": {
            "nodes": len(labels),
            "edges": edges.shape[1] // 2,
            "isolated": int((degrees == 0).sum()),
            "features": features.shape[1],
            "classes": int(labels.max()) + 1,
        },
        "splits": {split: {"kept": len(nodes)} for split, nodes in splits.items()},
    }


def summary(manifest: dict[str, Any], out: Path) -> str:
    """Return the statistics of a prepared graph, and how to train on it."""
    graph, splits = manifest["graph"], manifest["splits"]
    sizes = ", ".join(f"{split} {stats['kept']}" for split, stats in splits.items())
    return "\n".join(
        [
            f"{graph['nodes']} nodes ({graph['isolated']} of them isolated), {graph['edges']} "
            f"undirected edges, {graph['features']} features, {graph['classes']} classes",
            f"labelled nodes: {sizes}",
            f"fairseq-train {out} --task node_classification --arch gat_deterministic …",
        ]
    )

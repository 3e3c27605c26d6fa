"""Reads graph.npz, which data-prep writes: node features, edges, labels and splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.graph import Graph
from ..core.sparse import SparseRows

NAME = "graph.npz"
_SPLIT = "nodes_"


@dataclass(frozen=True)
class GraphData:
    """A graph of N nodes with features and labels."""

    graph: Graph
    features: SparseRows
    labels: Tensor  # (N,), −1 without a label
    splits: dict[str, Tensor]  # split → its nodes

    @property
    def num_classes(self) -> int:
        return int(self.labels.max()) + 1


def read_graph(folder: Path) -> GraphData:
    """Read the graph in a folder; raises ``InputError`` if it is missing or damaged."""
    path = folder / NAME
    if not path.is_file():
        raise InputError(f"{path} does not exist; stochattn-prepare planetoid writes it")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # a damaged archive raises errors of any kind
        raise InputError(f"{path} is damaged: {type(error).__name__}") from None
    try:
        return _checked(arrays)
    except (KeyError, InputError) as error:
        cause = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path} is damaged: {cause}") from None


def _checked(arrays: dict[str, Any]) -> GraphData:
    def whole(name: str, low: int, high: int, dims: int = 1) -> Tensor:
        x = arrays[name]
        if x.dtype.kind != "i" or x.ndim != dims:
            raise InputError(f"{name} is not an array of whole numbers")
        if x.size and not (low <= x.min() and x.max() < high):
            raise InputError(f"{name} has a number outside of {low} to {high - 1}")
        return torch.from_numpy(x.astype(np.int64))

    shape = whole("shape", 1, 2**40).tolist()
    if len(shape) != 2:
        raise InputError("shape is not that of a matrix")
    nodes, width = shape
    columns, values = whole("columns", 0, width), arrays["values"]
    starts = whole("starts", 0, len(columns) + 1)
    if len(starts) != nodes + 1 or (starts.diff() < 0).any() or starts[-1] != len(columns):
        raise InputError("starts does not divide the features into rows")
    if values.dtype != np.float32 or values.shape != (len(columns),):
        raise InputError("values does not fit columns")
    if not np.isfinite(values).all():
        raise InputError("a feature is not finite")
    edges, labels = whole("edges", 0, nodes, 2), whole("labels", -1, 2**20)
    if len(edges) != 2 or len(labels) != nodes or labels.max() < 0:
        raise InputError("edges or labels have the wrong size")
    splits = {
        name.removeprefix(_SPLIT): whole(name, 0, nodes)
        for name in arrays
        if name.startswith(_SPLIT)
    }
    for split, members in splits.items():
        if (labels[members] < 0).any():
            raise InputError(f"a node of the {split} set has no label")
    features = SparseRows(starts, columns, torch.from_numpy(values), width)
    return GraphData(Graph(edges, nodes), features, labels, splits)

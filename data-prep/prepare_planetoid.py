"""Prepare Planetoid's citation graphs Cora, Citeseer or PubMed: classes of papers from few labels.

Example: stochattn-prepare planetoid --graph cora --out data-bin/cora
In a clone, python data-prep/prepare_planetoid.py takes the same flags.

Nodes are papers, edges are citations (in both directions), features are the words of a paper, with
rows that add up to 1. The splits are those of Yang et al. 2016: 20 nodes of every class to train,
500 to validate and 1,000 to test. Citeseer has 15 nodes that the files of features and labels lack:
they get no features and no label, and belong to no split. No checksum is known for PubMed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from steps.command import build_output, common_parser, main_of, source_files
from steps.errors import PrepError
from steps.fetch import Remote
from steps.graphs import normalized_rows, summary, undirected_edges, write_graph
from steps.safe_pickle import load_pickle

ADDRESS = "https://github.com/kimiyoung/planetoid/raw/master/data"
PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
CHECKSUMS = {
    "cora": (
        "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    ),
    "citeseer": (
        "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    ),
    "pubmed": ("",) * len(PARTS),
}
VALID = 500  # the nodes that follow the training nodes


def remotes_of(graph: str) -> list[Remote]:
    """Return the files of a graph at their official address."""
    return [
        Remote(f"{ADDRESS}/ind.{graph}.{part}", checksum)
        for part, checksum in zip(PARTS, CHECKSUMS[graph], strict=True)
    ]


class Planetoid(NamedTuple):
    """The content of the files: n training nodes, m nodes in allx, t test nodes, f features."""

    features: sparse.csr_matrix  # (m, f): of all nodes but the test nodes
    labels: np.ndarray  # (m, classes), one-hot
    test_features: sparse.csr_matrix  # (t, f)
    test_labels: np.ndarray  # (t, classes)
    test_nodes: np.ndarray  # (t,): the node of every test row
    neighbours: dict[int, list[int]]
    train: int  # n


def read_files(paths: dict[str, Path]) -> Planetoid:
    """Read all files of a graph, by part, and check that they fit together."""
    loaded = {part: load_pickle(paths[part]) for part in PARTS if part != "test.index"}
    for part in ("x", "allx", "tx"):
        if not isinstance(loaded[part], sparse.csr_matrix):
            raise PrepError(f"{paths[part]} is not a sparse matrix")
        try:
            loaded[part].check_format()
        except Exception as error:  # attributes of any type may be missing or wrong
            raise PrepError(f"{paths[part]} is a damaged sparse matrix: {error}") from None
    for part in ("y", "ally", "ty"):
        if not (isinstance(loaded[part], np.ndarray) and loaded[part].ndim == 2):
            raise PrepError(f"{paths[part]} is not a matrix of labels")
    neighbours = loaded["graph"]
    if not isinstance(neighbours, dict) or not all(
        isinstance(others, list) and all(type(x) is int and x >= 0 for x in (node, *others))
        for node, others in neighbours.items()
    ):
        raise PrepError(f"{paths['graph']} is not a dictionary of lists of neighbours")
    try:
        test_nodes = np.array(paths["test.index"].read_text().split(), dtype=np.int64)
    except ValueError:
        raise PrepError(f"{paths['test.index']} is not a list of numbers") from None
    found = Planetoid(
        loaded["allx"], loaded["ally"], loaded["tx"], loaded["ty"],
        test_nodes, neighbours, len(loaded["y"]),
    )  # fmt: skip
    known = found.features.shape[0]
    rows = {
        "ally": (len(found.labels), known),
        "ty": (len(found.test_labels), found.test_features.shape[0]),
        "test.index": (len(test_nodes), found.test_features.shape[0]),
    }
    for part, (rows_found, wanted) in rows.items():
        if rows_found != wanted:
            raise PrepError(f"{paths[part]} has {rows_found} rows instead of {wanted}")
    if len(np.unique(test_nodes)) < len(test_nodes) or test_nodes.min(initial=known) < known:
        raise PrepError(f"{paths['test.index']} repeats a node, or names one that is in allx")
    if found.train + VALID > known:
        raise PrepError(f"{paths['allx']} has {known} nodes: too few for training and validation")
    return found


def build(data: Planetoid, folder: Path) -> dict[str, Any]:
    """Write the graph to a folder and return its statistics."""
    known = data.features.shape[0]
    named = [max([node, *others]) for node, others in data.neighbours.items()]
    nodes = max([known - 1, *data.test_nodes.tolist(), *named]) + 1
    # Row of every node in the features that were read; −1 where the files lack a node.
    rows = np.full(nodes, -1)
    rows[:known] = np.arange(known)
    rows[data.test_nodes] = known + np.arange(len(data.test_nodes))
    present = np.flatnonzero(rows >= 0)
    select = sparse.csr_matrix(
        (np.ones(len(present)), (present, rows[present])),
        shape=(nodes, known + len(data.test_nodes)),
    )
    features = select @ sparse.vstack([data.features, data.test_features])
    classes = np.concatenate([data.labels, data.test_labels])
    labels = np.full(nodes, -1)
    labels[present] = np.where(classes.any(axis=1), classes.argmax(axis=1), -1)[rows[present]]
    splits = {
        "train": np.arange(data.train),
        "valid": np.arange(data.train, data.train + VALID),
        "test": np.sort(data.test_nodes),
    }
    edges = undirected_edges(data.neighbours)
    return write_graph(folder, normalized_rows(features), edges, labels, splits)


def run(argv: Sequence[str] | None) -> None:
    parser = common_parser(__doc__, downloads=True)
    parser.add_argument(
        "--graph", choices=tuple(CHECKSUMS), required=True, help="name of the graph"
    )
    args = parser.parse_args(argv)
    files = source_files(remotes_of(args.graph), args)
    paths = {part: files[f"ind.{args.graph}.{part}"] for part in PARTS}
    build_output(
        args,
        {"graph": args.graph},
        list(files.values()),
        lambda folder: build(read_files(paths), folder),
        summary,
    )


main = main_of(run)

if __name__ == "__main__":
    sys.exit(main())

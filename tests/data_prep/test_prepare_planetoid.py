"""prepare_planetoid: the real graphs, and pickles that must not be executed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

import prepare_planetoid
import runner
from steps.errors import PrepError
from steps.graphs import undirected_edges
from steps.safe_pickle import load_pickle

REAL = runner.ROOT.parent / "shared" / "data" / "planetoid"
# Nodes, undirected edges, isolated nodes, features, classes; then the labelled nodes of a split.
GRAPHS = {"cora": ((2708, 5278, 0, 1433, 7), 140), "citeseer": ((3327, 4552, 48, 3703, 6), 120)}


def write_toy(folder: Path) -> None:
    """Write a graph of 520 nodes under the names of Cora; test node 519 is missing."""
    rng = np.random.default_rng(1)
    features = sparse.csr_matrix((rng.random((520, 6)) < 0.4).astype(np.float32))
    labels = np.eye(3, dtype=np.int32)[rng.integers(3, size=520)]
    graph = {node: [node + 1, node, node + 1] for node in range(0, 518, 2)}
    test = [520, 518, 517]  # node 519 is in no file but the graph
    graph[519] = [520]
    content = {
        "x": features[:9], "allx": features[:517], "tx": features[517:],
        "y": labels[:9], "ally": labels[:517], "ty": labels[517:], "graph": graph,
    }  # fmt: skip
    folder.mkdir()
    for part, value in content.items():
        (folder / f"ind.cora.{part}").write_bytes(pickle.dumps(value, 3))
    (folder / "ind.cora.test.index").write_text("".join(f"{node}\n" for node in test))


@pytest.mark.parametrize("graph", list(GRAPHS))
def test_the_real_graphs(graph: str, tmp_path: Path) -> None:
    if not REAL.is_dir():
        pytest.skip(f"{REAL} does not exist")
    out = tmp_path / "out"
    arguments = ["--graph", graph, "--from", str(REAL), "--out", str(out)]
    assert prepare_planetoid.main(arguments) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    sizes, train = GRAPHS[graph]
    assert tuple(manifest["graph"].values()) == sizes
    kept = {split: stats["kept"] for split, stats in manifest["splits"].items()}
    assert kept == {"train": train, "valid": 500, "test": 1000}
    wanted = {remote.name: remote.checksum for remote in prepare_planetoid.remotes_of(graph)}
    assert manifest["sources"] == wanted
    with np.load(out / "graph.npz", allow_pickle=False) as arrays:
        labels, test = arrays["labels"], arrays["nodes_test"]
        assert (labels[test] >= 0).all()
        # 20 labelled nodes of every class, and no node in two splits.
        assert np.bincount(labels[arrays["nodes_train"]]).tolist() == [20] * sizes[4]
        assert not np.isin(test, np.arange(train + 500)).any()
        assert (labels == -1).sum() == (15 if graph == "citeseer" else 0)
    assert prepare_planetoid.main([*arguments, "--verify"]) == 0  # nothing to do


def test_test_rows_get_their_nodes_and_missing_nodes_are_empty(tmp_path: Path) -> None:
    write_toy(tmp_path / "from")
    out = tmp_path / "out"
    arguments = ["--graph", "cora", "--from", str(tmp_path / "from"), "--out", str(out)]
    assert prepare_planetoid.main(arguments) == 0
    given = load_pickle(tmp_path / "from" / "ind.cora.tx").toarray()
    with np.load(out / "graph.npz", allow_pickle=False) as x:
        features = sparse.csr_matrix((x["values"], x["columns"], x["starts"]), shape=x["shape"])
        dense, labels, edges = features.toarray(), x["labels"], x["edges"]
    assert dense.shape == (521, 6)
    for row, node in zip(given, (520, 518, 517), strict=True):
        assert np.allclose(dense[node] * row.sum(), row)
    assert labels[519] == -1
    assert not dense[519].any()
    assert (edges[:, edges[0] == 519] == [[519], [520]]).all()


def test_edges_are_in_both_directions_once_and_without_loops() -> None:
    edges = undirected_edges({0: [1, 1, 0], 1: [0], 2: [1]})
    assert edges.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]


class Malicious:
    def __reduce__(self) -> tuple:
        return print, ("executed",)


def test_pickles_are_not_executed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "bad"
    path.write_bytes(pickle.dumps([Malicious()], 2))
    with pytest.raises(PrepError, match=r"__builtin__\.print, which is not allowed"):
        load_pickle(path)
    for content in (b"", b"hello", pickle.dumps({"a": [1]})[:-3]):
        path.write_bytes(content)
        with pytest.raises(PrepError, match="not a pickle of arrays"):
            load_pickle(path)
    assert "executed" not in capsys.readouterr().out


def test_files_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_toy(tmp_path / "from")
    (tmp_path / "from" / "ind.cora.test.index").write_text("517\n518\n")
    flags = ["--graph", "cora", "--from", str(tmp_path / "from"), "--out", str(tmp_path / "out")]
    assert prepare_planetoid.main(flags) == 1
    assert "has 2 rows instead of 3" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

"""Print time per epoch and peak memory of graph attention on random graphs of several sizes.

    python examples/benchmarks/graph_size.py [--sizes 20000:45000 40000:90000] [--epochs 3]

A size is NODES:EDGES (undirected). 20000:45000 is about PubMed. Every node has 50 of 500 features.
Each size runs in a process of its own, and its memory is that above the imported libraries.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from fairseq_stochattn.core.graph import Graph  # noqa: E402
from fairseq_stochattn.core.graph_network import GraphEncoder  # noqa: E402
from fairseq_stochattn.core.sparse import SparseRows  # noqa: E402
from fairseq_stochattn.core.stack import build_stacks  # noqa: E402
from fairseq_stochattn.methods.alignment import Alignment  # noqa: E402

FEATURES, PER_NODE, CLASSES = 500, 50, 3


def peak() -> float:
    """The peak memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(nodes: int, edges: int, epochs: int, alignment: str) -> None:
    """Train for some epochs; print seconds per epoch and MiB."""
    torch.manual_seed(1)
    before = peak()
    columns = torch.rand(nodes, FEATURES).topk(PER_NODE, dim=1)[1].sort(dim=1)[0].flatten()
    starts = torch.arange(nodes + 1) * PER_NODE
    features = SparseRows(starts, columns, torch.full((len(columns),), 1 / PER_NODE), FEATURES)
    # The square of a uniform number: some nodes have many more neighbours than others.
    pairs = (torch.rand(2, edges).square() * nodes).long()
    graph = Graph(torch.cat([pairs, pairs.flip(0)], dim=1), nodes)
    model = GraphEncoder(FEATURES, 8, CLASSES, (8, 8), 0.6, 0.6)
    stack = None
    if alignment != "none":
        chain = {"alignment": Alignment(distance=alignment)}
        stack = build_stacks(chain, {"encoder": list(model.layers)})["encoder"]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    times = []
    for _ in range(epochs + 1):
        started = time.process_time()
        if stack is not None:
            stack.clear()
        loss = model(features, graph)[:60].logsumexp(dim=1).mean()
        for layer in model.layers:
            for method in layer.attention_methods.values():
                loss = loss + 0.01 * sum(x.value / x.count for x in method.losses.values())
                method.losses = {}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.process_time() - started)
    seconds = sorted(times[1:])[epochs // 2]  # the first epoch allocates memory
    print(f"{graph.num_pairs} {seconds:.3f} {peak() - before:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["20000:45000", "40000:90000"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--alignment", choices=("none", "gan", "ot", "ct"), default="none")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = [tuple(map(int, size.split(":"))) for size in args.sizes]
    if args.one:
        torch.set_num_threads(1)
        measure(*sizes[0], args.epochs, args.alignment)
        return
    print(
        "| nodes | undirected edges | attended pairs | CPU seconds per epoch | peak memory (MiB) |"
    )
    print("|---|---|---|---|---|")
    for size, (nodes, edges) in zip(args.sizes, sizes, strict=True):
        words = ["--one", "--sizes", size, "--epochs", str(args.epochs)]
        words += ["--alignment", args.alignment]
        done = subprocess.run(
            [sys.executable, __file__, *words], capture_output=True, text=True, check=True
        )
        pairs, seconds, memory = done.stdout.split()
        print(f"| {nodes:,} | {edges:,} | {int(pairs):,} | {seconds} | {memory} |", flush=True)


if __name__ == "__main__":
    main()

"""``--task node_classification``: predicts the classes of nodes of one graph.

All nodes and edges are visible in training, but only the labels of the training nodes are used
(transductive learning). A split is one example: the nodes whose classes are predicted. An epoch is
therefore one update on the whole graph.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from omegaconf import MISSING
from torch import Tensor

from ..compat import UsageError, exit_on_bad_input
from .graph_file import GraphData, read_graph


@dataclass
class NodeClassificationConfig(FairseqDataclass):
    """The flags of the task."""

    data: str = field(
        default=MISSING, metadata={"help": "data directory that stochattn-prepare planetoid wrote"}
    )


class NodeDataset(FairseqDataset):
    """One example: the nodes of a split, with their classes."""

    def __init__(self, nodes: Tensor, labels: Tensor) -> None:
        self.nodes, self.labels = nodes, labels
        self.sizes = np.array([len(nodes)])

    def __len__(self) -> int:
        return 1 if len(self.nodes) else 0

    def __getitem__(self, index: int) -> int:
        return index

    def collater(self, samples: list[int]) -> dict[str, Any]:
        if not samples:
            return {}
        rows = len(samples)
        return {
            "id": torch.zeros(rows, dtype=torch.long),
            "net_input": {"nodes": self.nodes.repeat(rows, 1)},
            "target": self.labels.repeat(rows, 1),
            "nsentences": rows,
            "ntokens": rows * len(self.nodes),
        }

    def num_tokens(self, index: int) -> int:
        return len(self.nodes)

    def size(self, index: int) -> int:
        return len(self.nodes)


@register_task("node_classification", dataclass=NodeClassificationConfig)
class NodeClassificationTask(FairseqTask):
    """Predicts one class per node."""

    def __init__(self, cfg: NodeClassificationConfig, graph: GraphData) -> None:
        super().__init__(cfg)
        self.graph = graph
        self.tags = [str(number) for number in range(graph.num_classes)]  # names of the classes

    @classmethod
    def setup_task(cls, cfg: NodeClassificationConfig, **kwargs: Any) -> "NodeClassificationTask":
        with exit_on_bad_input():
            return cls(cfg, read_graph(Path(cfg.data)))

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> FairseqDataset:
        nodes = self.graph.splits.get(split)
        if nodes is None:
            known = ", ".join(self.graph.splits)
            raise UsageError(f"no {split} set in {self.cfg.data} (known: {known})")
        self.datasets[split] = NodeDataset(nodes, self.graph.labels[nodes])
        return self.datasets[split]

    def max_positions(self) -> int:
        return self.graph.graph.num_nodes

    @property
    def source_dictionary(self) -> None:
        return None

    @property
    def target_dictionary(self) -> None:
        return None

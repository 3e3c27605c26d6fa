"""``--task graph_to_text``: texts about knowledge graphs, with copied entities.

The data is that of ``stochattn-prepare webnlg`` or ``agenda``: SPLIT.jsonl, described in
core/graph_text_file.py, dict.graph.txt (words of entities and titles), dict.relation.txt and
dict.text.txt. The last symbols of dict.text.txt are those of entities: <entity_3> is entity 3 of
the graph at hand.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary, FairseqDataset
from fairseq.dataclass import FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from omegaconf import MISSING

from ..compat import UsageError, exit_on_bad_input
from ..core.graph_text_file import is_entity, read_graph_texts
from .graph_text_dataset import GraphTextDataset

PARTS = ("graph", "relation", "text")


@dataclass
class GraphToTextConfig(FairseqDataclass):
    """The flags of the task."""

    data: str = field(
        default=MISSING,
        metadata={"help": "data directory that stochattn-prepare webnlg or agenda wrote"},
    )
    max_target_positions: int = field(
        default=1024, metadata={"help": "largest number of tokens of a text"}
    )


@register_task("graph_to_text", dataclass=GraphToTextConfig)
class GraphToTextTask(FairseqTask):
    """Writes a text about every graph."""

    def __init__(self, cfg: GraphToTextConfig, dictionaries: dict[str, Dictionary]) -> None:
        super().__init__(cfg)
        self.words, self.relation_dictionary, self.texts = (dictionaries[x] for x in PARTS)
        symbols = self.texts.symbols
        entities = [number for number, symbol in enumerate(symbols) if is_entity(symbol)]
        if not entities or entities != list(range(entities[0], len(symbols))):
            raise UsageError(f"{cfg.data}/dict.text.txt does not end with the symbols of entities")
        self.first_entity = entities[0]
        self.has_titles = False

    @classmethod
    def setup_task(cls, cfg: GraphToTextConfig, **kwargs: Any) -> "GraphToTextTask":
        task = cls(cfg, {part: _dictionary(Path(cfg.data), part) for part in PARTS})
        # Whether the model reads titles must be known before it is built.
        with exit_on_bad_input():
            task.has_titles = any(
                (first := next(read_graph_texts(path), None)) is not None
                and first.title is not None
                for path in sorted(Path(cfg.data).glob("*.jsonl"))
            )
        return task

    def load_dataset(self, split: str, combine: bool = False, **kwargs: Any) -> FairseqDataset:
        path = Path(self.cfg.data) / f"{split}.jsonl"
        with exit_on_bad_input():
            self.datasets[split] = GraphTextDataset(
                read_graph_texts(path),
                self.words,
                self.relation_dictionary,
                self.texts,
                self.first_entity,
                self.has_titles,
                str(path),
            )
        return self.datasets[split]

    def max_positions(self) -> tuple[int, int]:
        """The largest number of nodes, which is not limited, and of tokens of a text."""
        return 100_000, self.cfg.max_target_positions

    @property
    def source_dictionary(self) -> Dictionary:
        return self.words

    @property
    def target_dictionary(self) -> Dictionary:
        return self.texts


def _dictionary(folder: Path, part: str) -> Dictionary:
    path = folder / f"dict.{part}.txt"
    if not path.is_file():
        raise UsageError(f"{path} does not exist: stochattn-prepare webnlg or agenda writes it")
    try:
        return Dictionary.load(str(path))
    except Exception as error:  # fairseq raises plain exceptions for damaged dictionaries
        raise UsageError(f"{path} is not a dictionary: {type(error).__name__}") from None

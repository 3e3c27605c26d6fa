"""Turns single sentences into model input. A sentence is a number in a data set, or a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.paired_batch import map_rows
from ..tasks.kinds import is_task
from .evaluation import Evaluation


@dataclass(frozen=True)
class Sentence:
    """A model's input for one sentence, and the tokens of the sentence as strings."""

    name: str  # the beginning of a title, or an empty string for sentences given as text
    net_input: dict[str, Any]  # a batch of one row
    source: list[str]  # input of the encoder
    # Input and target of the decoder at each position; both are the regions of an image, if the
    # sentence is a question about one.
    read: list[str]
    written: list[str]

    def tokens(self, site: str) -> tuple[list[str], list[str]]:
        """The tokens of the queries and of the keys at a site: encoder, decoder or cross."""
        if site == "encoder":
            return self.source, self.source
        return self.written, self.source if site == "cross" else self.read

    def copies(self, count: int) -> dict[str, Any]:
        """The model's input with ``count`` equal rows."""
        return map_rows(self.net_input, partial(torch.repeat_interleave, repeats=count, dim=0))


def sentences_of(evaluation: Evaluation, numbers: Sequence[int]) -> Iterator[Sentence]:
    """Yield the sentences of an evaluation that was loaded with ``ids=numbers``."""
    for number, batch in zip(numbers, evaluation.batches, strict=True):
        if "net_input" not in batch:
            raise InputError(
                "attention cannot be drawn for multiple choice: an example is several texts"
            )
        yield build_sentence(
            evaluation.task,
            evaluation.model,
            f"sentence {number},",
            batch["net_input"],
            batch.get("target"),
        )


def sentence_from(evaluation: Evaluation, text: str, target: str | None = None) -> Sentence:
    """A sentence from a text that is split into the subwords of the data.

    If ``target`` is None, a translation model translates the text by beam search.
    """
    task, model = evaluation.task, evaluation.model
    if is_task(task, "vqa"):
        raise InputError("a question needs an image: choose one of the data with --id")
    refuse_graphs(task)
    tokens = _encode(task.source_dictionary, text)
    longest = np.min(utils.resolve_max_positions(task.max_positions(), model.max_positions()))
    if len(tokens) > longest:
        raise InputError(f"the text has {len(tokens)} tokens, the model takes {longest}")
    eos = tokens[-1:]
    if isinstance(model, FairseqLanguageModel):
        read = torch.cat([eos, tokens[:-1]])
        return build_sentence(task, model, "", {"src_tokens": read[None]}, tokens[None])
    if not isinstance(model, FairseqEncoderDecoderModel):
        first = _first_token(task)
        if first is not None:
            tokens = torch.cat([tokens.new_tensor([first]), tokens])
        return build_sentence(task, model, "", _source(tokens), None)
    net_input = _source(tokens)
    if target is None:
        written = _translate(evaluation, net_input)
    else:
        written = _encode(task.target_dictionary, target)
    net_input["prev_output_tokens"] = torch.cat([written[-1:], written[:-1]])[None]
    return build_sentence(task, model, "", net_input, written[None])


def refuse_graphs(task: Any) -> None:
    """Raise ``InputError`` if the model reads graphs, whose nodes are no words of a text."""
    if is_task(task, "graph_to_text"):
        raise InputError("the attention of a graph_to_text model cannot be shown: it reads nodes")


def _source(tokens: Tensor) -> dict[str, Tensor]:
    return {"src_tokens": tokens[None], "src_lengths": torch.tensor([len(tokens)])}


def _first_token(task: Any) -> int | None:
    """The token that a task for encoders puts in front of every text, or None."""
    if is_task(task, "masked_lm"):
        return task.source_dictionary.bos()
    return getattr(task.cfg, "init_token", None)


def _encode(symbols: Dictionary, text: str) -> Tensor:
    """The token ids of a text, (N,), with eos at the end."""
    tokens = symbols.encode_line(text, add_if_not_exist=False, append_eos=True).long()
    if len(tokens) == 1:
        raise InputError("the text is empty")
    if tokens[:-1].eq(symbols.unk()).all():
        raise InputError(
            f"no word of '{text}' is in the dictionary: write it in the subwords of the data, "
            "separated by spaces"
        )
    return tokens


@torch.no_grad()
def _translate(evaluation: Evaluation, net_input: dict[str, Tensor]) -> Tensor:
    """The best translation by beam search, (N,), with eos at the end."""
    batch = {"id": torch.tensor([0]), "net_input": net_input}
    batch = utils.move_to_cuda(batch) if evaluation.cuda else batch
    generator = evaluation.task.build_generator([evaluation.model], GenerationConfig(beam=5))
    try:
        beams = evaluation.task.inference_step(generator, [evaluation.model], batch)
    finally:
        # Otherwise cross-attention would still expect several queries per source.
        generator.model.set_decoder_beam_size(1)
    return beams[0][0]["tokens"].cpu()


def build_sentence(
    task: Any, model: nn.Module, name: str, net_input: dict[str, Any], target: Tensor | None
) -> Sentence:
    """A sentence from a batch of one row, without padding.

    Even a single sentence has padding if --required-seq-len-multiple is set.
    """
    refuse_graphs(task)
    pad = task.source_dictionary.pad()
    net_input = {
        key: _unpadded(value, pad) if key in ("src_tokens", "prev_output_tokens") else value
        for key, value in net_input.items()
    }
    source = _strings(task.source_dictionary, net_input["src_tokens"])
    if isinstance(model, FairseqLanguageModel):
        written = _strings(task.source_dictionary, _unpadded(target, pad))
        read, source = source, []
    elif isinstance(model, FairseqEncoderDecoderModel):
        read = _strings(task.target_dictionary, net_input["prev_output_tokens"])
        written = _strings(task.target_dictionary, _unpadded(target, pad))
    elif "regions" in net_input:
        read = written = region_names(task, int(net_input["num_regions"]))
    else:
        read, written = [], []
    if next(model.parameters()).is_cuda:
        net_input = utils.move_to_cuda(net_input)
    return Sentence(name, net_input, source, read, written)


def region_names(task: Any, count: int) -> list[str]:
    """The names of an image's regions: row and column in the grid if there is one, or a number."""
    if task.layout.grid is None:
        return [str(number) for number in range(count)]
    columns = task.layout.grid[1]
    return [f"{number // columns},{number % columns}" for number in range(count)]


def _unpadded(tokens: Tensor, pad: int) -> Tensor:
    """The non-padding tokens, (1, L) → (1, N)."""
    return tokens[:, tokens[0].ne(pad)]


def _strings(symbols: Dictionary, tokens: Tensor) -> list[str]:
    return [symbols[number] for number in tokens[0].tolist()]

"""Single sentences for a trained model: from its data by number, or from text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from fairseq.data import Dictionary
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel
from fairseq.tasks import TASK_REGISTRY
from torch import Tensor

from fairseq_stochattn.analysis.evaluation import Evaluation
from fairseq_stochattn.errors import UsageError


@dataclass(frozen=True)
class Sentence:
    """What a model reads, as one batch of one row, and the tokens behind it."""

    name: str  # as a title begins
    net_input: dict[str, Any]
    source: list[str]  # behind the encoder
    read: list[str]  # behind the decoder: what is written so far
    written: list[str]  # what the decoder is to write at each position

    def tokens(self, site: str) -> tuple[list[str], list[str]]:
        """Queries and keys of the attention of a site."""
        if site == "encoder":
            return self.source, self.source
        return self.written, self.source if site == "cross" else self.read

    def copies(self, count: int) -> dict[str, Any]:
        """What the model reads, so many times in one batch."""
        return {
            name: value.repeat(count, *[1] * (value.dim() - 1))
            if isinstance(value, Tensor)
            else value
            for name, value in self.net_input.items()
        }


def sentences_of(evaluation: Evaluation, numbers: Sequence[int]) -> Iterator[Sentence]:
    """Those of an evaluation that was loaded for these numbers."""
    for number, sample in zip(numbers, evaluation.batches, strict=True):
        if "net_input" not in sample:
            raise UsageError("the model chooses between several texts: its attention is not drawn")
        yield _sentence(
            evaluation, f"sentence {number},", sample["net_input"], sample.get("target")
        )


def sentence_from(evaluation: Evaluation, text: str, target: str | None = None) -> Sentence:
    """A text in the subwords of the data; a translation that is not given is searched for."""
    task, model = evaluation.task, evaluation.model
    tokens = _encode(task.source_dictionary, text)
    eos = tokens[-1:]
    if isinstance(model, FairseqLanguageModel):
        read = torch.cat([eos, tokens[:-1]])
        return _sentence(evaluation, "", {"src_tokens": read[None]}, tokens[None])
    if not isinstance(model, FairseqEncoderDecoderModel):
        first = _first_token(task)
        if first is not None:
            tokens = torch.cat([tokens.new_tensor([first]), tokens])
        return _sentence(evaluation, "", _source(tokens), None)
    net_input = _source(tokens)
    if target is None:
        written = _translate(evaluation, net_input)
    else:
        written = _encode(task.target_dictionary, target)
    net_input["prev_output_tokens"] = torch.cat([written[-1:], written[:-1]])[None]
    return _sentence(evaluation, "", net_input, written[None])


def _source(tokens: Tensor) -> dict[str, Tensor]:
    return {"src_tokens": tokens[None], "src_lengths": torch.tensor([len(tokens)])}


def _first_token(task: Any) -> int | None:
    """What a task for encoders puts before every text."""
    if isinstance(task, TASK_REGISTRY["masked_lm"]):
        return task.source_dictionary.bos()
    return getattr(task.cfg, "init_token", None)


def _encode(symbols: Dictionary, text: str) -> Tensor:
    tokens = symbols.encode_line(text, add_if_not_exist=False, append_eos=True).long()
    if len(tokens) == 1:
        raise UsageError("the text is empty")
    if tokens[:-1].eq(symbols.unk()).all():
        raise UsageError(
            f"no word of '{text}' is in the dictionary: write it in the subwords of the data, "
            "spaces between them"
        )
    return tokens


@torch.no_grad()
def _translate(evaluation: Evaluation, net_input: dict[str, Tensor]) -> Tensor:
    sample = {"id": torch.tensor([0]), "net_input": net_input}
    sample = utils.move_to_cuda(sample) if evaluation.cuda else sample
    generator = evaluation.task.build_generator([evaluation.model], GenerationConfig(beam=5))
    try:
        found = evaluation.task.inference_step(generator, [evaluation.model], sample)
    finally:
        generator.model.set_decoder_beam_size(1)  # else cross-attention goes on sharing keys
    return found[0][0]["tokens"].cpu()


def _sentence(
    evaluation: Evaluation, name: str, net_input: dict[str, Any], target: Tensor | None
) -> Sentence:
    """Without padding, which --required-seq-len-multiple puts to single sentences too."""
    task, model = evaluation.task, evaluation.model
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
    else:
        read, written = [], []
    if evaluation.cuda:
        net_input = utils.move_to_cuda(net_input)
    return Sentence(name, net_input, source, read, written)


def _unpadded(tokens: Tensor, pad: int) -> Tensor:
    """(1, L) → (1, N)."""
    return tokens[:, tokens[0].ne(pad)]


def _strings(symbols: Dictionary, tokens: Tensor) -> list[str]:
    return [symbols[number] for number in tokens[0].tolist()]

"""What a task asks a model, as one choice between classes after the other.

The tokens of a translation or of a text (each given those before it), masked tokens, sentences,
options, words. A question says where in a batch a class is asked for, and what the model says
there. Its last layer is applied apart, to the asked positions alone and to a few at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from fairseq.data import Dictionary
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.tasks.translation import TranslationTask
from torch import Tensor, nn

from fairseq_stochattn.errors import UsageError
from fairseq_stochattn.predictions import Choice, Kind, Regression, Tagging, kind_of
from fairseq_stochattn.tasks.electra import ElectraTask

WINDOW = 12  # tokens that are shown on either side of one
Decode = Callable[[Dictionary, Tensor], str]


class Question(ABC):
    """Of every position that is asked: features, classes, target, and how to show it."""

    of_tokens = True  # the classes are a vocabulary: perplexity has a meaning

    def __init__(self, task: Any) -> None:
        self.task = task
        self.symbols: Dictionary = task.target_dictionary

    @abstractmethod
    def features(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """(B, …, d): what the last layer is applied to; ``inputs`` has the batch's net_input."""

    def log_probs(self, model: nn.Module, features: Tensor) -> Tensor:
        """(K, n, d) → (K, n, classes)."""
        logits = model.decoder.output_layer(features)
        return model.get_normalized_probs((logits, None), log_probs=True, sample=None)

    def asked(self, sample: dict[str, Any]) -> Tensor:
        """(B, …): where there is a class to predict."""
        return sample["target"].ne(self.symbols.pad())

    def target(self, sample: dict[str, Any]) -> Tensor | None:
        """(B, …): the right classes, None in a set without labels."""
        return sample["target"]

    def class_name(self, number: int) -> str:
        return self.symbols[number]

    def show(self, sample: dict[str, Any], position: int, decode: Decode) -> str:
        """The context of a prediction in a batch of one, with [?] where a token is to come."""
        tokens = sample["net_input"]["src_tokens"][0, : position + 1][-WINDOW:]
        return f"{decode(self.symbols, tokens)} [?]"


class Translating(Question):
    """The next token of the reference, given the source and the reference so far."""

    def features(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        return model.extract_features(**inputs["net_input"])[0]

    def asked(self, sample: dict[str, Any]) -> Tensor:
        if sample.get("target") is None:
            raise UsageError("the data has no references: tokens are scored by teacher forcing")
        return super().asked(sample)

    def show(self, sample: dict[str, Any], position: int, decode: Decode) -> str:
        source = decode(self.task.source_dictionary, sample["net_input"]["src_tokens"][0])
        before = decode(self.symbols, sample["target"][0, :position])
        return f"{source} → {before} [?]"


class Continuing(Question):
    """The next token of a text."""

    def __init__(self, task: LanguageModelingTask) -> None:
        super().__init__(task)
        if task.targets != ["future"]:
            raise UsageError("only language models of the next token are evaluated")

    def features(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        return model.extract_features(inputs["net_input"]["src_tokens"], encoder_out=None)[0]


class Filling(Question):
    """The masked tokens of a text."""

    def features(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        return model(**inputs["net_input"], features_only=True)[0]

    def log_probs(self, model: nn.Module, features: Tensor) -> Tensor:
        logits = model.encoder.output_layer(features)
        return model.get_normalized_probs((logits, None), log_probs=True)

    def show(self, sample: dict[str, Any], position: int, decode: Decode) -> str:
        return _marked(self.symbols, sample["net_input"]["src_tokens"][0], position, decode)


class Labelling(Question):
    """The class of a sentence, the right option, the tag of a word."""

    of_tokens = False

    def __init__(self, kind: Kind) -> None:
        super().__init__(kind.task)
        self.kind = kind

    def features(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        return self.kind.logits(model, inputs)  # the heads are small

    def log_probs(self, model: nn.Module, features: Tensor) -> Tensor:
        # Few classes cost nothing; samples that hardly differ are told apart.
        return features.double().log_softmax(dim=-1)

    def asked(self, sample: dict[str, Any]) -> Tensor:
        return self.kind.asked(sample)

    def target(self, sample: dict[str, Any]) -> Tensor | None:
        return self.kind.target(sample)

    def class_name(self, number: int) -> str:
        return self.kind.class_name(number)

    def show(self, sample: dict[str, Any], position: int, decode: Decode) -> str:
        symbols = self.task.source_dictionary
        if isinstance(self.kind, Choice):
            options = (x["src_tokens"][0] for k, x in sample.items() if k.startswith("net_input"))
            return " | ".join(decode(symbols, option) for option in options)
        tokens = sample["net_input"]["src_tokens"][0]
        if isinstance(self.kind, Tagging):
            return _marked(symbols, tokens, position, decode)
        return decode(symbols, tokens)


def _marked(symbols: Dictionary, tokens: Tensor, position: int, decode: Decode) -> str:
    """Some tokens, the one at ``position`` in brackets."""
    before = decode(symbols, tokens[max(0, position - WINDOW) : position])
    after = decode(symbols, tokens[position + 1 : position + 1 + WINDOW])
    return f"{before} [{symbols[int(tokens[position])]}] {after}".strip()


def question_of(task: Any) -> Question:
    """What this task asks; a regression and ELECTRA's pre-training have no classes to measure."""
    if isinstance(task, ElectraTask):
        raise UsageError("ELECTRA is evaluated after fine-tuning: its pre-training has two models")
    for kind, question in (
        (TranslationTask, Translating),
        (LanguageModelingTask, Continuing),
        (MaskedLMTask, Filling),
    ):
        if isinstance(task, kind):
            return question(task)
    kind = kind_of(task)
    if isinstance(kind, Regression):
        raise UsageError(
            "a regression predicts no probabilities, which all these measures are of: "
            "stochattn-predict has its correlations"
        )
    return Labelling(kind)

"""A common interface to the predictions of all tasks, used to measure their uncertainty.

Every prediction is a choice between classes at a position. Depending on the task, a position is a
token of a translation, a token of a text, a masked token, a whole sentence, a set of options or a
word. A ``Question`` marks the positions where the model predicts a class, and computes the
log-probabilities of the classes there. Features and last layer are separate functions, because the
last layer is applied only to marked positions, and to a few of them at a time to save memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from fairseq.data import Dictionary
from fairseq.tasks.language_modeling import LanguageModelingTask
from torch import Tensor, nn

from ..core.errors import InputError
from .labels import Choice, Labels, NodeClasses, Tagging
from .span_labels import SpanPositions

WINDOW = 12  # number of tokens that are shown on either side of a position
Decode = Callable[[Dictionary, Tensor], str]


class Question(ABC):
    """The features, log-probabilities, target and text of every predicted position."""

    classes_are_tokens = True  # whether the classes are tokens, so that perplexity is meaningful
    words_are_attended = True  # whether the model attends to the tokens of a source
    made_at_tokens = True  # whether the prediction at position n is made at token n of the input

    def __init__(self, task: Any) -> None:
        self.task = task
        self.symbols: Dictionary = task.target_dictionary

    @abstractmethod
    def features(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """Return the input of the last layer, (B, …, d), for the batch ``inputs``."""

    def log_probs(self, model: nn.Module, features: Tensor) -> Tensor:
        """Apply the last layer to features (K, n, d); return log-probabilities (K, n, classes)."""
        logits = model.decoder.output_layer(features)
        return model.get_normalized_probs((logits, None), log_probs=True, sample=None)

    def predicted_positions(self, batch: dict[str, Any]) -> Tensor:
        """Return a mask of the positions where a class is predicted, (B, …)."""
        return batch["target"].ne(self.symbols.pad())

    def target(self, batch: dict[str, Any]) -> Tensor | None:
        """Return the correct classes, (B, …), or None in a set without labels."""
        return batch["target"]

    def class_name(self, number: int) -> str:
        return self.symbols[number]

    def show(self, batch: dict[str, Any], position: int, decode: Decode) -> str:
        """Return the text around a position in a batch of one example; [?] marks the prediction."""
        tokens = batch["net_input"]["src_tokens"][0, : position + 1][-WINDOW:]
        return f"{decode(self.symbols, tokens)} [?]"


class TranslationTokens(Question):
    """Translation: predicts the next token of the reference from the source and earlier tokens."""

    def features(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        return model.extract_features(**inputs["net_input"])[0]

    def predicted_positions(self, batch: dict[str, Any]) -> Tensor:
        if batch.get("target") is None:
            raise InputError("the data has no references, which scoring by teacher forcing needs")
        return super().predicted_positions(batch)

    def show(self, batch: dict[str, Any], position: int, decode: Decode) -> str:
        source = decode(self.task.source_dictionary, batch["net_input"]["src_tokens"][0])
        before = decode(self.symbols, batch["target"][0, :position])
        return f"{source} → {before} [?]"


class GraphTextTokens(TranslationTokens):
    """Graph to text: predicts the next word or entity from the graph and earlier tokens."""

    words_are_attended = False  # but to nodes

    def features(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        return model(**inputs["net_input"])[0]  # includes the last layer, which reads the graph

    def log_probs(self, model: nn.Module, features: Tensor) -> Tensor:
        return features.log_softmax(dim=-1)


class NextTokens(Question):
    """Language modelling: predicts the next token of a text from the earlier tokens."""

    def __init__(self, task: LanguageModelingTask) -> None:
        super().__init__(task)
        if task.targets != ["future"]:
            raise InputError(
                "only language models that predict the next token can be evaluated; this one was "
                f"trained with the targets {', '.join(task.targets)}"
            )

    def features(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        return model.extract_features(inputs["net_input"]["src_tokens"], encoder_out=None)[0]


class MaskedTokens(Question):
    """Masked language modelling: predicts the masked tokens of a text."""

    def features(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        return model(**inputs["net_input"], features_only=True)[0]

    def log_probs(self, model: nn.Module, features: Tensor) -> Tensor:
        logits = model.encoder.output_layer(features)
        return model.get_normalized_probs((logits, None), log_probs=True)

    def show(self, batch: dict[str, Any], position: int, decode: Decode) -> str:
        return _marked(self.symbols, batch["net_input"]["src_tokens"][0], position, decode)


class LabelPredictions(Question):
    """Fine-tuned tasks: predicts a sentence's class, the correct option, a word's tag or a span."""

    classes_are_tokens = False

    def __init__(self, labels: Labels) -> None:
        super().__init__(labels.task)
        self.labels = labels
        self.words_are_attended = labels.words_are_attended
        self.made_at_tokens = not isinstance(labels, SpanPositions)

    def features(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        return self.labels.logits(model, inputs)  # includes the last layer, which is small here

    def log_probs(self, model: nn.Module, features: Tensor) -> Tensor:
        # Double precision is cheap with few classes and resolves small differences between samples.
        return features.double().log_softmax(dim=-1)

    def predicted_positions(self, batch: dict[str, Any]) -> Tensor:
        return self.labels.predicted_positions(batch)

    def target(self, batch: dict[str, Any]) -> Tensor | None:
        return self.labels.target(batch)

    def class_name(self, number: int) -> str:
        return self.labels.class_name(number)

    def show(self, batch: dict[str, Any], position: int, decode: Decode) -> str:
        if isinstance(self.labels, NodeClasses):
            return f"node {int(batch['net_input']['nodes'][0, position])}"
        symbols = self.task.source_dictionary
        if isinstance(self.labels, Choice):
            options = (x["src_tokens"][0] for k, x in batch.items() if k.startswith("net_input"))
            return " | ".join(decode(symbols, option) for option in options)
        tokens = batch["net_input"]["src_tokens"][0]
        if isinstance(self.labels, Tagging):
            return _marked(symbols, tokens, position, decode)
        if isinstance(self.labels, SpanPositions):
            return f"{('start', 'end')[position]}: {decode(symbols, tokens)}"
        return decode(symbols, tokens)


def _marked(symbols: Dictionary, tokens: Tensor, position: int, decode: Decode) -> str:
    """Return the text around ``position``, with the token there in brackets."""
    before = decode(symbols, tokens[max(0, position - WINDOW) : position])
    after = decode(symbols, tokens[position + 1 : position + 1 + WINDOW])
    return f"{before} [{symbols[int(tokens[position])]}] {after}".strip()

"""The part of a model that every format carries: token ids in, probabilities or scores out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from export.graph.tagger_function import tagger_function, tagger_input_names, tagger_specs
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, TAG
from kmha.document_windows import window_shape_of
from kmha.errors import InputError
from kmha.features import TextInputs
from kmha.layers.attention import stack_heads
from kmha.text.preprocessor import Preprocessor

PROBABILITIES, SCORES, ATTENTION = "probabilities", "scores", "attention"


def output_name(bundle: Bundle) -> str:
    """What the first output is called: the scores of pairs, or the probabilities of labels or tags."""
    return PROBABILITIES if bundle.task in (CLASSIFY, TAG) or bundle.model.target == "classes" else SCORES


def input_names(bundle: Bundle) -> list[str]:
    """Names of the inputs: token ids and padding mask of every text, cut in every way; of taggers words too."""
    if bundle.task == TAG:
        return tagger_input_names(bundle)
    return [name for given in bundle.preprocessor.inputs for name in (given.ids, given.mask)]


def check_attention(bundle: Bundle) -> None:
    """Raises InputError where a file would answer attention weights of windows, which are those of no text."""
    windows = window_shape_of(bundle.model)
    if windows is not None:
        raise InputError(
            f"--attention: expected a run that reads texts whole, got one that reads windows of {windows.length} tokens"
        )


def ids_function(bundle: Bundle, with_attention: bool = False) -> Any:
    """A graph function of a bundle's model; trace it with `ids_specs`.

    Args:
        bundle: A trained bundle.
        with_attention: Whether to answer the attention weights too.

    Returns:
        A `tf.function` of the `input_names` in their order, int32 [B, T] each, that gives {"probabilities": float32
        [B, C]}, of pairs {"scores": float32 [B, 1]}; and, if asked, of every layer L and head N "attention": float32
        [B, L, N, T, T], of pairs by who looks at whom, such as "attention_a_to_b": float32 [B, L, N, T, S]. What a
        tagger takes and gives is in `export.graph.tagger_function`.
    """
    if bundle.task == TAG:
        return tf.function(tagger_function(bundle, with_attention), autograph=False)
    model, names, output = bundle.model, input_names(bundle), output_name(bundle)

    def answer(*inputs):
        features = dict(zip(names, inputs, strict=True))
        logits = model(features, return_attention_weights=with_attention, training=False)
        logits, weights = logits if with_attention else (logits, {})
        answers = {output: model.probabilities(logits)}
        named = weights if isinstance(weights, dict) else {ATTENTION: weights}
        return answers | {name: stack_heads(each) for name, each in named.items()}

    # Without autograph: there is nothing to rewrite, and a graph of plain ops converts everywhere.
    return tf.function(answer, autograph=False)


def ids_specs(bundle: Bundle, batch: int | None = None, length: int | None = None) -> list[tf.TensorSpec]:
    """What `ids_function` takes: int32 [B, T] by name, None where it may vary; of words [B, T - 2]."""
    if bundle.task == TAG:
        return tagger_specs(bundle, batch, length)
    return [tf.TensorSpec([batch, length], tf.int32, name) for name in input_names(bundle)]


class TextCutter:
    """Cuts columns of texts into the features that a model reads.

    A tokenizer holds its vocabulary as a constant, megabytes of it: written once for each call, were it no function.

    Args:
        bundle: A trained bundle.
    """

    def __init__(self, bundle: Bundle):
        self.inputs: list[TextInputs] = list(bundle.preprocessor.inputs)
        self._functions = {id(given.part): _function(given.part) for given in self.inputs}

    def cut(self, columns: Mapping[int, Any]) -> list[tuple[TextInputs, Any]]:
        """Token ids, ragged int32 [B, None], of some of the model's texts, string [B] each, by their number."""
        return [
            (given, self._functions[id(given.part)](columns[given.text]))
            for given in self.inputs
            if given.text in columns
        ]

    def features(self, columns: Mapping[int, Any]) -> dict[str, Any]:
        """Features int32 [B, T] of such columns, by name."""
        return padded(self.cut(columns))


def padded(cut: Sequence[tuple[TextInputs, Any]]) -> dict[str, Any]:
    """Features int32 [B, T] of ragged token ids, each as long as its longest row."""
    features = {}
    for given, sequences in cut:
        features |= given.part.pad_sequences(sequences, given.ids, given.mask)
    return features


def _function(part: Preprocessor) -> Callable:
    return tf.function(lambda texts: part.add_special_tokens(part.tokenize(texts)), autograph=False)

"""The graph function that every format contains: token ids in, probabilities or scores out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from export.graph.tagger_function import tagger_function, tagger_input_names, tagger_specs
from export.names import ATTENTION, PROBABILITIES, SCORES
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, TAG
from kmha.document_windows import window_shape_of
from kmha.errors import InputError
from kmha.features import TextInputs
from kmha.layers.attention import stack_heads
from kmha.text.preprocessor import Preprocessor


def output_name(bundle: Bundle) -> str:
    """Name of the first output: the scores of pairs, or the probabilities of labels or tags."""
    return PROBABILITIES if bundle.task in (CLASSIFY, TAG) or bundle.model.target == "classes" else SCORES


def input_names(bundle: Bundle) -> list[str]:
    """Names of the inputs: token ids and padding mask of every text and tokenizer; of taggers words too."""
    if bundle.task == TAG:
        return tagger_input_names(bundle)
    return [name for each in bundle.preprocessor.inputs for name in (each.ids, each.mask)]


def check_attention(bundle: Bundle) -> None:
    """Raises InputError for a model that reads windows: their attention weights do not belong to one text."""
    windows = window_shape_of(bundle.model)
    if windows is not None:
        raise InputError(
            f"--attention: expected a run that reads whole texts, got one that reads windows of {windows.length} tokens"
        )


def ids_function(bundle: Bundle, with_attention: bool = False) -> Any:
    """A graph function of a bundle's model; trace it with `ids_specs`.

    Args:
        bundle: A trained bundle.
        with_attention: Whether to return the attention weights.

    Returns:
        A `tf.function` of the `input_names` in their order, int32 [B, T] each, that returns {"probabilities": float32
        [B, C]}, of pairs {"scores": float32 [B, 1]}; with attention also, of every layer L and head N, "attention":
        float32 [B, L, N, T, T], of pairs by direction, such as "attention_a_to_b": float32 [B, L, N, T, S]. The inputs
        and outputs of a tagger are in `export.graph.tagger_function`.
    """
    if bundle.task == TAG:
        return tf.function(tagger_function(bundle, with_attention), autograph=False)
    model, names, output = bundle.model, input_names(bundle), output_name(bundle)

    def predict(*inputs):
        features = dict(zip(names, inputs, strict=True))
        logits = model(features, return_attention_weights=with_attention, training=False)
        logits, weights = logits if with_attention else (logits, {})
        named = weights if isinstance(weights, dict) else {ATTENTION: weights}
        return {output: model.probabilities(logits)} | {
            name: stack_heads(each) for name, each in named.items()
        }

    # There is no control flow for autograph to rewrite, and a graph of plain ops converts everywhere.
    return tf.function(predict, autograph=False)


def ids_specs(bundle: Bundle, batch: int | None = None, length: int | None = None) -> list[tf.TensorSpec]:
    """Input specs of `ids_function`: int32 [B, T] by name, None where it may vary; of words [B, T - 2]."""
    if bundle.task == TAG:
        return tagger_specs(bundle, batch, length)
    return [tf.TensorSpec([batch, length], tf.int32, name) for name in input_names(bundle)]


class GraphTokenizer:
    """Tokenizes columns of texts in a graph into the features that a model reads.

    The vocabulary is a constant of megabytes. Each tokenizer is a tf.function, so that the graph contains it once.

    Args:
        bundle: A trained bundle.
    """

    def __init__(self, bundle: Bundle):
        self.inputs: list[TextInputs] = list(bundle.preprocessor.inputs)
        self._functions = {id(each.part): _function(each.part) for each in self.inputs}

    def tokenize(self, columns: Mapping[int, Any]) -> list[tuple[TextInputs, Any]]:
        """Token ids, ragged int32 [B, None], of some of the model's texts, string [B] each, by number from 0."""
        return [
            (each, self._functions[id(each.part)](columns[each.text]))
            for each in self.inputs
            if each.text in columns
        ]

    def features(self, columns: Mapping[int, Any]) -> dict[str, Any]:
        """Features int32 [B, T] of such columns, by name."""
        return pad_tokens(self.tokenize(columns))


def pad_tokens(tokens: Sequence[tuple[TextInputs, Any]]) -> dict[str, Any]:
    """Features int32 [B, T] of ragged token ids, each as long as its longest row."""
    features = {}
    for each, sequences in tokens:
        features |= each.part.pad_sequences(sequences, each.ids, each.mask)
    return features


def _function(part: Preprocessor) -> Callable:
    return tf.function(lambda texts: part.add_special_tokens(part.tokenize(texts)), autograph=False)

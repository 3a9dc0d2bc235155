"""The graph of ids that files for devices carry, and features of rows to try it on."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.graph.embedding import VECTORS, vectors_function
from export.graph.model_function import ids_function, input_names
from export.graph.tagger_function import window_features
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, MATCH, TAG
from kmha.features import SIDES

# Answered where a run has no sample.
PLAIN_TEXTS = ("", "a", "one two three", "一二三")


def device_function(bundle: Bundle, with_attention: bool = False, with_vectors: bool = False) -> Any:
    """As `ids_function`; a matcher of the bi form also gives the vectors that it compares.

    With the vectors of documents kept, a score is one product: scale * (vector_a · vector_b) + bias.

    Args:
        bundle: A trained bundle.
        with_attention: Whether to answer the attention weights too.
        with_vectors: Whether a classifier gives the vectors of its texts too.

    Returns:
        A plain function of the `input_names` in their order, int32 [B, T] each, that gives what `ids_function` does;
        in the bi form "vectors_a" and "vectors_b", of a classifier, if asked, "vectors": float32 [B, D] of length 1.
    """
    answer = ids_function(bundle, with_attention).python_function
    names = input_names(bundle)
    if with_vectors and bundle.task == CLASSIFY:
        vectors = vectors_function(bundle, 0).python_function
        return lambda *inputs: answer(*inputs) | {VECTORS: vectors(*inputs)}
    if bundle.task != MATCH or bundle.model.form != "bi":
        return answer

    def with_both(*inputs):
        features = dict(zip(names, inputs, strict=True))
        return answer(*inputs) | {vectors_name(side): bundle.model.vectors(features, side) for side in SIDES}

    return with_both


def vectors_name(side: str) -> str:
    """What the vector of one side is called."""
    return f"vectors_{side}"


def sample_rows(bundle: Bundle, most: int | None = None) -> list[Any]:
    """The bundle's sample, or a few plain texts, or pairs of them, where an old run has none; of a tagger words."""
    if bundle.task == TAG:
        return [text.split() for text in (bundle.sample or PLAIN_TEXTS)[:most]]
    if bundle.sample:
        return bundle.sample[:most]
    if bundle.preprocessor.num_texts == 1:
        return list(PLAIN_TEXTS)
    return list(zip(PLAIN_TEXTS, PLAIN_TEXTS[::-1], strict=True))


def features_of(bundle: Bundle, rows: Sequence[Any], length: int | None = None) -> dict[str, np.ndarray]:
    """Features of texts, or of pairs of texts, cut to a length with both special tokens kept; of a tagger of windows.

    Args:
        bundle: A trained bundle.
        rows: Texts, pairs, or lists of words.
        length: Of every sequence, or the longest that its way to cut allows where that is less; None cuts nothing and
            pads to the longest of the rows.

    Returns:
        int32 [B, T] by name; of a tagger what `window_features` gives.
    """
    if bundle.task == TAG:
        return window_features(bundle, rows, length)
    texts = bundle.preprocessor
    columns: Any = [rows] if texts.num_texts == 1 else list(zip(*rows, strict=True))
    sequences, lengths = [], []
    for given in texts.inputs:
        part = given.part
        tokens = part.tokenize(tf.constant(list(columns[given.text]), tf.string))
        lengths.append(length and min(length, part.max_length))
        sequences.append(part.add_special_tokens(tokens if length is None else tokens[:, : lengths[-1] - 2]))
    made = texts.pad(sequences, None if length is None else lengths)
    return {name: values.numpy() for name, values in made.items()}

"""The graph function of token ids in device files, its lengths, and features of sample rows to test it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from export.graph.model_function import ids_function, input_names, vectors_function, window_features
from export.names import VECTORS
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, MATCH, TAG
from kmha.errors import InputError
from kmha.features import MIN_WINDOW_LENGTH, SIDES

SHORTEST, STEP = 3, 8
# The sample of a run that has none.
PLAIN_TEXTS = ("", "a", "one two three", "一二三")


def device_function(bundle: Bundle, with_attention: bool = False, with_vectors: bool = False) -> Any:
    """As `ids_function`, a plain function; a bi-encoder also returns the vectors that it compares.

    They are "vectors_a" and "vectors_b", float32 [B, D] of length 1; with stored document vectors, a score is one
    product: scale * (vector_a · vector_b) + bias. A classifier returns "vectors" if `with_vectors` is set.
    """
    predict = ids_function(bundle, with_attention).python_function
    names = input_names(bundle)
    if with_vectors and bundle.task == CLASSIFY:
        vectors = vectors_function(bundle, 0).python_function
        return lambda *inputs: predict(*inputs) | {VECTORS: vectors(*inputs)}
    if bundle.task != MATCH or bundle.model.form != "bi":
        return predict

    def with_both(*inputs):
        features = dict(zip(names, inputs, strict=True))
        return predict(*inputs) | {vectors_name(side): bundle.model.vectors(features, side) for side in SIDES}

    return with_both


def vectors_name(side: str) -> str:
    """Name of the output for the vector of text "a" or "b"."""
    return f"vectors_{side}"


def sample_rows(bundle: Bundle, most: int | None = None) -> list[Any]:
    """The bundle's sample, or plain texts or pairs where an old run has none; of a tagger lists of words."""
    if bundle.task == TAG:
        return [text.split() for text in (bundle.sample or PLAIN_TEXTS)[:most]]
    if bundle.sample:
        return bundle.sample[:most]
    if bundle.preprocessor.num_texts == 1:
        return list(PLAIN_TEXTS)
    return list(zip(PLAIN_TEXTS, PLAIN_TEXTS[::-1], strict=True))


def features_of(bundle: Bundle, rows: Sequence[Any], length: int | None = None) -> dict[str, np.ndarray]:
    """Features of texts or pairs, truncated to a length with both special tokens retained; of a tagger of windows.

    The length, or a tokenizer's longest if that is less, is that of every sequence; None truncates nothing and pads
    to the longest row. Returns int32 [B, T] by name; of a tagger what `window_features` gives.
    """
    if bundle.task == TAG:
        return window_features(bundle, rows, length)
    texts = bundle.preprocessor
    columns: Any = [rows] if texts.num_texts == 1 else list(zip(*rows, strict=True))
    sequences, lengths = [], []
    for each in texts.inputs:
        part = each.part
        tokens = part.tokenize(tf.constant(list(columns[each.text]), tf.string))
        lengths.append(length and min(length, part.max_length))
        sequences.append(part.add_special_tokens(tokens if length is None else tokens[:, : lengths[-1] - 2]))
    made = texts.pad(sequences, None if length is None else lengths)
    return {name: values.numpy() for name, values in made.items()}


def longest_length(bundle: Bundle) -> int:
    """The most tokens of a text, special ones included, over all tokenizers."""
    return max(each.part.max_length for each in bundle.preprocessor.inputs)


def chosen_lengths(bundle: Bundle, lengths: Sequence[int] = ()) -> list[int]:
    """The lengths to export, ascending; by default the 99th percentile of the training texts, rounded up.

    A tagger's default is the longest, because the tags of a sentence depend on the length of its windows. Raises
    InputError for a length below 3, of a tagger below 8, or above the run's longest.
    """
    shortest = MIN_WINDOW_LENGTH if bundle.task == TAG else SHORTEST
    longest = longest_length(bundle)
    if not lengths and bundle.task == TAG:
        return [longest]
    if not lengths:
        default = bundle.details.get("lengths", {}).get("p99", longest)
        return [max(SHORTEST, min(longest, -(-default // STEP) * STEP))]
    for length in lengths:
        if not shortest <= length <= longest:
            raise InputError(f"--length: expected {shortest} to the run's {longest}, got {length}")
    return sorted(set(lengths))

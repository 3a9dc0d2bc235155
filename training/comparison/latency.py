"""Latency of one text of each length, with all candidates in turns."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS
from kmha.text.preprocessor import Preprocessor
from training.runtime.round_robin import time_in_turns

# The fastest of several calls counts.
CALLS = 3
# From a length to a call that predicts one text; None if the candidate cannot read so many tokens.
Caller = Callable[[int], Callable[[], Any] | None]


def model_caller(model: Any, vocabulary_size: int, max_tokens: int) -> Caller:
    """Calls a model with token ids, in one graph for all lengths."""
    spec = tf.TensorSpec([1, None], tf.int32)

    @tf.function(input_signature=[spec, spec], autograph=False)
    def predict(ids, mask):
        features = {TOKEN_IDS: ids, SEGMENT_IDS: tf.zeros_like(ids), PADDING_MASK: mask}
        return model.probabilities(model(features, training=False))

    def caller(length: int) -> Callable[[], Any] | None:
        if length > max_tokens:
            return None
        ids = np.random.default_rng(length).integers(
            min(5, vocabulary_size - 1), vocabulary_size, (1, length)
        )
        ids, mask = tf.constant(ids, tf.int32), tf.ones([1, length], tf.int32)
        return lambda: predict(ids, mask).numpy()

    return caller


def linear_caller(fitted: Any, preprocessor: Preprocessor, texts: Sequence[str]) -> Caller:
    """Calls a linear model with text: splitting it into words is most of its work."""

    def caller(length: int) -> Callable[[], Any]:
        text = [text_of_length(preprocessor, texts, length)]
        return lambda: fitted.predict(text)

    return caller


def text_of_length(preprocessor: Preprocessor, texts: Sequence[str], length: int) -> str:
    """Joins texts and truncates them to about so many tokens, special tokens included."""
    whole = " ".join(texts)
    while whole.strip() and _tokens(preprocessor, whole[: 64 * length]) < length and len(whole) < 64 * length:
        whole = f"{whole} {whole}"
    low, high = 0, min(len(whole), 64 * length)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _tokens(preprocessor, whole[:middle]) <= length else (low, middle)
    return whole[:low]


def _tokens(preprocessor: Preprocessor, text: str) -> int:
    return int(preprocessor.tokenize(tf.constant([text.encode()])).row_lengths()[0]) + 2


def latencies(
    callers: Mapping[str, Caller],
    lengths: Sequence[int],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[int, float]]:
    """Milliseconds of one text by candidate and length: median of the rounds, in each the fastest of three calls."""
    calls = {name: [caller(length) for length in lengths] for name, caller in callers.items()}
    # The untimed call warms the caches, and traces in the first round.
    seconds = time_in_turns(calls, rounds, warm_ups=1, repeats=CALLS, clock=clock)
    return {
        name: {
            length: 1e3 * statistics.median(each)
            for length, each in zip(lengths, by_length, strict=True)
            if each
        }
        for name, by_length in seconds.items()
    }

"""Time to answer one text of each length, all candidates in turns."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS
from kmha.text.preprocessor import Preprocessor

# Of several calls the fastest counts, the one that nobody interrupted.
CALLS = 3
# To its caller: a call that answers one text of a length, or None where it cannot be so long.
Caller = Callable[[int], Callable[[], Any] | None]


def model_caller(model: Any, vocabulary_size: int, longest: int) -> Caller:
    """Token ids to probabilities, in one graph for every length.

    Args:
        model: A built classifier.
        vocabulary_size: Ids are drawn below it.
        longest: Tokens that it can take.
    """
    spec = tf.TensorSpec([1, None], tf.int32)

    @tf.function(input_signature=[spec, spec], autograph=False)
    def answer(ids, mask):
        features = {TOKEN_IDS: ids, SEGMENT_IDS: tf.zeros_like(ids), PADDING_MASK: mask}
        return model.probabilities(model(features, training=False))

    def caller(length: int) -> Callable[[], Any] | None:
        if length > longest:
            return None
        ids = np.random.default_rng(length).integers(
            min(5, vocabulary_size - 1), vocabulary_size, (1, length)
        )
        ids, mask = tf.constant(ids, tf.int32), tf.ones([1, length], tf.int32)
        return lambda: answer(ids, mask).numpy()

    return caller


def linear_caller(fitted: Any, preprocessor: Preprocessor, texts: Sequence[str]) -> Caller:
    """Text to label, cutting into words included: counting them is most of what the model does."""

    def caller(length: int) -> Callable[[], Any]:
        text = [text_of_length(preprocessor, texts, length)]
        return lambda: fitted.predict(text)

    return caller


def text_of_length(preprocessor: Preprocessor, texts: Sequence[str], length: int) -> str:
    """Texts one after the other, cut off where they have about so many tokens, the special ones included."""
    whole = " ".join(texts)
    # Doubled until it is long enough, however short the texts are.
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
    """Milliseconds of one text by candidate and length: the middle round, of each the fastest of three calls.

    Args:
        callers: The candidates.
        lengths: In tokens.
        rounds: Turns of all candidates; in each another one begins.
        clock: Seconds.
    """
    calls = {
        (name, length): call
        for name, caller in callers.items()
        for length in lengths
        if (call := caller(length)) is not None
    }
    taken: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
    names = list(callers)
    for number in range(rounds):
        shift = number % len(names) if names else 0
        for length in lengths:
            for name in (*names[shift:], *names[:shift]):
                if call := calls.get((name, length)):
                    # The first call of a round wakes the caches, and the very first one traces.
                    call()
                    taken[name, length].append(min(_seconds(call, clock) for _ in range(CALLS)))
    return {
        name: {
            length: 1e3 * statistics.median(taken[name, length])
            for length in lengths
            if (name, length) in taken
        }
        for name in names
    }


def _seconds(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    call()
    return clock() - began

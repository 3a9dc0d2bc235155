"""python -m benchmarks.document_lengths [--lengths 256 512 1024 2048] [--rounds 7]

Measures processor time by document length for two classifiers: full attention over the document, and windows.
Times a prediction, and a forward and backward pass. Untrained models of the default shape, batches of one
document, alternating calls; medians in milliseconds as JSON lines on stdout.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.config import EncoderConfig
from kmha.models.classifier import TextClassifier

WINDOW, OVERLAP = 256, 64
VOCABULARY, LABELS = 16_000, 4


def calls(longest: int) -> dict[str, dict[str, Callable]]:
    """For each way to read a document, its functions: predict, and learn (forward and backward pass)."""
    shape: dict[str, Any] = {"num_layers": 2, "ngram_buckets": 131_071}
    whole = TextClassifier(EncoderConfig(VOCABULARY, max_length=longest, **shape), LABELS)
    windows: dict[str, Any] = {"window": WINDOW, "window_overlap": OVERLAP}
    windowed = TextClassifier(EncoderConfig(VOCABULARY, max_length=WINDOW, **shape), LABELS, **windows)
    found = {}
    for name, model in (("whole", whole), ("windows", windowed)):
        model.build()
        found[name] = {"predict": _predict_function(model), "learn": _gradient_function(model)}
    return found


def _predict_function(model: TextClassifier) -> Callable:
    return tf.function(
        lambda features: model(features, training=False), reduce_retracing=True, autograph=False
    )


def _gradient_function(model: TextClassifier) -> Callable:
    def gradient(features):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(features, training=True) ** 2)
        return tape.gradient(loss, [each.value for each in model.trainable_variables])

    return tf.function(gradient, reduce_retracing=True, autograph=False)


def document(length: int) -> dict[str, tf.Tensor]:
    """Features int32 [1, T] of random tokens."""
    ids = np.random.default_rng(length).integers(5, VOCABULARY, (1, length)).astype(np.int32)
    zeros = np.zeros_like(ids)
    return {
        name: tf.constant(each)
        for name, each in zip(
            ("token_ids", "segment_ids", "padding_mask"), (ids, zeros, zeros + 1), strict=True
        )
    }


def main() -> int:
    """Measures every length."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    functions = calls(max(options.lengths))
    for length in options.lengths:
        features, taken = document(length), {}
        # The first round traces and warms the caches up.
        for turn in range(options.rounds + 1):
            for name, each in functions.items():
                for kind, call in each.items():
                    began = time.process_time()
                    call(features)
                    if turn:
                        taken.setdefault(f"{kind}, {name}", []).append(1e3 * (time.process_time() - began))
        medians = {name: round(statistics.median(times), 1) for name, times in taken.items()}
        print(json.dumps({"tokens": length, **medians}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

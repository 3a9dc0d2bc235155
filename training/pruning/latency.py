"""How long models take for the same rows, asked in turns so that a busy machine is unfair to none."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

ROUNDS = 5


def latencies_ms(models: Sequence[Any], features: Sequence[dict[str, np.ndarray]]) -> list[float]:
    """The median time that each model takes for a row, in milliseconds, in TensorFlow, texts cut already.

    Args:
        models: Built ones that read the same features.
        features: Of some rows, each a batch of one.
    """
    given = [{name: tf.constant(values) for name, values in row.items()} for row in features]
    asked = [_forward(model) for model in models]
    taken: list[list[float]] = [[] for _ in models]
    for ask in asked:
        for row in given:
            ask(row)
    for _ in range(ROUNDS):
        for row in given:
            for ask, times in zip(asked, taken, strict=True):
                started = time.perf_counter()
                ask(row).numpy()
                times.append(1000 * (time.perf_counter() - started))
    return [float(np.median(times)) for times in taken]


def _forward(model: Any) -> Any:
    return tf.function(
        lambda features: model(features, training=False), reduce_retracing=True, autograph=False
    )

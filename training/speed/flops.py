"""Floating-point operations of a training step, and the matrix multiplication speed of the machine."""

import json
import os
import sys
import time
from collections.abc import Iterable, Mapping

# Size of the square matrices: large enough for full speed, small enough for frequent measurements.
_SIZE = 2048
_SECONDS = 0.5


def step_flops(sizes: Mapping[str, int], shapes: Iterable[tuple[int, int]]) -> float:
    """Floating-point operations of the matrix products of training steps, padding included.

    The forward pass takes 2 operations per token and weight of the blocks, and 4 D per token, attended position and
    block; the backward pass twice that. Embedding, head, norms and softmax are not counted. `sizes` has hidden_dim,
    intermediate_dim and num_layers; `shapes` rows and padded length of each batch.
    """
    dim, inner, layers = (sizes[name] for name in ("hidden_dim", "intermediate_dim", "num_layers"))
    weights = 4 * dim * dim + 2 * dim * inner
    return sum(3 * rows * length * layers * (2 * weights + 4 * dim * length) for rows, length in shapes)


def main() -> None:
    """Measures the operations per second of matrix products for each line on stdin."""
    import tensorflow as tf

    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    dtype = tf.dtypes.as_dtype(sys.argv[1])
    left, right = (tf.cast(tf.random.normal([_SIZE, _SIZE]), dtype) for _ in range(2))
    product = tf.function(lambda: tf.reduce_sum(tf.matmul(left, right)[0]), autograph=False)
    float(product())
    print(json.dumps({"ready": True}, allow_nan=False), file=output, flush=True)
    for _ in sys.stdin:
        start, times = time.perf_counter(), 0
        while (seconds := time.perf_counter() - start) < _SECONDS:
            float(product())
            times += 1
        print(
            json.dumps({"flops_per_second": times * 2 * _SIZE**3 / seconds}, allow_nan=False),
            file=output,
            flush=True,
        )


if __name__ == "__main__":
    main()

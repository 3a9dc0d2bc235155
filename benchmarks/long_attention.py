"""python benchmarks/long_attention.py {attention,step,window,blocks} [--lengths 1024 8192] [--rounds 5]

Compares blockwise attention with attention over all pairs, forward and backward, batch 1: one JSON line per
length. `attention` is the function alone (8 heads of 32), `step` a training step of a classifier with 2
blocks of 256 in 4 heads, `window` the same step with a window of 128, `blocks` other block sizes. Both
variants alternate in one process, with wall and processor seconds. Memory is measured in a separate process,
above its level before the first step. `--dropout 0.1` adds attention dropout. Attention over all pairs needs
10 GB for 8,192 tokens.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VARIANTS = ("all pairs", "blocks")
HEADS, HEAD_DIM = 8, 32
WINDOW = 128
BLOCKS = (256, 384, 512, 768, 1024)


@contextlib.contextmanager
def attention_variant(variant: str) -> Iterator[None]:
    """Selects the attention variant in the block; "blocks 256" sets the block size."""
    from kmha.layers import long_attention
    from kmha.layers.attention_parts import blocks_from

    name, _, size = variant.partition(" ")
    before = long_attention.LARGEST_BLOCK
    if name == "blocks" and size:
        long_attention.LARGEST_BLOCK = int(size)
    with blocks_from(None if variant == "all pairs" else 1):
        yield
    long_attention.LARGEST_BLOCK = before


def attention_step(length: int, variant: str, dropout: float) -> Callable[[], object]:
    """Forward and backward pass of the function alone."""
    import keras
    import tensorflow as tf

    from kmha.layers.attention import scaled_dot_product_attention
    from kmha.layers.long_attention import blockwise_attention

    query, key, value, by_output = (tf.random.normal((1, HEADS, length, HEAD_DIM), seed=i) for i in range(4))
    # Some padded positions, as in most batches.
    mask = tf.cast(tf.range(length) < length - length // 10, tf.int32)[None]
    generator = keras.random.SeedGenerator(0)

    def drop(weights):
        return keras.random.dropout(weights, dropout, seed=generator)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape, attention_variant(variant):
            tape.watch([query, key, value])
            if variant == "all pairs":
                inputs = (query, key, value, mask, drop if dropout else None)
                output, _ = scaled_dot_product_attention(*inputs)
            else:
                output = blockwise_attention(query, key, value, mask, dropout, generator.next())
        return tape.gradient([output], [query, key, value], output_gradients=[by_output])

    return lambda: [each.numpy() for each in step()]


def training_step(
    length: int, variant: str, dropout: float, window: int | None = None
) -> Callable[[], object]:
    """A training step as in `training.fit`."""
    import numpy as np
    import tensorflow as tf

    from kmha.config import EncoderConfig
    from kmha.models.classifier import TextClassifier
    from training.engine.optimizer import AdamW
    from training.engine.train_step import TrainingStep

    shape: dict[str, Any] = {
        "hidden_dim": 256,
        "num_heads": 4,
        "intermediate_dim": 1024,
        "max_length": length,
    }
    config = EncoderConfig(8_000, attention_dropout=dropout, attention_window=window, **shape)
    model = TextClassifier(config, 4)
    model.build()
    weights = [variable.value for variable in model.trainable_variables]

    def losses(targets, logits):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)

    def forward(features):
        with attention_variant(variant):
            return model(features, training=True)

    optimizer = AdamW(weights, lambda _: tf.constant(1e-4), 0.01)
    step = TrainingStep(model, losses, optimizer, tf.distribute.get_strategy(), forward=forward)
    ids = np.random.default_rng(0).integers(5, 8_000, (1, length)).astype("int32")
    features = {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    batch = {"features": features, "targets": np.zeros(1, "int32"), "weights": np.ones(1, "float32")}
    batch = tf.nest.map_structure(tf.constant, batch)
    return lambda: step(batch)["loss"].numpy()


def make_step(what: str, length: int, variant: str, dropout: float) -> Callable[[], object]:
    """The measured step."""
    if what in ("attention", "blocks"):
        return attention_step(length, variant, dropout)
    return training_step(length, variant, dropout, WINDOW if what == "window" else None)


def peak_mib() -> float:
    """Peak memory of this process; ru_maxrss would include that of its parent."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def memory_of(what: str, length: int, variant: str, dropout: float) -> None:
    """Prints the peak memory of two steps, above that of a short step."""
    # A short step first: threads, kernels and graph functions do not count.
    make_step(what, 256, variant, dropout)()
    before = peak_mib()
    step = make_step(what, length, variant, dropout)
    for _ in range(2):
        step()
    print(peak_mib() - before)


def memory(what: str, length: int, variant: str, dropout: float) -> float:
    """Peak memory in MiB, measured in a separate process."""
    flags = ["--memory-of", variant, "--lengths", str(length), "--dropout", str(dropout)]
    done = subprocess.run(
        [sys.executable, __file__, what, *flags], capture_output=True, text=True, check=True
    )
    return float(done.stdout.splitlines()[-1])


def times(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, dict[str, float]]:
    """Median wall and processor seconds of alternating steps."""
    for step in steps.values():
        step()
    found = {variant: ([], []) for variant in steps}
    for _ in range(rounds):
        for variant, step in steps.items():
            wall, processor = time.perf_counter(), time.process_time()
            step()
            found[variant][0].append(time.perf_counter() - wall)
            found[variant][1].append(time.process_time() - processor)
    names = ("seconds", "processor_seconds")
    return {
        variant: dict(zip(names, map(statistics.median, each), strict=True))
        for variant, each in found.items()
    }


def main() -> int:
    """Measures each length."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("attention", "step", "window", "blocks"))
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        memory_of(options.what, options.lengths[0], options.memory_of, options.dropout)
        return 0
    variants = {"window": ("blocks",), "blocks": tuple(f"blocks {size}" for size in BLOCKS)}.get(
        options.what, VARIANTS
    )
    for length in options.lengths:
        # Memory first, while this process is small.
        peaks = {variant: memory(options.what, length, variant, options.dropout) for variant in variants}
        steps = {variant: make_step(options.what, length, variant, options.dropout) for variant in variants}
        line = times(steps, options.rounds)
        for variant in variants:
            line[variant]["mib"] = peaks[variant]
        rounded = {
            variant: {name: round(value, 4) for name, value in each.items()} for variant, each in line.items()
        }
        ratios = {}
        if len(variants) == 2:
            ratios = {
                f"{name}_ratio": round(line["blocks"][name] / line["all pairs"][name], 3)
                for name in line["blocks"]
            }
        print(json.dumps({"length": length, **rounded, **ratios}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

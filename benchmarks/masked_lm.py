"""python -m benchmarks.masked_lm [--rounds 15] [--length 128] [--share 0.15] [--vocabulary-size 16000]

Compares a training step of a masked language model with one of a classifier with the same encoder (4 layers,
width 256) on the same 2,048 tokens. Also measures masked LM with logits at every position. The steps
alternate in one process; weights are random. One JSON object of medians on stdout.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np

from kmha.quiet import import_tensorflow

TOKENS, LABELS = 2048, 10


def random_batches(vocabulary_size: int, length: int, share: float, seed: int) -> dict[str, dict]:
    """One batch for each step, with the same token ids from a Zipf distribution."""
    rng = np.random.default_rng(seed)
    rows, slots = TOKENS // length, -(-int(share * 1000) * length // 1000)
    token_ids = np.minimum(rng.zipf(1.3, (rows, length)) + 4, vocabulary_size - 1).astype(np.int32)
    text = {"token_ids": token_ids, "padding_mask": np.ones_like(token_ids)}
    positions = np.sort(
        rng.permuted(np.tile(np.arange(length, dtype=np.int32), (rows, 1)), axis=1)[:, :slots]
    )
    every = np.tile(np.arange(length, dtype=np.int32), (rows, 1))

    def masked(positions: np.ndarray) -> dict[str, Any]:
        targets = np.take_along_axis(token_ids, positions, axis=1)
        weights = np.full(rows, positions.shape[1], np.float32)
        return {"features": {**text, "mask_positions": positions}, "targets": targets, "weights": weights}

    labels = rng.integers(0, LABELS, rows).astype(np.int32)
    classify = {"features": text, "targets": labels, "weights": np.ones(rows, np.float32)}
    return {"classify": classify, "masked_lm": masked(positions), "every_position": masked(every)}


def main() -> int:
    """Measures the steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--share", type=float, default=0.15)
    parser.add_argument("--vocabulary-size", type=int, default=16_000)
    arguments = parser.parse_args()
    import_tensorflow()
    import tensorflow as tf

    from kmha.config import EncoderConfig
    from kmha.models.classifier import TextClassifier
    from kmha.models.masked_lm import MaskedLanguageModel
    from training.engine.optimizer import AdamW
    from training.engine.train_step import TrainingStep
    from training.losses.classification import masked_token_loss, softmax_cross_entropy

    encoder = EncoderConfig(
        arguments.vocabulary_size,
        hidden_dim=256,
        num_layers=4,
        num_heads=8,
        intermediate_dim=1024,
        max_length=arguments.length,
    )

    def step(model: Any, loss: Any) -> TrainingStep:
        model.build()
        variables = [variable.value for variable in model.trainable_variables]
        optimizer = AdamW(variables, lambda step: tf.constant(1e-4))
        return TrainingStep(model, loss, optimizer, tf.distribute.get_strategy())

    masked = step(MaskedLanguageModel(encoder), masked_token_loss)
    classify = step(TextClassifier(encoder, LABELS), softmax_cross_entropy)
    steps = {"classify": classify, "masked_lm": masked, "every_position": masked}
    wall: dict[str, list[float]] = {name: [] for name in steps}
    cpu: dict[str, list[float]] = {name: [] for name in steps}
    for index in range(arguments.rounds + 2):
        batches = random_batches(arguments.vocabulary_size, arguments.length, arguments.share, index)
        for name, each in steps.items():
            batch = tf.nest.map_structure(tf.constant, batches[name])
            started = time.perf_counter(), time.process_time()
            float(each(batch)["loss"])
            wall[name].append(1000 * (time.perf_counter() - started[0]))
            cpu[name].append(1000 * (time.process_time() - started[1]))
    result: dict[str, object] = {"tokens": TOKENS, "length": arguments.length, "share": arguments.share}
    # CPU time of all threads is meaningful even on a shared machine; the first two rounds are warm-up.
    for kind, times in (("wall", wall), ("cpu", cpu)):
        result[f"{kind}_ms"] = {
            name: round(statistics.median(values[2:]), 1) for name, values in times.items()
        }
        for name in ("masked_lm", "every_position"):
            pairs = zip(times[name][2:], times["classify"][2:], strict=True)
            quartiles = [round(value, 2) for value in statistics.quantiles([a / b for a, b in pairs], n=4)]
            ratio = {"median": quartiles[1], "quartiles": quartiles[::2]}
            result[f"{kind}_{name}_over_classify"] = ratio
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""python benchmarks/embedding_update.py [--rounds 15] [--vocabulary-size 16000]

Measures a training step of the default model with row-wise and with dense updates of the embedding tables,
and a forward and backward pass without an update. The steps alternate in one process; one JSON object of
medians on stdout.
"""

import argparse
import json
import statistics
import sys
import time

import numpy as np

from kmha.quiet import import_tensorflow

ROWS, LENGTH, LABELS = 64, 32, 10


def random_batch(vocabulary_size: int, seed: int) -> dict:
    """Token ids from a Zipf distribution, as in natural language."""
    rng = np.random.default_rng(seed)
    token_ids = np.minimum(rng.zipf(1.3, (ROWS, LENGTH)) + 4, vocabulary_size - 1).astype(np.int32)
    features = {
        "token_ids": token_ids,
        "segment_ids": np.zeros_like(token_ids),
        "padding_mask": np.ones_like(token_ids),
    }
    targets = rng.integers(0, LABELS, ROWS).astype(np.int32)
    return {"features": features, "targets": targets, "weights": np.ones(ROWS, np.float32)}


def main() -> int:
    """Measures the three steps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--vocabulary-size", type=int, default=16_000)
    arguments = parser.parse_args()
    import_tensorflow()
    import tensorflow as tf

    from kmha.config import EncoderConfig
    from kmha.models.classifier import TextClassifier
    from training.config.defaults import DEFAULT_SHAPE
    from training.engine.optimizer import AdamW
    from training.engine.train_step import TrainingStep
    from training.losses.classification import softmax_cross_entropy

    class DenseStep(TrainingStep):
        """The same step with dense gradients of the tables."""

        def _gradients(self, batch, scale):
            gradients, total, weight = super()._gradients(batch, scale)
            return [tf.convert_to_tensor(gradient) for gradient in gradients], total, weight

    encoder = EncoderConfig(
        vocabulary_size=arguments.vocabulary_size,
        dropout=0.3,
        ngram_buckets=DEFAULT_SHAPE["ngram_buckets"],
        ngram_dim=DEFAULT_SHAPE["ngram_dim"],
    )
    steps = {}
    for name, kind in (("row_wise", TrainingStep), ("dense", DenseStep)):
        model = TextClassifier(encoder, LABELS)
        model.build()
        variables = [variable.value for variable in model.trainable_variables]
        optimizer = AdamW(variables, lambda step: tf.constant(1e-3))
        steps[name] = kind(model, softmax_cross_entropy, optimizer, tf.distribute.get_strategy())
    gradients_only = tf.function(steps["row_wise"]._gradients, reduce_retracing=True, autograph=False)
    calls = {
        "row_wise": lambda batch: float(steps["row_wise"](batch)["loss"]),
        "dense": lambda batch: float(steps["dense"](batch)["loss"]),
        "forward_backward": lambda batch: float(gradients_only(batch, tf.constant(1.0))[1]),
    }
    wall: dict[str, list[float]] = {name: [] for name in calls}
    cpu: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(arguments.rounds + 2):
        for name, call in calls.items():
            batch = tf.nest.map_structure(tf.constant, random_batch(encoder.vocabulary_size, index))
            started = time.perf_counter(), time.process_time()
            call(batch)
            wall[name].append(1000 * (time.perf_counter() - started[0]))
            cpu[name].append(1000 * (time.process_time() - started[1]))
    result: dict[str, object] = {}
    # CPU time of all threads is meaningful even on a shared machine.
    for kind, times in (("wall", wall), ("cpu", cpu)):
        # The first two rounds are warm-up.
        medians = {name: round(statistics.median(values[2:]), 1) for name, values in times.items()}
        ratios = [dense / rows for dense, rows in zip(times["dense"][2:], times["row_wise"][2:], strict=True)]
        quartiles = [round(value, 2) for value in statistics.quantiles(ratios, n=4)]
        result[f"{kind}_ms"] = medians
        result[f"{kind}_dense_over_row_wise"] = {"median": quartiles[1], "quartiles": quartiles[::2]}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

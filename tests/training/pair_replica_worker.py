"""Trains a small matcher listwise on one device and on two replicas and prints how far the weights are apart.

A process of its own, as for `replica_worker`. From the root of the repository:

    python -m tests.training.pair_replica_worker
"""

import json
import os
import tempfile
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from kmha.config import EncoderConfig  # noqa: E402
from tests.pair_rows import ranking_rows  # noqa: E402
from tests.training.tiny_runs import distance, trainable  # noqa: E402
from training.config import TextSection  # noqa: E402
from training.examples import Example, write_examples  # noqa: E402
from training.inputs import Inputs, make_inputs  # noqa: E402
from training.optimizer import AdamW  # noqa: E402
from training.replicas import TrainingStep, make_strategy  # noqa: E402
from training.tasks.match import MatchTask  # noqa: E402
from training.tasks.task import Part  # noqa: E402

EPOCHS, LENGTH = 3, 16
TASK = MatchTask(target="binary", loss="listwise", best_by="map", overlap=True, dropout=0.0)


def read_inputs(folder: Path) -> Inputs:
    """Lists of five candidates, and of two."""
    rows = [
        *ranking_rows(8, 5, seed=0),
        *((*row[:3], f"short {row[3]}") for row in ranking_rows(5, 2, seed=1)),
    ]
    examples = write_examples(
        (Example((a, b), (str(label),), "a", query) for a, b, label, query in rows), folder, num_texts=2
    )
    parts = {"train": Part(examples, np.arange(len(examples)))}
    return make_inputs(TextSection(max_length=LENGTH, vocabulary_size=200), parts, folder, TASK)


def train(inputs: Inputs, strategy: tf.distribute.Strategy) -> dict:
    """Trains for some epochs, whose batches are the same rows whatever the strategy is."""
    keras.utils.set_random_seed(1)
    replicas = strategy.num_replicas_in_sync
    source = inputs.source("train", TASK.lesson(inputs.parts["train"], ["score"], 0), divisor=replicas)
    with strategy.scope():
        (part,) = inputs.preprocessor.parts
        encoder = EncoderConfig(
            len(part.vocabulary),
            max_length=LENGTH,
            hidden_dim=16,
            num_layers=1,
            num_heads=2,
            intermediate_dim=24,
            num_segments=0,
            dropout=0.0,
            attention_dropout=0.0,
            ngram_buckets=31,
            ngram_dim=8,
        )
        model = TASK.build({"": encoder}, ["score"])
        TASK.prepare(model, source)
        step = TrainingStep(
            model,
            TASK.row_losses,
            # The loss does not feel the head's bias, whose gradient is rounding alone: it must not be scaled up.
            AdamW(trainable(model), lambda step: tf.constant(3e-2), epsilon=1e-2),
            strategy,
            forward=lambda features: TASK.forward(model, features),
        )
    before = [variable.numpy() for variable in trainable(model)]
    fillers, sums = 0, {}
    for epoch in range(EPOCHS):
        for plan in source.plans(source.buckets([], 2), 400, 16, np.random.default_rng(epoch)):
            batch = source.batch(plan)
            fillers += len(batch["weights"]) - len(plan.rows)
            sums = step(batch)
    after = [variable.numpy() for variable in trainable(model)]
    return {
        "after": after,
        "moved": distance(after, before),
        "fillers": fillers,
        "steps": step.optimizer.steps_done,
        "sums": [float(sums["loss"]), float(sums["weight"])],
    }


def main() -> None:
    """Prints one JSON object."""
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    with tempfile.TemporaryDirectory() as folder:
        inputs = read_inputs(Path(folder))
        one, two = (train(inputs, make_strategy(name)) for name in ("one", "mirrored"))
    apart = distance(one.pop("after"), two.pop("after"))
    print(json.dumps({"apart": apart, "one": one, "two": two}))


if __name__ == "__main__":
    main()

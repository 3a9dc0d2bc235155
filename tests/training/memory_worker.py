"""Prints measured and estimated memory of training steps in bytes; run in its own process.

The steps grow: each step reuses the memory that the steps before it have freed.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.config import EncoderConfig
from kmha.models.classifier import TextClassifier
from training.engine.optimizer import AdamW
from training.engine.train_step import TrainingStep
from training.losses.classification import softmax_cross_entropy
from training.runtime.memory_estimate import estimate_bytes
from training.runtime.resource_usage import count_trainable_weights

SHAPE: dict[str, Any] = {
    "vocabulary_size": 500,
    "hidden_dim": 128,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_dim": 512,
    "attention_dropout": 0.0,
}
STEPS = [
    (EncoderConfig(**SHAPE, max_length=4096, attention_window=64), 1, 3000),
    (EncoderConfig(**SHAPE, max_length=4096), 1, 4096),
    (EncoderConfig(**SHAPE, max_length=700), 8, 700),
]


def status(name: str) -> int:
    """A value of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def train(config: EncoderConfig, rows: int, tokens: int) -> int:
    """Takes two steps; returns the number of trainable weights."""
    model = TextClassifier(config, 3)
    model.build()
    variables = [variable.value for variable in model.trainable_variables]
    optimizer = AdamW(variables, lambda _: tf.constant(1e-4), 0.01)
    step = TrainingStep(model, softmax_cross_entropy, optimizer, tf.distribute.get_strategy())
    ids = np.random.default_rng(0).integers(5, 500, (rows, tokens)).astype("int32")
    features = {"token_ids": ids, "padding_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
    batch = {"features": features, "targets": np.zeros(rows, "int32"), "weights": np.ones(rows, "float32")}
    for _ in range(2):
        step(tf.nest.map_structure(tf.constant, batch))["loss"].numpy()
    return count_trainable_weights(model)


def main() -> int:
    """Prints [[measured, estimate], …]."""
    before, found = status("VmRSS"), []
    for config, rows, tokens in STEPS:
        weights = train(config, rows, tokens)
        found.append([status("VmHWM") - before, estimate_bytes([config], weights, rows, tokens)])
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A model, rows and a loop small enough to train in a test, with every kind of table of the real ones."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kmha.config import EncoderConfig
from kmha.models.classifier import TextClassifier
from training.config.config import TrainSection
from training.data.length_buckets import bucket_lengths
from training.data.text_batches import BatchSource
from training.engine.loop import Loop, epoch_plans
from training.engine.optimizer import AdamW, WeightAverage, warmup_then_decay
from training.engine.train_step import TrainingStep, make_strategy
from training.io.ragged_store import RaggedStoreWriter
from training.losses.classification import softmax_cross_entropy

LABELS = 3
SETTINGS = TrainSection(
    epochs=2, patience=9, batch_tokens=96, batch_rows=8, buckets=2, checkpoint_minutes=1e9
)
CONFIG = EncoderConfig(
    vocabulary_size=40,
    hidden_dim=16,
    num_layers=1,
    num_heads=2,
    intermediate_dim=32,
    max_length=12,
    num_segments=2,
    dropout=0.0,
    attention_dropout=0.0,
    ngram_buckets=31,
    ngram_dim=8,
)


class BagOfTokens(keras.Model):
    """Scores the mean of a text's token vectors: fast to trace, for tests of the code around a step."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.table = keras.layers.Embedding(CONFIG.vocabulary_size, 8)
        self.drop = keras.layers.Dropout(dropout)
        self.head = keras.layers.Dense(LABELS)
        self.build()

    def build(self, features_shape=None):
        self.table.build(None)
        self.head.build((None, 8))

    def call(self, features, training=None):
        mask = keras.ops.cast(features["padding_mask"], "float32")[..., None]
        total = keras.ops.sum(self.table(features["token_ids"]) * mask, axis=1)
        mean = total / keras.ops.maximum(keras.ops.sum(mask, axis=1), 1.0)
        return self.head(self.drop(mean, training=training))

    def probabilities(self, logits):
        return keras.ops.softmax(logits, axis=-1)


def tiny_model(dropout: float = 0.0) -> TextClassifier:
    """A built classifier with token, segment, position and n-gram tables."""
    config = dataclasses.replace(CONFIG, dropout=dropout, attention_dropout=dropout, token_dropout=dropout)
    model = TextClassifier(config, LABELS, dropout=dropout)
    model.build()
    return model


def trainable(model: keras.Model) -> list[tf.Variable]:
    """TensorFlow's variables under the model's trainable ones."""
    return [variable.value for variable in model.trainable_variables]


def make_batch(rng: np.random.Generator, rows: int, filled: int, length: int, class_weights=None) -> dict:
    """Random texts of few tokens, so that rows of every table repeat; rows past `rows` have weight 0."""
    lengths = np.where(np.arange(filled) < rows, rng.integers(2, length + 1, filled), 0)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    targets = rng.integers(0, LABELS, filled).astype(np.int32)
    weights = np.asarray(class_weights or [1.0] * LABELS, np.float32)[targets]
    features = {
        "token_ids": (rng.integers(1, CONFIG.vocabulary_size, mask.shape) * mask).astype(np.int32),
        "segment_ids": np.zeros_like(mask),
        "padding_mask": mask,
    }
    return {
        "features": features,
        "targets": targets,
        "weights": np.where(np.arange(filled) < rows, weights, 0),
    }


def make_step(model, rate=None, strategy: tf.distribute.Strategy | None = None, **options) -> TrainingStep:
    """A training step of the model; call it in the strategy's scope."""
    optimizer = AdamW(trainable(model), rate or (lambda step: tf.constant(1e-2)))
    strategy = strategy or make_strategy("one")
    return TrainingStep(model, softmax_cross_entropy, optimizer, strategy, **options)


def make_source(folder: Path, rows: int = 45, divisor: int = 1) -> BatchSource:
    """Random rows on disk; the label is in the first token, so that it can be predicted."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, CONFIG.max_length + 1, rows)
    targets = rng.integers(0, LABELS, rows).astype(np.int32)
    with RaggedStoreWriter(folder / "tokens", np.int32) as writer:
        for length, target in zip(lengths, targets, strict=True):
            writer.append(
                np.concatenate([[target + 6], rng.integers(10, CONFIG.vocabulary_size, length - 1)])
            )
        ragged_store = writer.close()
    return BatchSource(ragged_store, np.arange(rows), targets, np.ones(rows, np.float32), 0, divisor=divisor)


def make_loop(
    folder: Path,
    strategy: Any = None,
    settings: TrainSection = SETTINGS,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    validate=None,
    dropout: float = 0.1,
    ema: bool = True,
    transformer: bool = False,
    **options,
) -> Loop:
    """A whole run: model, step, average and loop; the validation metric is minus the validation loss."""
    keras.utils.set_random_seed(settings.seed)
    strategy = make_strategy("one") if strategy is None else strategy
    source = make_source(folder, divisor=strategy.num_replicas_in_sync)
    lengths = bucket_lengths(source.lengths, settings.buckets)
    plans = epoch_plans(source, lengths, settings, 0)
    with strategy.scope():
        model = tiny_model(dropout) if transformer else BagOfTokens(dropout)
        rate = warmup_then_decay(1e-2, len(plans) * settings.epochs, 2)
        step = make_step(model, rate, strategy, **options)
        average = WeightAverage(trainable(model), strategy, decay=0.9, every=2) if ema else None

    def loss() -> dict[str, float]:
        losses = []
        for plan in plans:
            batch = source.batch(plan)
            logits = model(batch["features"], training=False)
            losses.append(np.asarray(softmax_cross_entropy(batch["targets"], logits)) @ batch["weights"])
        mean = float(np.sum(losses) / len(source.rows))
        return {"loss": mean, "fit": -mean}

    return Loop(
        model=model,
        step=step,
        source_of=lambda _: source,
        lengths=lengths,
        validate=validate or loss,
        metric="fit",
        settings=settings,
        average=average,
        checkpoint=folder / "checkpoint",
        callbacks=callbacks,
    )


def weights_of(model: keras.Model) -> list[np.ndarray]:
    """Every variable of a model, also the state of its random generators."""
    return [variable.value.numpy() for variable in model.variables]


def distance(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> float:
    """Largest difference of two lists of arrays."""
    return float(
        max(np.abs(np.subtract(a, b, dtype=np.float64)).max() for a, b in zip(first, second, strict=True))
    )

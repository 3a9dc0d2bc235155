"""Trains as `training.fit` does: length buckets, training step, optimizer and weight averaging."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kmha.config import EncoderConfig
from kmha.models.classifier import TextClassifier
from kmha.pretrained.sources import find_checkpoint
from kmha.pretrained.weights import assign_weights
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import Vocabulary
from training.config.config import TrainSection
from training.data.text_batches import BatchSource, token_chunks
from training.engine.optimizer import AdamW, WeightAverage
from training.engine.train_step import TrainingStep
from training.io.ragged_store import RaggedStoreWriter
from training.losses.classification import softmax_cross_entropy
from training.runtime.cpu_sharding import configure_shards, intra_op_cores, max_shards, num_shards
from training.runtime.mixed_precision import POLICIES
from training.runtime.resource_usage import tune_malloc
from training.speed.workload import Workload, serve

_CHUNK_ROWS = 1024


def make_trainer(work: Workload, precision: str) -> Callable[[int], Iterator[tuple[int, int, int]]]:
    """See `training.speed.workload.serve`."""
    keras.config.set_dtype_policy(POLICIES[precision])
    tune_malloc()
    configure_shards(max_shards(TrainSection(batch_rows=work.batch_rows), work.max_length, intra_op_cores()))
    model = build(work)
    step, average = training_step(model)
    source = tokenize_workload(work)
    batches = training_batches(source, work.batch_rows)

    def train(steps: int) -> Iterator[tuple[int, int, int]]:
        for plan, batch in itertools.islice(batches, steps):
            float(step(batch)["loss"])
            average.after_step(step.optimizer.steps_done)
            yield len(plan.rows), plan.length, int(source.lengths[plan.rows].sum())

    return train


def build(work: Workload) -> TextClassifier:
    """Builds a classifier of the workload's sizes like BERT: post-norm, without n-grams."""
    sizes: dict[str, Any] = dict(work.sizes)
    num_labels = sizes.pop("num_labels")
    checkpoint = find_checkpoint(work.pretrained) if work.pretrained else None
    config = (
        EncoderConfig(**sizes, max_length=work.max_length, norm="post", attention_dropout=0.1)
        if checkpoint is None
        else checkpoint.config
    )
    model = TextClassifier(config, num_labels)
    model.build()
    if checkpoint is not None:
        assign_weights(model.encoder, checkpoint.read_weights(), config.num_layers)
    return model


def training_step(model: keras.Model) -> tuple[TrainingStep, WeightAverage]:
    """The training step and weight average of a classifier on one device."""
    variables = [variable.value for variable in model.trainable_variables]
    strategy = tf.distribute.get_strategy()
    optimizer = AdamW(variables, lambda step: tf.constant(5e-5))
    step = TrainingStep(model, softmax_cross_entropy, optimizer, strategy, shards=num_shards())
    return step, WeightAverage(variables, strategy)


def tokenize_workload(work: Workload) -> BatchSource:
    """Tokenizes the rows into a store on disk."""
    vocabulary = Vocabulary.read(Path(work.vocabulary))
    preprocessor = Preprocessor(vocabulary, "wordpiece", work.lower_case, work.max_length)
    # The open files stay readable after the folder is removed.
    with tempfile.TemporaryDirectory(prefix="kmha-") as folder:
        with RaggedStoreWriter(Path(folder) / "tokens", np.int32) as writer:
            chunks = (work.texts[i : i + _CHUNK_ROWS] for i in range(0, len(work.texts), _CHUNK_ROWS))
            for flat, lengths, _ in token_chunks(chunks, preprocessor).as_numpy_iterator():
                writer.extend(flat, lengths)
            tokens = writer.close()
    return BatchSource(
        tokens,
        np.arange(len(work.texts)),
        np.array(work.labels, np.int32),
        np.ones(len(work.texts), np.float32),
        preprocessor.padding_id,
        divisor=num_shards(),
    )


def training_batches(source: BatchSource, batch_rows: int):
    """Plans and batches of endless epochs, with the defaults of `training.fit`."""
    settings = TrainSection()
    buckets = source.buckets([], settings.buckets)
    for epoch in itertools.count():
        plans = source.plans(buckets, settings.batch_tokens, batch_rows, np.random.default_rng(epoch))
        yield from zip(plans, source.dataset(plans), strict=True)


if __name__ == "__main__":
    serve(make_trainer)

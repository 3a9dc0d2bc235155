"""Fine-tunes MiniLM as `training.fit` does: batches of similar lengths, its step and its optimizer."""

import itertools
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from benchmarks.steps.rows import answer, read_rows
from kmha.models.classifier import TextClassifier
from kmha.pretrained.sources import find_checkpoint
from kmha.pretrained.weights import put_weights
from kmha.text.preprocessor import Preprocessor
from training.averaging import WeightAverage
from training.losses import softmax_cross_entropy
from training.optimizer import AdamW
from training.pipeline import BatchSource, token_chunks
from training.replicas import TrainingStep
from training.spool import SpoolWriter


def main(path: str, batch: int, length: int, precision: str, model_folder: str) -> None:
    """Answers requests."""
    texts, labels, classes = read_rows(path)
    keras.config.set_dtype_policy("mixed_bfloat16" if precision == "bfloat16" else "float32")
    checkpoint = find_checkpoint(model_folder)
    preprocessor = Preprocessor(checkpoint.vocabulary, "wordpiece", checkpoint.lower_case, length)
    model = TextClassifier(checkpoint.config, classes)
    model.build()
    put_weights(model.encoder, checkpoint.read_weights(), checkpoint.config.num_layers)
    variables = [variable.value for variable in model.trainable_variables]
    strategy = tf.distribute.get_strategy()
    step = TrainingStep(
        model, softmax_cross_entropy, AdamW(variables, lambda step: tf.constant(5e-5)), strategy
    )
    average = WeightAverage(variables, strategy)
    with tempfile.TemporaryDirectory() as folder:
        with SpoolWriter(Path(folder) / "tokens", np.int32) as writer:
            chunks = (texts[i : i + 1024] for i in range(0, len(texts), 1024))
            for flat, lengths, _ in token_chunks(chunks, preprocessor).as_numpy_iterator():
                writer.extend(flat, lengths)
            tokens = writer.close()
        rows = np.arange(len(texts))
        source = BatchSource(
            tokens, rows, np.array(labels), np.ones(len(texts), np.float32), preprocessor.padding_id
        )
        buckets = source.buckets([], 8)
        batches = _forever(source, buckets, batch)

        def train(steps) -> int:
            done = 0
            for _ in steps:
                plan, given = next(batches)
                float(step(given)["loss"])
                average.after_step(step.optimizer.steps_done)
                done += int(source.lengths[plan.rows].sum())
            return done

        answer(train)


def _forever(source: BatchSource, buckets, batch: int):
    for epoch in itertools.count():
        # As many padded tokens as would let short and long texts alike fill a batch.
        plans = source.plans(buckets, 2048, batch, np.random.default_rng(epoch))
        yield from zip(plans, source.dataset(plans), strict=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])

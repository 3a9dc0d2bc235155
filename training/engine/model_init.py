"""The model as training finds it: built for the data, its n-grams known, its word vectors read."""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.files import parts_of
from kmha.config import EncoderConfig
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.weights import assign_weights
from kmha.text.vocabulary import Vocabulary
from kmha.text.word_vectors import assign_vectors, read_vectors
from training.config.config import ResolvedConfig
from training.config.encoder_shape import encoder_config
from training.data.inputs import Source
from training.tasks.protocol import Task

logger = logging.getLogger("kmha")


def build_initial_model(
    config: ResolvedConfig, task: Task, source: Source, preprocessor: Any, labels: Sequence[str]
) -> Any:
    """Builds the model that a fit begins with.

    Args:
        config: All settings.
        task: Builds it.
        source: The training rows, whose n-grams it learns to know and whose targets it starts from.
        preprocessor: Has the vocabularies.
        labels: Names of its outputs.

    Raises:
        InputError: The word vectors cannot be used.
    """
    parts = parts_of(preprocessor)
    encoders = {
        name: task.encoder(encoder_config(config, len(part.vocabulary), part.unknown_id))
        for name, part in parts.items()
    }
    model = task.build(encoders, labels)
    checkpoint = config.checkpoint
    if checkpoint is not None:
        _put_checkpoint(model, checkpoint, next(iter(parts.values())).vocabulary)
    knows_ngrams = checkpoint is not None and bool(checkpoint.config.ngram_buckets)
    task.prepare(model, source)
    for index, (name, part) in enumerate(parts.items()):
        of_name = f" ({name})" if len(parts) > 1 else ""
        for encoder in model.encoders_of(index):
            if encoder.embedding.ngrams is not None and not knows_ngrams:
                _learn_ngrams(encoder.embedding.ngrams, encoders[name], source.different_ids(index), of_name)
            if config.encoder.vectors is not None:
                table = encoder.embedding.tokens.embeddings
                _put_word_vectors(
                    table, config.encoder.vectors, part.vocabulary, encoders[name], part.lower_case, of_name
                )
    return model


def _put_checkpoint(model: Any, checkpoint: Checkpoint, vocabulary: Vocabulary) -> None:
    started = time.monotonic()
    weights = checkpoint.read_weights()
    # A pruned vocabulary has some of the checkpoint's tokens.
    rows = [checkpoint.vocabulary.id_of(token) for token in vocabulary.tokens]
    for encoder in model.encoders_of(0):
        assign_weights(encoder, weights, checkpoint.config.num_layers, rows)
    for kernel in model.additions:
        # What an encoder knows holds for the inputs that it knows.
        kernel.assign(np.zeros(kernel.shape, np.float32))
    logger.info(f"starts from {checkpoint.origin}, read in {time.monotonic() - started:.1f} s")


def _learn_ngrams(ngrams: Any, encoder: EncoderConfig, batches: Any, of_name: str) -> None:
    known = zip(encoder.ngram_orders, ngrams.adapt(batches), strict=True)
    logger.info(
        f"n-grams known{of_name}: " + ", ".join(f"{count:,} of {order} tokens" for order, count in known)
    )


def _put_word_vectors(
    table: Any, path: Path, vocabulary: Vocabulary, encoder: EncoderConfig, lower_case: bool, of_name: str
) -> None:
    found = read_vectors(path, vocabulary, encoder.hidden_dim, lower_case)
    assign_vectors(table, found)
    share = len(found) / len(vocabulary)
    logger.info(f"word vectors found{of_name} for {len(found):,} of {len(vocabulary):,} tokens ({share:.1%})")


@dataclasses.dataclass(frozen=True)
class StartingModel:
    """What stands in place of a new model.

    Attributes:
        preprocessor: Cuts texts for the model.
        labels: Names in the order of its outputs.
        build: Makes the model, under the dtype policy and in the strategy's scope that it is called in.
        details: JSON values that its bundle keeps, beside those of every fit.
    """

    preprocessor: Any
    labels: list[str]
    build: Callable[[], Any]
    details: dict[str, Any]

"""The model before the first training step: built for the data, with pretrained weights and n-gram vocabularies."""

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kmha.bundle.files import parts_of
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.weights import assign_weights
from kmha.text.vocabulary import Vocabulary
from kmha.text.word_vectors import assign_vectors, read_vectors
from training.config.config import ResolvedConfig
from training.config.encoder_shape import encoder_config
from training.data.inputs import Source
from training.tasks.protocol import Task

logger = logging.getLogger("kmha")


@dataclasses.dataclass(frozen=True)
class StartingModel:
    """An existing model to train further, in place of a new one.

    Attributes:
        preprocessor: Tokenizes texts for the model.
        labels: Names in the order of its outputs.
        build: Returns the model; called under the dtype policy and in the scope of the strategy.
        details: JSON values to add to its bundle.
    """

    preprocessor: Any
    labels: list[str]
    build: Callable[[], Any]
    details: dict[str, Any]


def build_initial_model(
    config: ResolvedConfig, task: Task, source: Source, preprocessor: Any, labels: Sequence[str]
) -> Any:
    """Builds the model of a task and initializes it.

    Raises:
        InputError: The word vectors cannot be used.
    """
    parts = parts_of(preprocessor)
    encoders = {
        name: task.encoder(encoder_config(config, len(part.vocabulary), part.unknown_id))
        for name, part in parts.items()
    }
    model = task.build_model(encoders, labels)
    checkpoint = config.checkpoint
    if checkpoint is not None:
        _load_checkpoint(model, checkpoint, next(iter(parts.values())).vocabulary)
    has_ngram_vocabulary = checkpoint is not None and bool(checkpoint.config.ngram_buckets)
    task.initialize(model, source)
    for index, (name, part) in enumerate(parts.items()):
        suffix = f" ({name})" if len(parts) > 1 else ""
        for encoder in model.encoders_of(index):
            ngrams = encoder.embedding.ngrams
            if ngrams is not None and not has_ngram_vocabulary:
                counts = zip(
                    encoders[name].ngram_orders, ngrams.adapt(source.different_ids(index)), strict=True
                )
                shown = ", ".join(f"{count:,} of {order} tokens" for order, count in counts)
                logger.info(f"n-gram vocabulary{suffix}: {shown}")
            if config.encoder.vectors is not None:
                vectors = read_vectors(
                    config.encoder.vectors, part.vocabulary, encoders[name].hidden_dim, part.lower_case
                )
                assign_vectors(encoder.embedding.tokens.embeddings, vectors)
                total = len(part.vocabulary)
                logger.info(
                    f"word vectors{suffix}: {len(vectors):,} of {total:,} tokens ({len(vectors) / total:.1%})"
                )
    return model


def _load_checkpoint(model: Any, checkpoint: Checkpoint, vocabulary: Vocabulary) -> None:
    started = time.monotonic()
    weights = checkpoint.read_weights()
    # A pruned vocabulary has some of the checkpoint's tokens.
    rows = [checkpoint.vocabulary.id_of(token) for token in vocabulary.tokens]
    for encoder in model.encoders_of(0):
        assign_weights(encoder, weights, checkpoint.config.num_layers, rows)
    for kernel in model.additions:
        # Inputs that the checkpoint was not trained with start at zero.
        kernel.assign(np.zeros(kernel.shape, np.float32))
    logger.info(f"loaded {checkpoint.origin} in {time.monotonic() - started:.1f} s")

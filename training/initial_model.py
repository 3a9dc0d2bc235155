"""The model as training finds it: built for the data, its n-grams known, its word vectors read."""

from pathlib import Path
from typing import Any

from kmha.config import EncoderConfig
from kmha.text.vectors import put_vectors, read_vectors
from kmha.text.vocabulary import Vocabulary
from training.checks import encoder_config
from training.cli import say
from training.config import FitConfig
from training.inputs import padded_chunks
from training.pipeline import BatchSource
from training.tasks.task import Task


def initial_model(
    config: FitConfig, task: Task, source: BatchSource, vocabulary: Vocabulary, unknown_id: int, outputs: int
) -> Any:
    """Builds the model that a fit begins with.

    Args:
        config: All settings.
        task: Builds it.
        source: The training rows, whose n-grams it learns to know and whose targets it starts from.
        vocabulary: Its tokens.
        unknown_id: Id of [UNK] among them.
        outputs: Number of labels.

    Raises:
        InputError: The word vectors cannot be used.
    """
    encoder = encoder_config(config, len(vocabulary), unknown_id)
    model = task.build(encoder, outputs)
    task.prepare(model, source.targets)
    embedding = model.encoder.embedding
    if embedding.ngrams is not None:
        _learn_ngrams(embedding.ngrams, encoder, source)
    if config.encoder.vectors is not None:
        _put_word_vectors(
            embedding.tokens.embeddings, config.encoder.vectors, vocabulary, encoder, config.text.lower_case
        )
    return model


def _learn_ngrams(ngrams: Any, encoder: EncoderConfig, source: BatchSource) -> None:
    known = zip(encoder.ngram_orders, ngrams.learn(padded_chunks(source)), strict=True)
    say("n-grams known: " + ", ".join(f"{count:,} of {order} tokens" for order, count in known))


def _put_word_vectors(
    table: Any, path: Path, vocabulary: Vocabulary, encoder: EncoderConfig, lower_case: bool
) -> None:
    found = read_vectors(path, vocabulary, encoder.hidden_dim, lower_case)
    put_vectors(table, found)
    share = len(found) / len(vocabulary)
    say(f"word vectors found for {len(found):,} of {len(vocabulary):,} tokens ({share:.1%})")

"""Builds the preprocessors: vocabularies are read from files or trained on the training rows."""

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import Vocabulary
from kmha.text.vocabulary_pruning import prune_vocabulary
from kmha.text.vocabulary_training import train_vocabulary
from training.config.config import TextSection
from training.data.large_data import Large
from training.distributed.coordinator import SINGLE_WORKER, Coordinator
from training.io.types import Subset
from training.tasks.protocol import Task

logger = logging.getLogger("kmha")

_CHUNK_ROWS = 4096


def make_preprocessor(
    text: TextSection,
    parts: dict[str, Subset],
    task: Task,
    vocabulary: Vocabulary | None = None,
    large: Large | None = None,
    coordinator: Coordinator = SINGLE_WORKER,
) -> Any:
    """Reads or trains the vocabularies and returns the preprocessor; raises InputError for an unusable file.

    Args:
        text: Tokenization settings.
        parts: Name to rows. Vocabularies are trained on "train" and, if present, "texts" (unlabeled).
        task: Determines the tokenizations.
        vocabulary: A given vocabulary, in place of a trained one.
        large: Limits for large data, which train the vocabulary on a sample; None for no limit.
        coordinator: The workers of distributed training; one of them trains the vocabularies.
    """
    num_texts = len(parts["train"].examples.texts)
    if vocabulary is None and text.vocabulary is not None:
        vocabulary = Vocabulary.read(text.vocabulary)
    read = [parts[name] for name in ("train", "texts") if name in parts]
    learnt_from = _Texts([large.sampled(part) if large else part for part in read], num_texts)
    made = {
        each: _preprocessor(text, each, vocabulary, learnt_from, coordinator)
        for each in task.tokenizations(text.tokenization or "wordpiece")
    }
    return task.preprocessor(made)


def _preprocessor(
    text: TextSection,
    tokenization: Any,
    vocabulary: Vocabulary | None,
    texts: Iterable[str],
    coordinator: Coordinator,
) -> Preprocessor:
    lower_case = bool(text.lower_case)
    if vocabulary is not None and text.prune:
        whole = len(vocabulary)
        vocabulary = prune_vocabulary(vocabulary, texts, tokenization, lower_case).vocabulary
        logger.info(f"{len(vocabulary):,} of {whole:,} tokens of the vocabulary kept")
    if vocabulary is None:
        settings = (tokenization, text.vocabulary_size, text.min_frequency, lower_case)
        tokens = coordinator.broadcast("vocabulary", lambda: train_vocabulary(texts, *settings).tokens)
        vocabulary = Vocabulary(tokens)
    return Preprocessor(vocabulary, tokenization, lower_case, text.max_length)


class _Texts:
    """The texts of some parts, read from disk at each iteration."""

    def __init__(self, parts: Sequence[Subset], num_texts: int):
        self.parts, self.num_texts = parts, num_texts

    def __iter__(self) -> Iterator[str]:
        for field, part in itertools.product(range(self.num_texts), self.parts):
            for first in range(0, len(part.rows), _CHUNK_ROWS):
                yield from part.examples.read_texts(part.rows[first : first + _CHUNK_ROWS], field)

"""What a model reads of the data: the preprocessor, token ids of every row on disk, and batches of them."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import Vocabulary, learn_vocabulary
from training.config import TextSection
from training.pipeline import BatchSource, TokenCounts, pad, tokenize_examples
from training.spool import Spool
from training.tasks.task import Part

CHUNK_ROWS = 4096


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The tokenized parts of the data, by name.

    Args:
        preprocessor: Made the token ids.
        parts: The parts.
        tokens: Token ids of all rows of each part's set; parts of one set share them.
        counts: What tokenizing met, once a set.
    """

    preprocessor: Preprocessor
    parts: dict[str, Part]
    tokens: dict[str, Spool]
    counts: dict[str, TokenCounts]

    def source(
        self, name: str, targets: np.ndarray, weights: np.ndarray | None = None, **options
    ) -> BatchSource:
        """Batches of a part.

        Args:
            name: Which part.
            targets: [R, …], aligned with its rows.
            weights: float32 [R]; None: ones.
            **options: More arguments of `BatchSource`.
        """
        weights = np.ones(len(targets), np.float32) if weights is None else weights
        rows = self.parts[name].rows
        return BatchSource(self.tokens[name], rows, targets, weights, self.preprocessor.padding_id, **options)


def make_inputs(text: TextSection, parts: dict[str, Part], folder: Path) -> Inputs:
    """Reads or learns the vocabulary, then tokenizes every part.

    Args:
        text: How strings become tokens.
        parts: "train" and others by name; the vocabulary is learnt from "train" alone.
        folder: Where the token ids go.

    Raises:
        InputError: The vocabulary file cannot be used.
    """
    if text.vocabulary is not None:
        vocabulary = Vocabulary.read(text.vocabulary)
    else:
        vocabulary = learn_vocabulary(
            _Texts(parts["train"]),
            text.tokenization,
            text.vocabulary_size,
            text.min_frequency,
            text.lower_case,
        )
    preprocessor = Preprocessor(vocabulary, text.tokenization, text.lower_case, text.max_length)
    tokens: dict[str, Spool] = {}
    counts: dict[str, TokenCounts] = {}
    for name, part in parts.items():
        same = next((other for other in tokens if parts[other].examples is part.examples), None)
        if same is not None:
            tokens[name] = tokens[same]
            continue
        path = folder / f"tokens-{name}"
        tokens[name], counts[name] = tokenize_examples(part.examples, preprocessor, path)
    return Inputs(preprocessor, parts, tokens, counts)


def describe_tokens(counts: dict[str, TokenCounts]) -> list[str]:
    """One line for each tokenized set."""
    return [
        f"{name} rows: {met.tokens / max(1, met.rows):.1f} tokens each,"
        f" {met.unknown_tokens / max(1, met.tokens):.2%} unknown,"
        f" {met.truncated_rows:,} truncated, {met.empty_rows:,} without a token"
        for name, met in counts.items()
    ]


def padded_chunks(source: BatchSource) -> Iterator[np.ndarray]:
    """Token ids of all rows of a source, int32 [B, T], padded with 0."""
    for first in range(0, len(source.rows), CHUNK_ROWS):
        flat, lengths = source.tokens.gather(source.rows[first : first + CHUNK_ROWS])
        yield pad(flat, lengths, len(lengths), int(lengths.max()), 0)["token_ids"]


class _Texts:
    """The texts of a part, read from disk each time they are iterated over."""

    def __init__(self, part: Part):
        self.part = part

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self.part.rows), CHUNK_ROWS):
            yield from self.part.examples.read_texts(self.part.rows[first : first + CHUNK_ROWS])

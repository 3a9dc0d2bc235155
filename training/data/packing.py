"""Token ids of whole texts on disk: long texts are split into pieces, short ones packed into rows."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.text.preprocessor import Preprocessor, long_text_preprocessor, split_lengths
from training.data.text_batches import one_pass
from training.io.example_store import ExampleSet
from training.io.ragged_store import RaggedStore, RaggedStoreWriter

# Maximum number and bytes of texts that are tokenized at once.
CHUNK_ROWS, CHUNK_BYTES = 1024, 1 << 22


@dataclasses.dataclass(frozen=True)
class PieceCounts:
    """Token statistics of an example set."""

    rows: int
    tokens: int  # without special tokens and without truncation
    pieces: int
    cut_rows: int  # longer than a sequence
    empty_rows: int  # no token at all
    unknown_tokens: int

    def describe(self, name: str) -> str:
        """One summary line."""
        return (
            f"{name} rows: {self.tokens / max(1, self.rows):.1f} tokens each,"
            f" {self.unknown_tokens / max(1, self.tokens):.2%} unknown,"
            f" {self.cut_rows:,} cut into pieces, {self.empty_rows:,} without a token"
        )


@dataclasses.dataclass(frozen=True)
class PieceTokens:
    """Pieces of all texts of an example set, on disk.

    Attributes:
        pieces: Token ids of each piece, int32, without special tokens.
        first_pieces: First piece of each text, then the number of pieces, int64 [R + 1].
        preprocessor: The preprocessor that tokenized the texts.
    """

    pieces: RaggedStore
    first_pieces: np.ndarray
    preprocessor: Preprocessor

    def of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Pieces of some texts, in the order of the texts, int64 [P]."""
        firsts, ends = self.first_pieces[rows], self.first_pieces[rows + 1]
        counts = ends - firsts
        return np.arange(int(counts.sum())) + np.repeat(firsts - np.cumsum(counts) + counts, counts)


def cut_pieces(
    examples: ExampleSet, preprocessor: Preprocessor, path: Path
) -> tuple[PieceTokens, PieceCounts]:
    """Writes the token ids of all texts to disk, in pieces that fit between [CLS] and [SEP].

    Raises:
        InputError: No text has a token.
    """
    reader = long_text_preprocessor(preprocessor)
    room = preprocessor.max_length - 2

    def cut(chunk):
        tokens = reader.tokenize(chunk, valid_utf8=True)
        return tokens.flat_values, tokens.row_lengths()

    def texts():
        for rows in _chunks(examples.texts[0].lengths):
            yield examples.read_texts(rows)

    chunks = (
        one_pass(texts(), tf.TensorSpec([None], tf.string))
        .map(
            tf.autograph.experimental.do_not_convert(cut),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        .prefetch(2)
    )
    per_row, tokens, unknown = [np.zeros(1, np.int64)], 0, 0
    with RaggedStoreWriter(path, np.int32) as writer:
        for flat, lengths in chunks.as_numpy_iterator():
            pieces, counts = split_lengths(lengths, room)
            writer.extend(flat, pieces)
            per_row.append(counts)
            tokens += len(flat)
            unknown += int((flat == preprocessor.unknown_id).sum())
        ragged_store = writer.close()
    if not len(ragged_store):
        raise InputError(f"{examples.origin}: expected a text with a token, got none")
    counts = np.concatenate(per_row)
    made = PieceTokens(ragged_store, np.cumsum(counts), preprocessor)
    counts = counts[1:]
    met = PieceCounts(
        len(counts), tokens, len(ragged_store), int((counts > 1).sum()), int((counts == 0).sum()), unknown
    )
    return made, met


def _chunks(sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Consecutive rows, at most CHUNK_ROWS rows and CHUNK_BYTES bytes, but at least one row."""
    first = 0
    while first < len(sizes):
        within = np.cumsum(sizes[first : first + CHUNK_ROWS], dtype=np.int64) <= CHUNK_BYTES
        end = first + max(1, int(within.sum()))
        yield np.arange(first, end)
        first = end


def packed_rows(lengths: np.ndarray, most: int) -> np.ndarray:
    """Packs whole pieces in order into rows `[CLS] a [SEP] b [SEP] …` of at most `most` tokens, as many as fit.

    Args:
        lengths: Tokens of each piece, integers [P], at most `most` - 2.
        most: Maximum tokens of a row.

    Returns:
        First piece of each row, then the number of pieces, int64 [N + 1].
    """
    ends = np.cumsum(np.asarray(lengths, np.int64) + 1)
    firsts, first, done = [0], 0, 0
    while first < len(ends):
        first = int(np.searchsorted(ends, done + most - 1, side="right"))
        firsts.append(first)
        done = ends[first - 1]
    return np.array(firsts, np.int64)


def laid_out(
    flat: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
    shape: tuple[int, int],
    ids: tuple[int, int, int],
) -> tuple[np.ndarray, np.ndarray]:
    """Writes pieces into padded rows with special tokens; returns token ids and padding mask, int32 [shape].

    Args:
        flat: Concatenated token ids of all pieces.
        lengths: Tokens of each piece, integers [P].
        counts: Pieces of each row, integers [N].
        shape: Number and length of rows; rows after the first N are empty.
        ids: Ids of [PAD], [CLS] and [SEP].
    """
    padding, start, end = ids
    rows = np.repeat(np.arange(len(counts)), counts)
    spaces = lengths.astype(np.int64) + 1
    before = np.cumsum(spaces) - spaces
    # Offset of each piece in its row, after [CLS] and the pieces before it.
    row_first = np.cumsum(counts) - counts
    begins = before - before[row_first][rows] + 1
    token_ids = np.full(shape, padding, np.int32)
    mask = np.zeros(shape, np.int32)
    row_lengths = 1 + np.bincount(rows, spaces, len(counts)).astype(np.int64)
    mask[: len(counts)] = np.arange(shape[1]) < row_lengths[:, None]
    token_ids[: len(counts), 0] = start
    token_ids[rows, begins + lengths] = end
    within = np.arange(len(flat)) - np.repeat(np.cumsum(lengths, dtype=np.int64) - lengths, lengths)
    token_ids[np.repeat(rows, lengths), np.repeat(begins, lengths) + within] = flat
    return token_ids, mask

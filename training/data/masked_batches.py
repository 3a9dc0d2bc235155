"""Batches of texts with masked tokens: long texts are split into pieces, short ones packed into rows."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.features import MASK_POSITIONS, PADDING_MASK, TOKEN_IDS
from kmha.text.masking import Masker
from kmha.text.preprocessor import Preprocessor, long_text_preprocessor, split_lengths
from training.data.length_buckets import BatchPlan, filled_up
from training.data.text_batches import Source, one_pass
from training.io.examples import ExampleSet, Masking, mixed
from training.io.ragged_store import RaggedStore, RaggedStoreWriter, concatenate_ranges

# Maximum number and bytes of texts that are tokenized at once.
CHUNK_ROWS, CHUNK_BYTES = 1024, 1 << 22

CHUNK_PIECES = 1024
# Masking key for evaluation, independent of the seed: all runs are evaluated on the same tokens.
EVALUATED = 0
_SEEDS = "seeds"


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
            f" {self.cut_rows:,} split into pieces, {self.empty_rows:,} without a token"
        )


@dataclasses.dataclass(frozen=True)
class PieceTokens:
    """Pieces of all texts of an example set, on disk."""

    pieces: RaggedStore  # int32, without special tokens
    first_pieces: np.ndarray  # of each text, then the number of pieces, int64 [R + 1]
    preprocessor: Preprocessor

    def of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Pieces of some texts, in the order of the texts, int64 [P]."""
        firsts, ends = self.first_pieces[rows], self.first_pieces[rows + 1]
        return concatenate_ranges(firsts, ends - firsts)


def split_into_pieces(
    examples: ExampleSet, preprocessor: Preprocessor, path: Path
) -> tuple[PieceTokens, PieceCounts]:
    """Writes the token ids of all texts to disk, in pieces that fit between [CLS] and [SEP]; InputError if none."""
    reader = long_text_preprocessor(preprocessor)
    room = preprocessor.max_length - 2

    def tokenize(chunk):
        tokens = reader.tokenize(chunk, valid_utf8=True)
        return tokens.flat_values, tokens.row_lengths()

    def texts():
        for rows in _chunks(examples.texts[0].lengths):
            yield examples.read_texts(rows)

    chunks = (
        one_pass(texts(), tf.TensorSpec([None], tf.string))
        .map(
            tf.autograph.experimental.do_not_convert(tokenize),
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

    Returns the first piece of each row, then the number of pieces, int64 [N + 1]; `lengths` are integers [P].
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

    `flat` are the token ids of all pieces, `lengths` [P] their tokens, `counts` [N] the pieces of each row; further
    rows are empty. `ids` are those of [PAD], [CLS] and [SEP].
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


@dataclasses.dataclass(frozen=True)
class MaskedPlan(BatchPlan):
    """A `BatchPlan` with a masking key; the same key masks the same tokens of a row in any batch."""

    key: int = EVALUATED

    @property
    def seeds(self) -> np.ndarray:
        """Seed of each row, int32 [B]."""
        key = mixed(np.array([self.key], np.uint64))
        return (mixed(self.rows.astype(np.uint64) + key) >> np.uint64(32)).astype(np.uint32).view(np.int32)


class MaskedSource(Source):
    """Batches of texts with masked tokens; each token of the texts is in one row. Raises InputError without tokens."""

    def __init__(
        self,
        tokens: PieceTokens,
        rows: np.ndarray,
        masking: Masking,
        full_shapes: bool = False,
        divisor: int = 1,
    ):
        preprocessor = tokens.preprocessor
        self.tokens, self.rows, self.masking = tokens, np.asarray(rows), masking
        self.full_shapes, self.divisor = full_shapes, divisor
        self.targets, self.weights = np.zeros(len(rows), np.int32), np.ones(len(rows), np.float32)
        self.pieces = tokens.of_rows(self.rows)
        if not len(self.pieces):
            raise InputError("expected a text with a token, got none")
        piece_lengths = tokens.pieces.lengths[self.pieces]
        self.first_pieces = (
            packed_rows(piece_lengths, preprocessor.max_length)
            if masking.packed
            else np.arange(len(self.pieces) + 1)
        )
        spaces = np.concatenate([[0], np.cumsum(piece_lengths + 1, dtype=np.int64)])
        self._lengths = (1 + np.diff(spaces[self.first_pieces])).astype(np.int32)
        self.masker = Masker(
            preprocessor.vocabulary, preprocessor.tokenization, masking.share, masking.whole_word
        )
        self._ids = preprocessor.padding_id, preprocessor.start_id, preprocessor.end_id
        table = tf.TensorSpec([None, None], tf.int32)
        self._unmasked = {
            TOKEN_IDS: table,
            PADDING_MASK: table,
            _SEEDS: tf.TensorSpec([None], tf.int32),
            MASK_POSITIONS: tf.TensorSpec([], tf.int32),
        }
        self._masked = tf.function(self._mask, input_signature=[self._unmasked], autograph=False)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each packed row, int32 [N]; row numbers differ from text numbers."""
        return self._lengths

    @property
    def text_lengths(self) -> np.ndarray:
        """Tokens of each piece with its two special tokens, int32 [P]."""
        return self.tokens.pieces.lengths[self.pieces] + 2

    def plans(
        self, buckets: Sequence[int], batch_tokens: int, most_rows: int, rng: np.random.Generator | None
    ) -> list[MaskedPlan]:
        """See `Source`; `rng` also determines the masked tokens, which are fixed without it."""
        plans = super().plans(buckets, batch_tokens, most_rows, rng)
        key = EVALUATED if rng is None else int(rng.integers(1, 2**63))
        return [MaskedPlan(plan.rows, plan.length, plan.capacity, key=key) for plan in plans]

    def different_ids(self, granularity: int = 0) -> Iterator[np.ndarray]:
        """Token ids of all pieces with [CLS] and [SEP], int32 [B, T], padded with 0."""
        for first in range(0, len(self.pieces), CHUNK_PIECES):
            flat, lengths = self.tokens.pieces.gather(self.pieces[first : first + CHUNK_PIECES])
            shape = len(lengths), int(lengths.max()) + 2
            yield laid_out(flat, lengths, np.ones(len(lengths), int), shape, (0, *self._ids[1:]))[0]

    def token_counts(self) -> np.ndarray:
        """Frequency of each token in the texts, without added special tokens, int64 [V]."""
        size = len(self.tokens.preprocessor.vocabulary)
        counts = np.zeros(size, np.int64)
        for first in range(0, len(self.pieces), CHUNK_PIECES):
            flat, _ = self.tokens.pieces.gather(self.pieces[first : first + CHUNK_PIECES])
            counts += np.bincount(flat, minlength=size)
        return counts

    def batch(self, plan: MaskedPlan) -> dict:
        """Returns one batch as NumPy arrays: "features", "targets" int32 [B, M], "weights" (masked tokens per row)."""
        return tf.nest.map_structure(lambda value: value.numpy(), self._masked(self._whole(plan)))

    def dataset(self, plans: Sequence[MaskedPlan]) -> tf.data.Dataset:
        """See `Source`; tokens are masked in the graph."""
        batches = one_pass((self._whole(plan) for plan in plans), self._unmasked)
        # Traced once, not in each epoch.
        return batches.map(self._masked, num_parallel_calls=2, deterministic=True).prefetch(4)

    def _whole(self, plan: MaskedPlan) -> dict[str, np.ndarray]:
        """A batch before masking, with the seed of each row and the number of mask slots per row."""
        firsts, ends = self.first_pieces[plan.rows], self.first_pieces[plan.rows + 1]
        counts = ends - firsts
        flat, lengths = self.tokens.pieces.gather(self.pieces[concatenate_ranges(firsts, counts)])
        rows = filled_up(plan.capacity if self.full_shapes else len(plan.rows), self.divisor)
        token_ids, mask = laid_out(flat, lengths, counts, (rows, plan.length), self._ids)
        seeds = np.zeros(rows, np.int32)
        seeds[: len(plan.rows)] = plan.seeds
        slots = np.array(self.masker.slots(plan.length), np.int32)
        return {TOKEN_IDS: token_ids, PADDING_MASK: mask, _SEEDS: seeds, MASK_POSITIONS: slots}

    def _mask(self, whole: dict[str, tf.Tensor]) -> dict:
        masked = self.masker(whole[TOKEN_IDS], whole[PADDING_MASK], whole[_SEEDS], whole[MASK_POSITIONS])
        weights = tf.reduce_sum(tf.cast(masked.targets >= 0, tf.float32), axis=1)
        return {"features": masked.features, "targets": masked.targets, "weights": weights}

"""Batches of texts with masked tokens, made ahead of time by tf.data."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.features import MASK_POSITIONS, PADDING_MASK, TOKEN_IDS
from kmha.text.masking import Masker
from training.data.length_buckets import BatchPlan, bucket_lengths, filled_up, plan_batches
from training.data.packing import PieceTokens, laid_out, packed_rows
from training.data.text_batches import one_pass
from training.io.example_store import mixed
from training.io.types import Masking

CHUNK_PIECES = 1024
# Masking key for evaluation, independent of the seed: all runs are evaluated on the same tokens.
EVALUATED = 0
_SEEDS = "seeds"


@dataclasses.dataclass(frozen=True)
class MaskedPlan(BatchPlan):
    """A `BatchPlan` with a masking key; the same key masks the same tokens of a row in any batch."""

    key: int = EVALUATED

    @property
    def seeds(self) -> np.ndarray:
        """Seed of each row, int32 [B]."""
        key = mixed(np.array([self.key], np.uint64))
        return (mixed(self.rows.astype(np.uint64) + key) >> np.uint64(32)).astype(np.uint32).view(np.int32)


class MaskedSource:
    """Batches of texts with masked tokens; each token of the texts is in one row. Raises InputError without tokens.

    Args:
        tokens: Pieces of all texts of an example set.
        rows: The texts of this part, int64 [R].
        masking: How tokens are masked, and whether texts share rows (in the given order).
        full_shapes: As in `BatchSource`.
        divisor: Number of replicas that share a batch.
    """

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
        self._signature = {
            TOKEN_IDS: table,
            PADDING_MASK: table,
            _SEEDS: tf.TensorSpec([None], tf.int32),
            MASK_POSITIONS: tf.TensorSpec([], tf.int32),
        }
        self._masked = tf.function(self._mask, input_signature=[self._signature], autograph=False)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each packed row, int32 [N]; row numbers differ from text numbers."""
        return self._lengths

    @property
    def text_lengths(self) -> np.ndarray:
        """Tokens of each piece with its two special tokens, int32 [P]."""
        return self.tokens.pieces.lengths[self.pieces] + 2

    def buckets(self, others: Sequence["MaskedSource"], most: int) -> list[int]:
        """Padded lengths for the rows of this and other sources, ascending."""
        return bucket_lengths(np.concatenate([each.lengths for each in (self, *others)]), most)

    def plans(
        self, buckets: Sequence[int], batch_tokens: int, most_rows: int, rng: np.random.Generator | None
    ) -> list[MaskedPlan]:
        """As `plan_batches`; `rng` also determines the masked tokens, which are fixed without it."""
        longest = int(self.lengths.max(initial=1))
        buckets = [*buckets] + [longest] * (longest > buckets[-1])
        plans = plan_batches(self.lengths, buckets, batch_tokens, most_rows, rng)
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
        """Returns the batches in the order of the plans, prefetched."""
        batches = one_pass((self._whole(plan) for plan in plans), self._signature)
        return batches.map(
            tf.autograph.experimental.do_not_convert(self._mask), num_parallel_calls=2, deterministic=True
        ).prefetch(4)

    def _whole(self, plan: MaskedPlan) -> dict[str, np.ndarray]:
        """A batch before masking, with the seed of each row and the number of mask slots per row."""
        firsts, ends = self.first_pieces[plan.rows], self.first_pieces[plan.rows + 1]
        counts = ends - firsts
        places = np.arange(int(counts.sum())) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
        flat, lengths = self.tokens.pieces.gather(self.pieces[places])
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

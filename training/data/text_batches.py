"""Padded batches of texts, tokenized once by the Preprocessor and read from disk in any order."""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.document_windows import WindowShape
from kmha.features import PADDING_MASK, POSITION_IDS, SEGMENT_IDS, TEXT_FEATURES, TOKEN_IDS
from kmha.text.preprocessor import Preprocessor
from training.config.config import TrainSection
from training.data.length_buckets import BatchPlan, bucket_lengths, filled_up, plan_batches
from training.io.examples import ExampleSet
from training.io.ragged_store import RaggedStore, RaggedStoreWriter

CHUNK_ROWS = 1024


@dataclasses.dataclass(frozen=True)
class TokenCounts:
    """Token statistics of an example set."""

    rows: int
    tokens: int  # with special tokens, after truncation
    truncated_rows: int  # at max_length tokens, or at max_bytes before tokenization
    empty_rows: int  # no token at all; not skipped
    unknown_tokens: int

    def describe(self, name: str) -> str:
        """One summary line."""
        return (
            f"{name} rows: {self.tokens / max(1, self.rows):.1f} tokens each,"
            f" {self.unknown_tokens / max(1, self.tokens):.2%} unknown,"
            f" {self.truncated_rows:,} truncated, {self.empty_rows:,} without a token"
        )


def token_chunks(texts: Iterator[Sequence[str]], preprocessor: Preprocessor) -> tf.data.Dataset:
    """Tokenizes chunks of texts in parallel.

    A chunk gives its token ids with special tokens, int32 concatenated; lengths, int64 [R]; and tokens of each row
    before truncation, int64 [R] (-1 if its bytes were truncated first).
    """

    def tokenize(chunk):
        tokens = preprocessor.tokenize(chunk, valid_utf8=True)
        sequences = preprocessor.add_special_tokens(tokens)
        capped = tf.strings.length(chunk) > preprocessor.max_bytes
        return (
            sequences.flat_values,
            sequences.row_lengths(),
            tf.where(capped, np.int64(-1), tokens.row_lengths()),
        )

    return (
        one_pass(texts, tf.TensorSpec([None], tf.string))
        .map(
            tf.autograph.experimental.do_not_convert(tokenize),
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=True,
        )
        .prefetch(4)
    )


def one_pass(items: Iterator[Any], signature: Any) -> tf.data.Dataset:
    """Makes a dataset from an iterator of NumPy arrays; a second iteration raises an error.

    TensorFlow keeps the generator function of a dataset for the lifetime of the process. An exhausted iterator releases
    its objects, so files and arrays do not stay open. The iterator must not keep references to earlier items.
    """
    left = [items]

    def given() -> Iterator[Any]:
        if not left:
            raise RuntimeError("expected a dataset that was not gone through before")
        return left.pop()

    return tf.data.Dataset.from_generator(given, output_signature=signature)


def tokenize_examples(
    examples: ExampleSet,
    preprocessor: Preprocessor,
    path: Path,
    field: int = 0,
    rows: np.ndarray | None = None,
) -> tuple[RaggedStore, TokenCounts]:
    """Writes the token ids of rows (None: all) of an example set to disk, int32 with special tokens."""

    def chunks():
        for first in range(0, total, CHUNK_ROWS):
            end = min(first + CHUNK_ROWS, total)
            yield examples.read_texts(np.arange(first, end) if rows is None else rows[first:end], field)

    total = len(examples) if rows is None else len(rows)
    tokens = truncated = empty = unknown = 0
    unknown_id = preprocessor.unknown_id
    with RaggedStoreWriter(path, np.int32) as writer:
        for flat, lengths, before in token_chunks(chunks(), preprocessor).as_numpy_iterator():
            writer.extend(flat, lengths)
            tokens += len(flat)
            truncated += int(((before < 0) | (before > preprocessor.max_length - 2)).sum())
            empty += int((lengths == 2).sum())
            unknown += int((flat == unknown_id).sum())
        ragged_store = writer.close()
    return ragged_store, TokenCounts(len(ragged_store), tokens, truncated, empty, unknown)


def pad(
    flat: np.ndarray, lengths: np.ndarray, rows: int, length: int, padding_id: int
) -> dict[str, np.ndarray]:
    """Features int32 [rows, length] of concatenated sequences; rows after the last sequence are empty."""
    token_ids, mask = padded_ids(flat, lengths, rows, length, padding_id)
    return {TOKEN_IDS: token_ids, SEGMENT_IDS: np.zeros_like(token_ids), PADDING_MASK: mask}


def padded_ids(
    flat: np.ndarray, lengths: np.ndarray, rows: int, length: int, padding_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and mask, int32 [rows, length], of concatenated sequences; further rows are empty."""
    mask = np.zeros((rows, length), np.int32)
    mask[: len(lengths)] = np.arange(length) < lengths[:, None]
    token_ids = np.full((rows, length), padding_id, np.int32)
    token_ids[mask.astype(bool)] = flat
    return token_ids, mask


class Source(abc.ABC):
    """Batches of one part of the data, made ahead of time by tf.data."""

    rows: np.ndarray  # the rows of this part
    targets: np.ndarray
    weights: np.ndarray
    windows: WindowShape | None = None  # how the model splits long rows
    feature_names: Sequence[str] = TEXT_FEATURES

    @property
    @abc.abstractmethod
    def lengths(self) -> np.ndarray:
        """Tokens of each row, integers [R]."""

    @property
    def text_lengths(self) -> np.ndarray:
        """Tokens of each text, integers."""
        return self.lengths

    def buckets(self, others: Sequence[Any], most: int = TrainSection.buckets) -> list[Any]:
        """At most so many padded lengths for the rows of this and other sources, ascending."""
        return bucket_lengths(np.concatenate([each.lengths for each in (self, *others)]), most, self.windows)

    def plans(
        self, buckets: Sequence[Any], batch_tokens: int, most_rows: int, rng: np.random.Generator | None
    ) -> list[Any]:
        """As `plan_batches`; rows longer than the last bucket get an additional bucket."""
        longest = int(self.lengths.max(initial=1))
        padded_lengths = [*buckets] + [longest] * (longest > buckets[-1])
        return plan_batches(self.lengths, padded_lengths, batch_tokens, most_rows, rng, self.windows)

    def batch_plan(self, rows: np.ndarray) -> Any:
        """One batch of these rows, int [B], padded to the longest."""
        return BatchPlan(rows, int(self.lengths[rows].max()), len(rows), self.windows)

    @abc.abstractmethod
    def different_ids(self, granularity: int = 0) -> Iterator[np.ndarray]:
        """Token ids of the texts at a granularity, int32 [B, T], padded with 0."""

    @abc.abstractmethod
    def batch(self, plan: Any) -> dict:
        """Returns one batch as NumPy arrays: "features", "targets", "weights"."""

    def _signature(self) -> dict[str, Any]:
        return {
            "features": dict.fromkeys(self.feature_names, tf.TensorSpec([None, None], tf.int32)),
            "targets": tf.TensorSpec([None, *self.targets.shape[1:]], self.targets.dtype),
            "weights": tf.TensorSpec([None], tf.float32),
        }

    def dataset(self, plans: Sequence[Any]) -> tf.data.Dataset:
        """Returns the batches in the order of the plans, prefetched; see `one_pass`."""
        return one_pass((self.batch(plan) for plan in plans), self._signature()).prefetch(4)


@dataclasses.dataclass(eq=False)
class BatchSource(Source):
    """Batches of one part of the texts."""

    tokens: RaggedStore  # token ids of all rows of an example set
    rows: np.ndarray  # int64 [R]
    targets: np.ndarray  # [R, …]
    weights: np.ndarray  # float32 [R]
    padding_id: int
    # Whether every batch has the full number of rows of its bucket, filled with rows of weight 0, so that XLA compiles
    # each shape once. Otherwise rows are filled to a multiple of `divisor`.
    full_shapes: bool = False
    divisor: int = 1  # number of replicas that share a batch
    windows: WindowShape | None = None  # batch sizes follow the computed tokens

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, int32 [R]."""
        return self.tokens.lengths[self.rows]

    def different_ids(self, granularity: int = 0) -> Iterator[np.ndarray]:
        """Token ids of all rows, sorted by length, int32 [B, T], padded with 0."""
        rows = self.rows[np.argsort(self.lengths, kind="stable")]
        for first in range(0, len(rows), CHUNK_ROWS):
            flat, lengths = self.tokens.gather(rows[first : first + CHUNK_ROWS])
            yield padded_ids(flat, lengths, len(lengths), int(lengths.max()), 0)[0]

    def batch(self, plan: BatchPlan) -> dict:
        """Returns one batch as NumPy arrays: "features", "targets", "weights"."""
        count = filled_up(plan.capacity if self.full_shapes else len(plan.rows), self.divisor)
        filler = count - len(plan.rows)
        return {
            "features": self._features(self.rows[plan.rows], count, plan.length),
            "targets": _fill(self.targets[plan.rows], filler),
            "weights": _fill(self.weights[plan.rows], filler),
        }

    def _features(self, rows: np.ndarray, count: int, length: int) -> dict[str, np.ndarray]:
        """Features int32 [count, length] of these rows of the tokens."""
        flat, lengths = self.tokens.gather(rows)
        return pad(flat, lengths, count, length, self.padding_id)

    def without_tokens(self, share: float, seed: Sequence[int]) -> "BatchSource":
        """The same rows without a share of the tokens of each text, chosen by the seed."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return ShortenedSource(**fields, share=share, seed=seed) if share else self


@dataclasses.dataclass(eq=False)
class ShortenedSource(BatchSource):
    """Batches of texts without some random tokens, against overfitting to single tokens.

    A text is as short with every seed, so epochs have the same batches. Its first and last token, [CLS] and [SEP],
    remain. The positions of the others are those in the whole text: with consecutive ones, models of short texts do not
    learn the last positions. What remains of a text depends on its row and the seed only, not on its batch.
    """

    share: float = dataclasses.field(kw_only=True)  # of the other tokens, left out
    seed: Sequence[int] = dataclasses.field(kw_only=True)
    feature_names = (*TEXT_FEATURES, POSITION_IDS)

    @property
    def lengths(self) -> np.ndarray:
        """Remaining tokens of each row, int32 [R]."""
        return self._remaining(super().lengths)

    def _remaining(self, lengths: np.ndarray) -> np.ndarray:
        return lengths - (self.share * np.maximum(lengths - 2, 0)).astype(np.int32)

    def _features(self, rows: np.ndarray, count: int, length: int) -> dict[str, np.ndarray]:
        flat, lengths = self.tokens.gather(rows)
        remaining = self._remaining(lengths)
        ends = np.cumsum(lengths)
        positions = np.arange(len(flat), dtype=np.int32) - np.repeat(ends - lengths, lengths)
        order = _random_numbers(np.repeat(rows, lengths), positions, self.seed)
        order[ends - lengths] = order[ends - 1] = 0
        ranked = np.lexsort((order, np.repeat(np.arange(len(rows)), lengths)))
        chosen = np.sort(ranked[positions < np.repeat(remaining, lengths)])
        features = pad(flat[chosen], remaining, count, length, self.padding_id)
        features[POSITION_IDS] = padded_ids(positions[chosen], remaining, count, length, 0)[0]
        return features


def _random_numbers(rows: np.ndarray, positions: np.ndarray, seed: Sequence[int]) -> np.ndarray:
    """A pseudorandom number of each row and position, uint64 [T] (the mixing function of SplitMix64)."""
    mixed = (rows.astype(np.uint64) << np.uint64(32)) + positions.astype(np.uint64)
    mixed += np.random.SeedSequence(seed).generate_state(1, np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(31))


def _fill(values: np.ndarray, filler: int) -> np.ndarray:
    return np.concatenate([values, np.zeros((filler, *values.shape[1:]), values.dtype)]) if filler else values

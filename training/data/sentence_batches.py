"""Padded batches of sentences, tokenized once into windows and read from disk in any order."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.features import CHARACTER_IDS, MAX_WORDS, SPELLING_LENGTH, WORD_MASK, WORD_STARTS
from kmha.text.sentence_preprocessor import SentencePreprocessor
from kmha.text.words import Ragged
from training.data.length_buckets import BatchPlan
from training.data.text_batches import BatchSource, Source
from training.io.examples import ExampleSet
from training.io.ragged_store import RaggedStore, RaggedStoreWriter, concatenate_ranges
from training.tasks.tag.rows import read_sentences

CHUNK_ROWS = 512
# Target of positions without a word. The loss is averaged per word.
NO_TAG = -1


@dataclasses.dataclass(frozen=True)
class SentenceCounts:
    """Token statistics of an example set."""

    rows: int
    words: int
    tokens: int  # with special tokens; tokens in two windows count twice
    windowed_rows: int  # longer than one window
    unknown_tokens: int

    def describe(self, name: str) -> str:
        """One summary line."""
        return (
            f"{name} sentences: {self.words / max(1, self.rows):.1f} words each,"
            f" {self.tokens / max(1, self.words):.2f} tokens a word, {self.unknown_tokens / max(1, self.tokens):.2%}"
            f" unknown, {self.windowed_rows:,} read in several windows"
        )


@dataclasses.dataclass(frozen=True)
class SentenceTokens:
    """Windows of all sentences of an example set, on disk."""

    sequences: RaggedStore  # token ids of each window, int32, with special tokens
    starts: RaggedStore  # token index of each word in the window, int32; words to tag come first
    spellings: RaggedStore | None  # 20 character ids of each of these words, int16
    counts: np.ndarray  # words to tag in each window, int64 [V]
    first_windows: np.ndarray  # of each sentence, then the number of windows, int64 [R + 1]


def tokenize_sentences(
    examples: ExampleSet, preprocessor: SentencePreprocessor, path: Path
) -> tuple[SentenceTokens, SentenceCounts]:
    """Writes the windows of all sentences to disk, in three stores with the name prefix `path`.

    Raises InputError with its place if a sentence has too many words.
    """

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int64)], autograph=False
    )
    def encode(words, lengths):
        found = preprocessor.encode(Ragged.from_row_lengths(words, lengths))
        windows = found.windows
        spelled = tf.zeros([0], tf.int32)
        if found.spellings is not None:
            spelled = tf.reshape(tf.gather(found.spellings, windows.words.flat_values), [-1])
        return windows, spelled

    counts, per_row, words, windowed = [], [], 0, 0
    names = ("sequences", "starts", "spellings")[: 3 if preprocessor.characters else 2]
    types = {"sequences": np.int32, "starts": np.int32, "spellings": np.int16}
    tokens = unknown = 0
    with ExitStack() as files:
        writers = {
            name: files.enter_context(RaggedStoreWriter(path.with_name(f"{path.name}-{name}"), types[name]))
            for name in names
        }
        for first in range(0, len(examples), CHUNK_ROWS):
            chunk = read_sentences(examples, np.arange(first, min(first + CHUNK_ROWS, len(examples))))
            lengths = np.array([len(sentence) for sentence in chunk], np.int64)
            if (lengths > MAX_WORDS).any():
                row = int(np.argmax(lengths > MAX_WORDS))
                raise InputError(
                    f"{examples.place(first + row)}: expected a sentence of at most {MAX_WORDS:,} words,"
                    f" got {lengths[row]:,}"
                )
            flat = [word.encode("utf-8", "replace") for sentence in chunk for word in sentence]
            windows, spelled = encode(tf.constant(flat, tf.string), lengths)
            sequence, places = windows.sequences.flat_values.numpy(), windows.starts.row_lengths().numpy()
            writers["sequences"].extend(sequence, windows.sequences.row_lengths().numpy())
            writers["starts"].extend(windows.starts.flat_values.numpy(), places)
            if preprocessor.characters:
                writers["spellings"].extend(spelled.numpy(), places * SPELLING_LENGTH)
            counts.append(windows.counts.numpy())
            per_row.append(np.bincount(windows.sentences.numpy(), minlength=len(chunk)))
            words += len(flat)
            windowed += int((per_row[-1] > 1).sum())
            tokens += len(sequence)
            unknown += int((sequence == preprocessor.unknown_id).sum())
        ragged_stores = {name: writer.close() for name, writer in writers.items()}
    first_windows = np.concatenate([[0], np.cumsum(np.concatenate(per_row))]).astype(np.int64)
    made = SentenceTokens(
        ragged_stores["sequences"],
        ragged_stores["starts"],
        ragged_stores.get("spellings"),
        np.concatenate(counts),
        first_windows,
    )
    return made, SentenceCounts(len(examples), words, tokens, windowed, unknown)


@dataclasses.dataclass(eq=False)
class SentenceSource(Source):
    """Batches of windows of some sentences; the rows of a plan are windows."""

    tokens: SentenceTokens  # of all sentences of an example set
    rows: np.ndarray  # the sentences of this part, int64 [R]
    targets: (
        np.ndarray
    )  # of all words, concatenated over the sentences, [N, …]; for example tag ids, int32 [N]
    weights: np.ndarray  # of each sentence, float32 [R]; a window weighs that much per word
    padding_id: int
    full_shapes: bool = False  # as in `BatchSource`
    divisor: int = 1

    feature_names = (*Source.feature_names, WORD_STARTS, WORD_MASK)

    def __post_init__(self):
        tokens, rows = self.tokens, self.rows
        firsts, ends = tokens.first_windows[rows], tokens.first_windows[rows + 1]
        self._windows = concatenate_ranges(firsts, ends - firsts)
        self.window_rows = np.repeat(np.arange(len(rows)), ends - firsts)
        self.counts = tokens.counts[self._windows]
        # Offset of each window's words in the targets.
        self.begins = np.cumsum(self.counts) - self.counts
        weights = self.weights[self.window_rows] * self.counts.astype(np.float32)
        numbers = np.arange(len(self._windows))
        self._tokens = BatchSource(
            tokens.sequences, self._windows, numbers, weights, self.padding_id, self.full_shapes, self.divisor
        )

    @property
    def word_counts(self) -> np.ndarray:
        """Words of each sentence, int64 [R]."""
        return np.bincount(self.window_rows, self.counts, len(self.rows)).astype(np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each window, int32 [V]."""
        return self._tokens.lengths

    def different_ids(self, granularity: int = 0) -> Iterator[np.ndarray]:
        """Token ids of all windows, int32 [B, T], padded with 0."""
        return self._tokens.different_ids(granularity)

    def batch(self, plan: BatchPlan) -> dict:
        """Returns one batch as NumPy arrays: "features", "targets" [B, W, …], "weights"."""
        batch = self._tokens.batch(plan)
        rows, windows = len(batch["weights"]), self._windows[plan.rows]
        flat, lengths = self.tokens.starts.gather(windows)
        # XLA compiles each shape: full shapes have the maximum number of words.
        width = plan.length - 2 if self.full_shapes else max(1, int(lengths.max(initial=1)))
        there = _prefixes(lengths, rows, width)
        starts = np.zeros((rows, width), np.int32)
        starts[there] = flat
        tagged = _prefixes(self.counts[plan.rows], rows, width)
        targets = np.full((rows, width, *self.targets.shape[1:]), NO_TAG, self.targets.dtype)
        targets[tagged] = np.concatenate(
            [self.targets[self.begins[w] : self.begins[w] + self.counts[w]] for w in plan.rows]
            + [self.targets[:0]]
        )
        batch["features"] |= {WORD_STARTS: starts, WORD_MASK: tagged.astype(np.int32)}
        if self.tokens.spellings is not None:
            spelled, _ = self.tokens.spellings.gather(windows)
            characters = np.zeros((rows, width, SPELLING_LENGTH), np.int32)
            characters[there] = spelled.reshape(-1, SPELLING_LENGTH)
            batch["features"][CHARACTER_IDS] = characters
        return batch | {"targets": targets}

    def _signature(self) -> dict[str, Any]:
        signature = super()._signature()
        if self.tokens.spellings is not None:
            signature["features"][CHARACTER_IDS] = tf.TensorSpec([None, None, SPELLING_LENGTH], tf.int32)
        targets = tf.TensorSpec([None, None, *self.targets.shape[1:]], self.targets.dtype)
        return signature | {"targets": targets}


def _prefixes(lengths: np.ndarray, rows: int, width: int) -> np.ndarray:
    """Bool [rows, width] with the first `lengths[i]` columns of row i True; further rows are False."""
    full = np.zeros(rows, np.int64)
    full[: len(lengths)] = lengths
    return np.arange(width) < full[:, None]

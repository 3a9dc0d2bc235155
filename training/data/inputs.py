"""Model inputs: token ids of all rows on disk, and batches of them."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kmha.bundle.files import parts_of
from kmha.document_windows import WindowShape
from kmha.text.sentence_preprocessor import SentencePreprocessor
from kmha.text.vocabulary import Vocabulary
from training.config.config import TextSection
from training.data.masked_batches import MaskedSource
from training.data.packing import cut_pieces
from training.data.pair_batches import PairSource
from training.data.sentence_batches import SentenceSource, SentenceTokens, cut_sentences
from training.data.text_batches import BatchSource, tokenize_examples
from training.data.tokenizer_training import make_preprocessor
from training.io.ragged_store import RaggedStore
from training.io.types import Masking, Subset, TrainingSet
from training.tasks.protocol import Task


class JoinedRaggedStore:
    """Two stores of the same dtype, read as one; the rows of `second` follow those of `first`. See `RaggedStore`."""

    def __init__(self, first: RaggedStore, second: RaggedStore):
        self._parts = first, second
        self.dtype = first.dtype
        self.lengths = np.concatenate([first.lengths, second.lengths])

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    def read(self, row: int) -> np.ndarray:
        """Reads one row, 1-D."""
        return self.gather(np.array([row]))[0]

    def gather(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Concatenated elements of some rows in the given order, and their lengths, int32 [R]."""
        rows = np.asarray(rows, np.int64)
        lengths = self.lengths[rows]
        flat = np.empty(int(lengths.sum(dtype=np.int64)), self.dtype)
        border = len(self._parts[0])
        late = rows >= border
        of_late = np.repeat(late, lengths)
        flat[~of_late] = self._parts[0].gather(rows[~late])[0]
        flat[of_late] = self._parts[1].gather(rows[late] - border)[0]
        return flat, lengths


def joined_tokens(first: Any, second: Any) -> Any:
    """Concatenates the tokens of two example sets from the same preprocessor, in the format of `Inputs.tokens`."""
    if not isinstance(first, SentenceTokens):
        return [JoinedRaggedStore(*ragged_stores) for ragged_stores in zip(first, second, strict=True)]
    spellings = None
    if first.spellings is not None:
        spellings = JoinedRaggedStore(first.spellings, second.spellings)
    return SentenceTokens(
        JoinedRaggedStore(first.sequences, second.sequences),  # pyright: ignore  (same methods as RaggedStore)
        JoinedRaggedStore(first.starts, second.starts),  # pyright: ignore
        spellings,  # pyright: ignore
        np.concatenate([first.counts, second.counts]),
        np.concatenate([first.first_windows, second.first_windows[1:] + first.first_windows[-1]]),
    )


class Source(Protocol):
    """Interface of `BatchSource`, `PairSource`, `SentenceSource` and `MaskedSource`."""

    targets: np.ndarray
    weights: np.ndarray
    rows: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, integers [R]."""
        ...

    @property
    def text_lengths(self) -> np.ndarray:
        """Tokens of each text, integers."""
        ...

    def buckets(self, others: Any, most: int) -> list[Any]:
        """Padded lengths for the rows of this and other sources, ascending."""
        ...

    def plans(
        self, buckets: Any, batch_tokens: int, most_rows: int, rng: np.random.Generator | None
    ) -> list[Any]:
        """Groups rows of similar lengths into batches; every row appears exactly once."""
        ...

    def batch(self, plan: Any) -> dict:
        """Returns one batch as NumPy arrays: "features", "targets", "weights"."""
        ...

    def dataset(self, plans: Any) -> Any:
        """Returns the batches in the order of the plans, prefetched."""
        ...

    def different_ids(self, granularity: int) -> Iterator[np.ndarray]:
        """Token ids of the texts at a granularity, int32 [B, T], padded with 0."""
        ...


@dataclasses.dataclass(frozen=True)
class TrainingSets:
    """The training batches.

    Attributes:
        of: Maps the number of a part, counted over all epochs, and whether it is the last one to its batches.
        per_epoch: Number of parts that contain all rows.
    """

    of: Callable[..., Source]
    per_epoch: int = 1


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The tokenized parts of the data, by name.

    Args:
        preprocessor: A `Preprocessor`, `SentencePreprocessor` or, for pairs, a `PairPreprocessor`.
        parts: Name to rows.
        tokens: Name to token ids: a `RaggedStore` for each input of the preprocessor, `SentenceTokens` for sentences,
            or `PieceTokens` for masked language modeling. Parts of one example set share them.
        counts: Token statistics, one entry for each example set and input.
        masking: Token masking, for masked language modeling.
        windows: How the model splits long texts into windows, if it does.
    """

    preprocessor: Any
    parts: dict[str, Subset]
    tokens: dict[str, Any]
    counts: dict[str, Any]
    masking: Masking | None = None
    windows: WindowShape | None = None

    @property
    def per_epoch(self) -> int:
        """Number of parts that contain all training rows; more than one for large data."""
        return 1

    def part(self, name: str) -> Subset:
        """Returns a part; with its token batches for masked language modeling."""
        part = self.parts[name]
        if self.masking is None:
            return part
        return dataclasses.replace(part, source=self.evaluated(name, np.zeros(len(part.rows), np.int32)))

    def text_lengths(self, name: str) -> np.ndarray:
        """Tokens of each text of a part at the first granularity, int32; for pairs, all first texts come first."""
        if self.masking is not None:
            return self.part(name).source.text_lengths
        if isinstance(self.preprocessor, SentencePreprocessor):
            tokens = self.tokens[name]
            firsts, ends = (tokens.first_windows[self.parts[name].rows + end] for end in (0, 1))
            windows = [np.arange(first, end) for first, end in zip(firsts, ends, strict=True)]
            return tokens.sequences.lengths[np.concatenate(windows)]
        ragged_stores = self.tokens[name][: self.preprocessor.num_texts]
        return np.concatenate([ragged_store.lengths[self.parts[name].rows] for ragged_store in ragged_stores])

    def with_texts(self, rows: np.ndarray) -> tuple["Inputs", np.ndarray]:
        """Appends the unlabeled texts, if any, to the tokens and row numbers of the training set.

        Args:
            rows: Training rows, int64 [R]; for pairs int64 [R, 2].
        """
        if "texts" not in self.parts:
            return self, rows
        more = self.parts["texts"].rows + len(self.parts["train"].examples)
        more = more if rows.ndim == 1 else np.stack([more, more], axis=1)
        joined = joined_tokens(self.tokens["train"], self.tokens["texts"])
        return dataclasses.replace(self, tokens=self.tokens | {"train": joined}), np.concatenate([rows, more])

    def evaluated(self, name: str, targets: np.ndarray) -> Source:
        """Batches of a part for evaluation; targets [R, …] are aligned with its rows."""
        rows = self.parts[name].rows
        rows = rows if self.preprocessor.num_texts == 1 else np.stack([rows, rows], axis=1)
        return self.source(name, TrainingSet(rows, targets, np.ones(len(rows), np.float32)))

    def training_sets(
        self, task: Task, part: Subset, labels: Sequence[str], seed: int, **options
    ) -> TrainingSets:
        """Returns all rows of `part` as one source; `labels` name the model outputs, `options` as in `source`."""
        source = self.source("train", task.training_set(part, labels, seed), **options)
        return TrainingSets(lambda number, last=False: source)

    def close(self) -> None:
        """Waits for background work; the folder of the tokens can be removed afterwards."""

    def source(self, name: str, training_set: TrainingSet, **options) -> Source:
        """Batches of the rows of `training_set` in part `name`; `options` are further arguments of the source class."""
        tokens, given = self.tokens[name], self.preprocessor.inputs
        if self.masking is not None:
            return MaskedSource(tokens, training_set.rows, self.masking, **options)
        if isinstance(self.preprocessor, SentencePreprocessor):
            return SentenceSource(
                tokens,
                training_set.rows,
                training_set.targets,
                training_set.weights,
                self.preprocessor.padding_id,
                **options,
            )
        if self.preprocessor.num_texts == 1:
            options |= {"padding_id": self.preprocessor.padding_id, "windows": self.windows}
            return BatchSource(
                tokens[0], training_set.rows, training_set.targets, training_set.weights, **options
            )
        return PairSource(
            given,
            tokens,
            training_set.rows,
            training_set.targets,
            training_set.weights,
            training_set.lists,
            **options,
        )


def make_inputs(
    text: TextSection,
    parts: dict[str, Subset],
    folder: Path,
    task: Task,
    vocabulary: Vocabulary | None = None,
) -> Inputs:
    """Builds the preprocessor and tokenizes every part; see `make_preprocessor` and `cut_parts`."""
    preprocessor = make_preprocessor(text, parts, task, vocabulary)
    return cut_parts(preprocessor, parts, folder, task.masking, task.windows)


def cut_parts(
    preprocessor: Any,
    parts: dict[str, Subset],
    folder: Path,
    masking: Masking | None = None,
    windows: WindowShape | None = None,
) -> Inputs:
    """Tokenizes every part with an existing preprocessor and writes the token ids to `folder`; see `Inputs`."""
    num_texts = preprocessor.num_texts
    tokens: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    for name, part in parts.items():
        same = next((other for other in tokens if parts[other].examples is part.examples), None)
        if same is not None:
            tokens[name] = tokens[same]
            continue
        if masking is not None:
            path = folder / f"tokens-{name}"
            tokens[name], counts[name] = cut_pieces(part.examples, parts_of(preprocessor)[""], path)
            continue
        if isinstance(preprocessor, SentencePreprocessor):
            tokens[name], counts[name] = cut_sentences(part.examples, preprocessor, folder / f"tokens-{name}")
            continue
        tokens[name] = []
        for given in preprocessor.inputs:
            path = folder / f"tokens-{name}-{given.ids}"
            ragged_store, met = tokenize_examples(part.examples, given.part, path, given.text)
            tokens[name].append(ragged_store)
            counts[name if num_texts == 1 else f"{name} {given.ids}"] = met
    return Inputs(preprocessor, parts, tokens, counts, masking, windows)

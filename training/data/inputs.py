"""What a model reads of the data: token ids of every row on disk, and batches of them."""

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
    """Two spools read as one; for the attributes and methods see `RaggedStore`.

    Args:
        first: Has the rows from 0 on.
        second: Has the rows after those; of the same dtype.
    """

    def __init__(self, first: RaggedStore, second: RaggedStore):
        self._parts = first, second
        self.dtype = first.dtype
        self.lengths = np.concatenate([first.lengths, second.lengths])

    def __len__(self) -> int:
        """Counts the rows."""
        return len(self.lengths)

    def read(self, row: int) -> np.ndarray:
        """Reads one row, 1-D."""
        return self.gather(np.array([row]))[0]

    def gather(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The elements of some rows one after another, in the order asked for, and their lengths int32 [R]."""
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
    """The tokens of a set and, after its rows, of another one; as `Inputs.tokens` holds them of each.

    Args:
        first: A spool for each input, or of sentences `SentenceTokens`.
        second: The same of other rows, cut by the same preprocessor.
    """
    if not isinstance(first, SentenceTokens):
        return [JoinedRaggedStore(*ragged_stores) for ragged_stores in zip(first, second, strict=True)]
    spellings = None
    if first.spellings is not None:
        spellings = JoinedRaggedStore(first.spellings, second.spellings)
    return SentenceTokens(
        JoinedRaggedStore(first.sequences, second.sequences),  # pyright: ignore  (reads as a spool does)
        JoinedRaggedStore(first.starts, second.starts),  # pyright: ignore
        spellings,  # pyright: ignore
        np.concatenate([first.counts, second.counts]),
        np.concatenate([first.first_windows, second.first_windows[1:] + first.first_windows[-1]]),
    )


class Source(Protocol):
    """Batches of rows: `BatchSource` of texts, `PairSource` of pairs, `SentenceSource`, `MaskedSource`."""

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
        """The padded lengths to compute for these rows and those of other sources, ascending."""
        ...

    def plans(
        self, buckets: Any, batch_tokens: int, most_rows: int, rng: np.random.Generator | None
    ) -> list[Any]:
        """Groups rows of similar lengths into batches; every row exactly once."""
        ...

    def batch(self, plan: Any) -> dict:
        """One batch as NumPy arrays: "features", "targets", "weights"."""
        ...

    def dataset(self, plans: Any) -> Any:
        """The batches in the order of the plans, a few ahead."""
        ...

    def different_ids(self, granularity: int) -> Iterator[np.ndarray]:
        """Token ids of the texts as a granularity cuts them, int32 [B, T], padded with 0."""
        ...


@dataclasses.dataclass(frozen=True)
class TrainingSets:
    """What is trained on: by its number, counted over all epochs, and whether it is the last, a source of batches.

    Attributes:
        of: Gives the batches.
        per_epoch: Sources that make up all rows.
    """

    of: Callable[..., Source]
    per_epoch: int = 1


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The tokenized parts of the data, by name.

    Args:
        preprocessor: Made the token ids: a `Preprocessor`, or for pairs a `PairPreprocessor`.
        parts: The parts.
        tokens: For each input of the preprocessor, a `RaggedStore` of the token ids of all rows of each part; of
            sentences `SentenceTokens`, of texts to hide tokens of `PieceTokens`. Parts of one set share them.
        counts: What tokenizing met, once a set and input.
        masking: How tokens are hidden, where the model must find them.
        windows: How the model divides long texts, where it does.
    """

    preprocessor: Any
    parts: dict[str, Subset]
    tokens: dict[str, Any]
    counts: dict[str, Any]
    masking: Masking | None = None
    windows: WindowShape | None = None

    @property
    def per_epoch(self) -> int:
        """Parts in which all training rows are trained on; of large data several."""
        return 1

    def part(self, name: str) -> Subset:
        """A part as a baseline reads it: with its tokens, where it counts tokens."""
        part = self.parts[name]
        if self.masking is None:
            return part
        return dataclasses.replace(part, source=self.evaluated(name, np.zeros(len(part.rows), np.int32)))

    def text_lengths(self, name: str) -> np.ndarray:
        """Tokens of each text of a part as the first granularity cuts it, int32; of pairs all first texts first."""
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
        """The same with the texts without labels in the set of the training rows, behind what it has.

        Args:
            rows: Rows of that set, int64 [R], of pairs int64 [R, 2].

        Returns:
            The inputs, and the rows with those of the texts after them; both as they are where there are no texts.
        """
        if "texts" not in self.parts:
            return self, rows
        more = self.parts["texts"].rows + len(self.parts["train"].examples)
        more = more if rows.ndim == 1 else np.stack([more, more], axis=1)
        joined = joined_tokens(self.tokens["train"], self.tokens["texts"])
        return dataclasses.replace(self, tokens=self.tokens | {"train": joined}), np.concatenate([rows, more])

    def evaluated(self, name: str, targets: np.ndarray) -> Source:
        """Batches of a part to judge a model on; targets [R, …] aligned with its rows."""
        rows = self.parts[name].rows
        rows = rows if self.preprocessor.num_texts == 1 else np.stack([rows, rows], axis=1)
        return self.source(name, TrainingSet(rows, targets, np.ones(len(rows), np.float32)))

    def training_sets(
        self, task: Task, part: Subset, labels: Sequence[str], seed: int, **options
    ) -> TrainingSets:
        """What to train on: all training rows in one source.

        Args:
            task: Says what of them.
            part: The training rows.
            labels: Names of the model's outputs.
            seed: Of what is drawn by chance.
            **options: As in `source`.
        """
        source = self.source("train", task.training_set(part, labels, seed), **options)
        return TrainingSets(lambda number, last=False: source)

    def close(self) -> None:
        """Waits for what goes on beside; the folder of the tokens may go then."""

    def source(self, name: str, training_set: TrainingSet, **options) -> Source:
        """Batches of some rows of a part's set.

        Args:
            name: Which part.
            training_set: The rows, targets and weights.
            **options: More arguments of `BatchSource` or `PairSource`.
        """
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
    """Makes the preprocessor, then tokenizes every part; for the arguments see `make_preprocessor` and `cut_parts`."""
    preprocessor = make_preprocessor(text, parts, task, vocabulary)
    return cut_parts(preprocessor, parts, folder, task.masking, task.windows)


def cut_parts(
    preprocessor: Any,
    parts: dict[str, Subset],
    folder: Path,
    masking: Masking | None = None,
    windows: WindowShape | None = None,
) -> Inputs:
    """Tokenizes every part with a preprocessor that is there already.

    Args:
        preprocessor: Of a task.
        parts: The parts.
        folder: Where the token ids go.
        masking: How tokens are hidden, where the model must find them.
        windows: How the model divides long texts, where it does.
    """
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

"""Model inputs: the preprocessor, token ids of all rows on disk, and batches of them.

The training rows of large data are tokenized in stretches during training.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.bundle import parts_of
from kmha.document_windows import WindowShape
from kmha.features import TOKEN_IDS
from kmha.text.preprocessor import Preprocessor
from kmha.text.sentence_preprocessor import SentencePreprocessor
from kmha.text.vocabulary import Vocabulary
from kmha.text.vocabulary_training import MIN_FREQUENCY, prune_vocabulary, train_vocabulary
from training.config.config import TextSection
from training.data.masked_batches import MaskedSource, split_into_pieces
from training.data.pair_batches import PairSource
from training.data.sentence_batches import SentenceSource, SentenceTokens, tokenize_sentences
from training.data.split import Large
from training.data.text_batches import BatchSource, Source, TokenCounts, tokenize_examples
from training.distributed.coordinator import SINGLE_WORKER, Coordinator
from training.io.disk import ROW_BYTES, TOKEN_BYTES_PER_TEXT_BYTE, require_disk_space
from training.io.examples import Masking, Subset, TrainingSet
from training.io.ragged_store import RaggedStore, concatenate_ranges
from training.tasks.protocol import Task

logger = logging.getLogger("kmha")

_CHUNK_ROWS = 4096


class JoinedRaggedStore:
    """Two stores of the same dtype, read as one; the rows of `second` follow those of `first`. See `RaggedStore`."""

    def __init__(self, first: RaggedStore, second: RaggedStore):
        self._parts = first, second
        self.dtype = first.dtype
        self.lengths = np.concatenate([first.lengths, second.lengths])

    def __len__(self) -> int:
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


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The tokenized parts of the data, by name.

    The tokens of a part are a `RaggedStore` for each input of the preprocessor, `SentenceTokens` for sentences, or
    `PieceTokens` for masked language modeling. Parts of one example set share them. Each example set and input has
    its token statistics in `counts`.
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
            return tokens.sequences.lengths[concatenate_ranges(firsts, ends - firsts)]
        ragged_stores = self.tokens[name][: self.preprocessor.num_texts]
        return np.concatenate([ragged_store.lengths[self.parts[name].rows] for ragged_store in ragged_stores])

    def with_texts(self, rows: np.ndarray) -> tuple["Inputs", np.ndarray]:
        """Appends the unlabeled texts, if any, to the tokens and the row numbers, int64 [R] or [R, 2], of training."""
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
    ) -> Callable[[int, bool], Source]:
        """Maps the number of a part of the training rows, over all epochs, and whether it is the last, to its batches.

        The labels name the model outputs; `options` are those of `source`.
        """
        source = self.source("train", task.training_set(part, labels, seed), **options)
        return lambda number, last: source

    def close(self) -> None:
        """Waits for background work; the folder of the tokens can be removed afterwards."""

    def source(self, name: str, training_set: TrainingSet, **options) -> Source:
        """Batches of the rows of `training_set` in part `name`; `options` are further arguments of the source class."""
        tokens, given = self.tokens[name], training_set
        if self.masking is not None:
            return MaskedSource(tokens, given.rows, self.masking, **options)
        if isinstance(self.preprocessor, SentencePreprocessor):
            padding_id = self.preprocessor.padding_id
            return SentenceSource(tokens, given.rows, given.targets, given.weights, padding_id, **options)
        if self.preprocessor.num_texts == 1:
            return self._text_source(tokens[0], given.rows, given, **options)
        inputs = self.preprocessor.inputs
        return PairSource(inputs, tokens, given.rows, given.targets, given.weights, given.lists, **options)

    def _text_source(
        self, tokens: RaggedStore, rows: np.ndarray, training_set: TrainingSet, **options
    ) -> BatchSource:
        """Batches of texts, whose tokens have these row numbers."""
        options |= {"padding_id": self.preprocessor.padding_id, "windows": self.windows}
        return BatchSource(tokens, rows, training_set.targets, training_set.weights, **options)


def make_inputs(
    text: TextSection,
    parts: dict[str, Subset],
    folder: Path,
    task: Task,
    vocabulary: Vocabulary | None = None,
) -> Inputs:
    """Builds the preprocessor and tokenizes every part; see `make_preprocessor` and `tokenize_parts`."""
    read = [parts[name] for name in ("train", "texts") if name in parts]
    preprocessor = make_preprocessor(text, read, task, vocabulary)
    return tokenize_parts(preprocessor, parts, folder, task.masking, task.windows)


def tokenize_parts(
    preprocessor: Any,
    parts: dict[str, Subset],
    folder: Path,
    masking: Masking | None = None,
    windows: WindowShape | None = None,
) -> Inputs:
    """Tokenizes every part with an existing preprocessor and writes the token ids to `folder`; see `Inputs`."""
    tokens: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    for name, part in parts.items():
        same = next((other for other in tokens if parts[other].examples is part.examples), None)
        if same is not None:
            tokens[name] = tokens[same]
            continue
        path = folder / f"tokens-{name}"
        if masking is not None:
            tokens[name], counts[name] = split_into_pieces(part.examples, parts_of(preprocessor)[""], path)
        elif isinstance(preprocessor, SentencePreprocessor):
            tokens[name], counts[name] = tokenize_sentences(part.examples, preprocessor, path)
        else:
            tokens[name] = []
            for given in preprocessor.inputs:
                own_path = folder / f"tokens-{name}-{given.ids}"
                ragged_store, met = tokenize_examples(part.examples, given.part, own_path, given.text)
                tokens[name].append(ragged_store)
                counts[_counts_name(name, given.ids)] = met
    return Inputs(preprocessor, parts, tokens, counts, masking, windows)


def make_preprocessor(
    text: TextSection,
    read: Sequence[Subset],
    task: Task,
    vocabulary: Vocabulary | None = None,
    large: Large | None = None,
    coordinator: Coordinator = SINGLE_WORKER,
) -> Any:
    """Reads or trains the vocabularies and returns the preprocessor; raises InputError for an unusable file.

    Without a given vocabulary, the chief worker trains them on the texts of `read`, first the training rows; of large
    data on a sample.
    """
    num_texts = len(read[0].examples.texts)
    if vocabulary is None and text.vocabulary is not None:
        vocabulary = Vocabulary.read(text.vocabulary)
    training_texts = _Texts([large.sampled(part) if large else part for part in read], num_texts)
    made = {
        each: _preprocessor(text, each, vocabulary, training_texts, coordinator)
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
        logger.info(f"{len(vocabulary):,} of {whole:,} tokens of the vocabulary retained")
    if vocabulary is None:
        settings = (tokenization, text.vocabulary_size, text.min_frequency or MIN_FREQUENCY, lower_case)
        tokens = coordinator.broadcast("vocabulary", lambda: train_vocabulary(texts, *settings).tokens)
        vocabulary = Vocabulary(tokens)
    return Preprocessor(vocabulary, tokenization, lower_case, text.longest)


class _Texts:
    """The texts of some parts, read from disk at each iteration."""

    def __init__(self, parts: Sequence[Subset], num_texts: int):
        self.parts, self.num_texts = parts, num_texts

    def __iter__(self) -> Iterator[str]:
        for field, part in itertools.product(range(self.num_texts), self.parts):
            for first in range(0, len(part.rows), _CHUNK_ROWS):
                yield from part.examples.read_texts(part.rows[first : first + _CHUNK_ROWS], field)


Stretch = tuple[np.ndarray, RaggedStore, TokenCounts]


class Stretches:
    """The training rows, shuffled in each epoch and split into `per_epoch` stretches of equal size.

    A stretch depends only on the seed and its number. Its files are deleted once open, and their space is freed after
    the last use.
    """

    def __init__(self, part: Subset, preprocessor: Preprocessor, large: Large, folder: Path):
        self._part, self._preprocessor, self._large, self._folder = part, preprocessor, large, folder
        self.per_epoch = -(-len(part.rows) // large.stretch_rows)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="stretches")
        self._stretches: dict[int, Future[Stretch]] = {}

    def rows(self, number: int) -> np.ndarray:
        """Rows of a stretch (counted from 0 over all epochs) in the example set, integers [R], ascending."""
        epoch, place = divmod(number, self.per_epoch)
        total = len(self._part.rows)
        order = np.random.default_rng([self._large.seed, 13, epoch]).permutation(total)
        first, end = (total * each // self.per_epoch for each in (place, place + 1))
        # File order reads faster; batches are shuffled anyway.
        return self._part.rows[np.sort(order[first:end])]

    def take(self, number: int, then: int | None = None) -> Stretch:
        """Returns the rows of stretch `number`, their token ids (one store row each) and the token statistics.

        Stretch `then` is tokenized in the background; all others are discarded.
        """
        expected = [number] if then is None else [number, then]
        known, submit = self._stretches, self._executor.submit
        self._stretches = {each: known.get(each) or submit(self._made, each) for each in expected}
        return self._stretches[number].result()

    def close(self) -> None:
        """Waits for tokenization to stop; the folder can be removed afterwards."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _made(self, number: int) -> Stretch:
        rows, path = self.rows(number), self._folder / f"stretch-{number}"
        ragged_store, counts = tokenize_examples(self._part.examples, self._preprocessor, path, rows=rows)
        for each in self._folder.glob(f"{path.name}*"):
            if each.name.split(".")[0] == path.name:
                each.unlink()
        return rows, ragged_store, counts


def _counts_name(part: str, ids: str) -> str:
    """The name of a part's token counts, from that of an input: of `word_token_ids_a` "train text_a (word)"."""
    granularity, _, side = ids.partition(TOKEN_IDS)
    return part + f" text{side}" * bool(side) + f" ({granularity.removesuffix('_')})" * bool(granularity)


@dataclasses.dataclass(frozen=True)
class LargeInputs(Inputs):
    """Inputs whose training rows are tokenized during training; other parts have tokens of their own rows only."""

    stretches: Stretches = dataclasses.field(kw_only=True)

    @property
    def per_epoch(self) -> int:
        """Number of stretches that contain all training rows; the model is evaluated after each."""
        return self.stretches.per_epoch

    def text_lengths(self, name: str) -> np.ndarray:
        """Tokens of each text of a part, int32; for the training rows, those of the first stretch."""
        return self.tokens[name][0].lengths

    def source(self, name: str, training_set: TrainingSet, **options) -> BatchSource:
        """Batches of all rows of a validation or test part."""
        rows = np.arange(len(training_set.rows))
        return self._text_source(self.tokens[name][0], rows, training_set, **options)

    def training_sets(
        self, task: Task, part: Subset, labels: Sequence[str], seed: int, **options
    ) -> Callable[[int, bool], BatchSource]:
        """See `Inputs`; the parts are stretches."""

        def stretch(number: int, last: bool) -> BatchSource:
            rows, tokens, _ = self.stretches.take(number, None if last else number + 1)
            training_set = task.training_set(dataclasses.replace(part, rows=rows), labels, seed)
            return self._text_source(tokens, np.arange(len(rows)), training_set, **options)

        return stretch

    def close(self) -> None:
        """See `Inputs`."""
        self.stretches.close()


def tokenize_for_training(
    preprocessor: Any,
    parts: dict[str, Subset],
    folder: Path,
    masking: Masking | None = None,
    large: Large | None = None,
    windows: WindowShape | None = None,
) -> Inputs:
    """Tokenizes every part; the training rows of large data are tokenized during training, unless `large` is None."""
    # Pairs and sentences need several stores and other rows of their set.
    alone = masking is None and isinstance(preprocessor, Preprocessor)
    if large is None or not alone or not large.is_large(parts["train"]):
        require_disk_space(folder, _token_bytes(parts), "token ids")
        return tokenize_parts(preprocessor, parts, folder, masking, windows)
    require_disk_space(folder, _token_bytes(parts, large.stretch_rows), "token ids")
    stretches = Stretches(parts["train"], preprocessor, large, folder)
    tokens: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    _, first, counts["train"] = stretches.take(0)
    tokens["train"] = [first]
    for name, part in parts.items():
        if name != "train":
            path = folder / f"tokens-{name}"
            ragged_store, counts[name] = tokenize_examples(part.examples, preprocessor, path, rows=part.rows)
            tokens[name] = [ragged_store]
    logger.info(
        f"{len(parts['train'].rows):,} training rows are read in {stretches.per_epoch} parts an epoch, each of which is"
        f" tokenized while the one before is trained on; the first has {len(first):,}:"
    )
    return LargeInputs(preprocessor, parts, tokens, counts, windows=windows, stretches=stretches)


def _token_bytes(parts: dict[str, Subset], stretch_rows: int | None = None) -> float:
    """Approximate maximum bytes of all token ids; for large data, of three stretches of training rows."""
    total = 0.0
    for examples in {id(part.examples): part.examples for part in parts.values()}.values():
        size = sum(float(ragged_store.lengths.sum(dtype=np.int64)) for ragged_store in examples.texts)
        share = 1.0
        if stretch_rows is not None and examples is parts["train"].examples:
            share = min(1.0, (3 * stretch_rows + len(parts["validation"].rows)) / len(examples))
        total += share * (size * TOKEN_BYTES_PER_TEXT_BYTE + len(examples) * ROW_BYTES)
    return total

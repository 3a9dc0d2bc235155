"""Inputs for large data: training rows are tokenized in stretches during training."""

import dataclasses
import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from kmha.document_windows import WindowShape
from kmha.text.preprocessor import Preprocessor
from training.data.inputs import Inputs, TrainingSets, cut_parts
from training.data.large_data import Large
from training.data.text_batches import BatchSource, TokenCounts, tokenize_examples
from training.io.ragged_store import RaggedStore
from training.io.scratch_folder import ROW_BYTES, TOKEN_BYTES_PER_TEXT_BYTE, check_room
from training.io.types import Masking, Subset, TrainingSet
from training.tasks.protocol import Task

logger = logging.getLogger("kmha")

Cut = tuple[np.ndarray, RaggedStore, TokenCounts]


class Stretches:
    """The training rows, shuffled in each epoch and split into stretches of equal size.

    Args:
        part: The training rows.
        preprocessor: Tokenizer of their texts.
        large: Maximum rows of a stretch, and the seed. A stretch depends only on the seed and its number.
        folder: Folder for the token ids. Files are deleted once open, and their space is freed after the last use.

    Attributes:
        per_epoch: Number of stretches that contain all rows.
    """

    def __init__(self, part: Subset, preprocessor: Preprocessor, large: Large, folder: Path):
        self._part, self._preprocessor, self._large, self._folder = part, preprocessor, large, folder
        self.per_epoch = -(-len(part.rows) // large.stretch_rows)
        self._cutter = ThreadPoolExecutor(1, thread_name_prefix="stretches")
        self._cut: dict[int, Future[Cut]] = {}

    def rows(self, number: int) -> np.ndarray:
        """Rows of a stretch (counted from 0 over all epochs) in the example set, integers [R], ascending."""
        epoch, place = divmod(number, self.per_epoch)
        total = len(self._part.rows)
        order = np.random.default_rng([self._large.seed, 13, epoch]).permutation(total)
        first, end = (total * each // self.per_epoch for each in (place, place + 1))
        # File order reads faster; batches are shuffled anyway.
        return self._part.rows[np.sort(order[first:end])]

    def take(self, number: int, then: int | None = None) -> Cut:
        """Returns the rows of stretch `number`, their token ids (one store row each) and the token statistics.

        Stretch `then` is tokenized in the background; all others are discarded.
        """
        expected = [number] if then is None else [number, then]
        self._cut = {each: self._cut.get(each) or self._cutter.submit(self._made, each) for each in expected}
        return self._cut[number].result()

    def close(self) -> None:
        """Waits for tokenization to stop; the folder can be removed afterwards."""
        self._cutter.shutdown(wait=True, cancel_futures=True)

    def _made(self, number: int) -> Cut:
        rows, path = self.rows(number), self._folder / f"stretch-{number}"
        ragged_store, counts = tokenize_examples(self._part.examples, self._preprocessor, path, rows=rows)
        for each in self._folder.glob(f"{path.name}*"):
            if each.name.split(".")[0] == path.name:
                each.unlink()
        return rows, ragged_store, counts


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
        options |= {"padding_id": self.preprocessor.padding_id, "windows": self.windows}
        return BatchSource(self.tokens[name][0], rows, training_set.targets, training_set.weights, **options)

    def training_sets(
        self, task: Task, part: Subset, labels: Sequence[str], seed: int, **options
    ) -> TrainingSets:
        """Returns the training batches, one stretch after another."""
        options |= {"padding_id": self.preprocessor.padding_id, "windows": self.windows}

        def of(number: int, last: bool = False) -> BatchSource:
            rows, ragged_store, _ = self.stretches.take(number, None if last else number + 1)
            training_set = task.training_set(dataclasses.replace(part, rows=rows), labels, seed)
            places = np.arange(len(rows))
            return BatchSource(ragged_store, places, training_set.targets, training_set.weights, **options)

        return TrainingSets(of, self.per_epoch)

    def close(self) -> None:
        """Waits for tokenization to stop."""
        self.stretches.close()


def cut_for_training(
    preprocessor: Any,
    parts: dict[str, Subset],
    folder: Path,
    masking: Masking | None = None,
    large: Large | None = None,
    windows: WindowShape | None = None,
) -> Inputs:
    """Tokenizes every part; the training rows of large data are tokenized during training.

    Args:
        preprocessor: The preprocessor of a task.
        parts: "train" and further parts by name.
        folder: Output folder for the token ids.
        masking: Token masking, for masked language modeling.
        large: Limits for large data; None to tokenize all rows first.
        windows: How the model splits long texts into windows, if it does.
    """
    # Pairs and sentences need several stores and other rows of their set.
    alone = masking is None and isinstance(preprocessor, Preprocessor)
    if large is None or not alone or not large.is_large(parts["train"]):
        check_room(folder, _token_bytes(parts), "token ids")
        return cut_parts(preprocessor, parts, folder, masking, windows)
    check_room(folder, _token_bytes(parts, large.stretch_rows), "token ids")
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
        f" cut into tokens while the one before is trained on; the first has {len(first):,}:"
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

"""The run folder as one object: model, preprocessor, labels. Loads without the training code."""

import dataclasses
import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS, checked_ids
from kmha.manifest import (
    FORMAT,
    MANIFEST,
    MODEL,
    SAMPLE,
    VOCABULARY,
    check_files,
    read_manifest,
    write_manifest,
)
from kmha.models.classifier import TextClassifier
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import Vocabulary

__all__ = ["FORMAT", "MANIFEST", "MODEL", "SAMPLE", "VOCABULARY", "Bundle"]

CHUNK_ROWS = 1024
BATCH_TOKENS = 8192


@dataclasses.dataclass
class Bundle:
    """A trained classifier with everything it needs to answer strings.

    Args:
        model: A built `TextClassifier`.
        preprocessor: The one it was trained with.
        labels: Names in the order of the model's outputs.
        thresholds: With several labels, the probability from which each is given (None: 0.5); else None.
        details: More JSON values for bundle.json: columns, data hashes, lengths of the training rows in tokens.
        sample: Some training texts, on which an export calibrates itself and warms up.

    Raises:
        InputError: The parts do not fit one another.
    """

    model: Any
    preprocessor: Preprocessor
    labels: list[str]
    thresholds: list[float] | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    sample: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        if self.multi_label and self.thresholds is None:
            self.thresholds = [0.5] * len(self.labels)
        self._check()
        self._logits = tf.function(self._forward, reduce_retracing=True)
        # In a graph: for a single text, eager ragged ops would cost several times what the model does.
        self._sequences = tf.function(
            lambda texts: self.preprocessor.sequences(self.preprocessor.tokenize(texts)),
            input_signature=[tf.TensorSpec([None], tf.string)],
        )

    def _check(self) -> None:
        outputs, encoder = self.model.num_labels, self.model.encoder_config
        tokens, length = len(self.preprocessor.vocabulary), self.preprocessor.max_length
        if len(self.labels) != outputs:
            raise InputError(
                f"wanted as many labels as the model with {outputs} outputs, given {len(self.labels)} labels"
            )
        if self.thresholds is not None and not self.multi_label:
            raise InputError("thresholds belong to a model of several labels, given one of one label")
        if self.thresholds is not None and len(self.thresholds) != outputs:
            raise InputError(f"wanted {outputs} thresholds, one a label, given {len(self.thresholds)}")
        if tokens > encoder.vocabulary_size:
            raise InputError(
                f"wanted a vocabulary of at most the model's {encoder.vocabulary_size} tokens, given {tokens}"
            )
        if length > encoder.max_length:
            raise InputError(f"max_length must be at most the model's {encoder.max_length}, given {length}")

    @property
    def multi_label(self) -> bool:
        """Whether a text may carry several labels."""
        return self.model.multi_label

    def save(self, folder: Path) -> None:
        """Writes model.keras, vocab.txt, sample.jsonl and bundle.json with their hashes into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save(folder / MODEL)
        self.preprocessor.vocabulary.write(folder / VOCABULARY)
        (folder / SAMPLE).unlink(missing_ok=True)
        if self.sample:
            lines = "".join(json.dumps(text, ensure_ascii=False) + "\n" for text in self.sample)
            (folder / SAMPLE).write_text(lines, "utf-8")
        values = {
            **self.details,
            "multi_label": self.multi_label,
            "labels": self.labels,
            "thresholds": self.thresholds,
            "text": self.preprocessor.get_config(),
            "versions": {
                name: importlib.metadata.version(name) for name in ("tensorflow", "keras", "tensorflow-text")
            },
        }
        write_manifest(folder, values)

    @classmethod
    def load(cls, folder: Path | str) -> "Bundle":
        """Reads what `save` wrote.

        Raises:
            InputError: No bundle stands there, its format is newer, a file is missing or not the one recorded, the
                model file holds code or is no classifier, or the parts do not fit one another.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        check_files(folder, manifest)
        model = _load_model(folder / MODEL)
        vocabulary = Vocabulary.read(folder / VOCABULARY)
        if model.multi_label != manifest["multi_label"]:
            raise InputError(f"{folder / MANIFEST}: multi_label must be {model.multi_label} as in {MODEL}")
        known = {"format", "task", "multi_label", "labels", "thresholds", "text", "versions", "files"}
        details = {key: value for key, value in manifest.items() if key not in known}
        try:
            preprocessor = Preprocessor(vocabulary, **manifest["text"])
            return cls(
                model,
                preprocessor,
                manifest["labels"],
                manifest["thresholds"],
                details,
                _read_sample(folder / SAMPLE) if SAMPLE in manifest["files"] else [],
            )
        except (InputError, TypeError) as error:
            raise InputError(f"{folder / MANIFEST}: text or labels cannot be used: {error}") from error

    def _forward(self, features):
        return self.model(features, training=False)

    def probabilities(self, texts: Sequence[str | bytes]) -> np.ndarray:
        """float32 [R, C] of texts; an empty one is answered too.

        Raises:
            InputError: They are no sequence of texts.
        """
        if isinstance(texts, str | bytes):
            raise InputError("texts must be a list of strings, given one string")
        parts = [self._chunk(texts[i : i + CHUNK_ROWS]) for i in range(0, len(texts), CHUNK_ROWS)]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.labels)), np.float32)

    def _chunk(self, texts: Sequence[str | bytes]) -> np.ndarray:
        encoded = _checked_texts(texts, self.preprocessor.max_bytes)
        sequences = self._sequences(tf.constant(encoded, tf.string))
        lengths = sequences.row_lengths().numpy()
        order = np.argsort(lengths, kind="stable")
        result = np.zeros((len(texts), len(self.labels)), np.float32)
        first = 0
        while first < len(order):
            # The longest of a batch comes last; as many rows as keep it within the budget.
            last = first + 1
            while last < len(order) and (last - first + 1) * lengths[order[last]] <= BATCH_TOKENS:
                last += 1
            rows = order[first:last]
            features = self.preprocessor.pad(tf.gather(sequences, rows))
            result[rows] = self.model.probabilities(self._logits(features)).numpy()
            first = last
        return result

    def probabilities_of_ids(self, token_ids, padding_mask=None) -> np.ndarray:
        """float32 [B, C] of token ids [B, T], special tokens included.

        Args:
            token_ids: Integers [B, T].
            padding_mask: Integers [B, T], 1 = a real token; None: wherever the id is not padding's.

        Raises:
            InputError: An id is negative or past the vocabulary, or the sequence too long.
        """
        ids = checked_ids(token_ids, len(self.preprocessor.vocabulary), self.preprocessor.max_length)
        mask = ids != self.preprocessor.padding_id if padding_mask is None else np.asarray(padding_mask) > 0
        if mask.shape != ids.shape:
            raise InputError(
                f"{PADDING_MASK} must have the shape of {TOKEN_IDS} {ids.shape}, given {mask.shape}"
            )
        features = {TOKEN_IDS: ids, SEGMENT_IDS: np.zeros_like(ids), PADDING_MASK: mask.astype("int32")}
        return self.model.probabilities(
            self._logits({k: tf.constant(v) for k, v in features.items()})
        ).numpy()

    def predict(self, texts: Sequence[str | bytes]) -> list[dict[str, Any]]:
        """Answers to texts.

        Returns:
            For each text {"label": its best label, "probability": of that label, "probabilities": {label: p}};
            with several labels {"labels": those given, best first, "probabilities": {label: p}}.
        """
        return [self.answer(row) for row in self.probabilities(texts)]

    def answers(self, texts: Iterator[str | bytes]) -> Iterator[dict[str, Any]]:
        """The answers to a stream of texts, in order, without holding them all."""
        chunk: list[str | bytes] = []
        for text in texts:
            chunk.append(text)
            if len(chunk) == CHUNK_ROWS:
                yield from self.predict(chunk)
                chunk = []
        yield from self.predict(chunk)

    def answer(self, probabilities: np.ndarray) -> dict[str, Any]:
        """The answer that probabilities [C] amount to."""
        named = {label: float(p) for label, p in zip(self.labels, probabilities, strict=True)}
        if self.thresholds is None:
            best = int(probabilities.argmax())
            return {
                "label": self.labels[best],
                "probability": float(probabilities[best]),
                "probabilities": named,
            }
        given = probabilities >= np.asarray(self.thresholds, np.float32)
        order = np.argsort(-probabilities, kind="stable")
        return {"labels": [self.labels[i] for i in order if given[i]], "probabilities": named}


def _read_sample(path: Path) -> list[str]:
    try:
        texts = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
    except ValueError as error:
        raise InputError(f"{path}: wanted a JSON string a line, {error}") from error
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"{path}: wanted a JSON string a line, given something else")
    return texts


def _load_model(path: Path) -> TextClassifier:
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except (
        Exception
    ) as error:  # Keras answers damaged files, and those that hold code, with errors of any kind.
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: wanted a saved TextClassifier, {reason}") from error
    if not isinstance(model, TextClassifier):
        raise InputError(f"{path}: wanted a saved TextClassifier, given {type(model).__name__}")
    return model


def _checked_texts(texts: Sequence[str | bytes], most_bytes: int) -> list[bytes]:
    """The texts as bytes, not many more than tokenizing will read.

    Raises:
        InputError: One is no text.
    """
    cut = []
    for text in texts:
        if not isinstance(text, str | bytes):
            raise InputError(f"texts must be strings, given {type(text).__name__}")
        first = text[:most_bytes]
        cut.append(first if isinstance(first, bytes) else first.encode("utf-8", "replace"))
    return cut

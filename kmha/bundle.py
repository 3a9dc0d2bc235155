"""The run folder as one object: model, preprocessor, labels. Loads without the training code."""

import dataclasses
import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kmha.models.classifier  # noqa: F401  (registers the model with Keras)
from kmha.errors import InputError
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS, checked_ids
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import Vocabulary

FORMAT = 1
MANIFEST, MODEL, VOCABULARY = "bundle.json", "model.keras", "vocab.txt"
CHUNK_ROWS = 1024
BATCH_TOKENS = 8192


@dataclasses.dataclass
class Bundle:
    """A trained classifier with everything it needs to answer strings.

    Args:
        model: A built `TextClassifier`.
        preprocessor: The one it was trained with.
        labels: Names in the order of the model's outputs.
        thresholds: With several labels, the probability from which each is given; else None.
        details: More JSON values for bundle.json: columns, data hashes, command.
    """

    model: Any
    preprocessor: Preprocessor
    labels: list[str]
    thresholds: list[float] | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self._logits = tf.function(self._forward, reduce_retracing=True)

    @property
    def multi_label(self) -> bool:
        """Whether a text may carry several labels."""
        return self.model.multi_label

    def save(self, folder: Path) -> None:
        """Writes model.keras, vocab.txt and bundle.json with the hashes of both into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save(folder / MODEL)
        self.preprocessor.vocabulary.write(folder / VOCABULARY)
        manifest = {
            "format": FORMAT,
            "task": "classify",
            "multi_label": self.multi_label,
            "labels": self.labels,
            "thresholds": self.thresholds,
            "text": self.preprocessor.get_config(),
            "versions": {
                name: importlib.metadata.version(name) for name in ("tensorflow", "keras", "tensorflow-text")
            },
            "files": {name: _sha256(folder / name) for name in (MODEL, VOCABULARY)},
            **self.details,
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, ensure_ascii=False, indent=2) + "\n", "utf-8")

    @classmethod
    def load(cls, folder: Path | str) -> "Bundle":
        """Reads what `save` wrote.

        Raises:
            InputError: No bundle stands there, its format is newer, or a file is missing or not the one recorded.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        for name, recorded in manifest["files"].items():
            if not (folder / name).is_file():
                raise InputError(f"{folder}: wanted the bundle's file {name}, given none")
            found = _sha256(folder / name)
            if found != recorded:
                raise InputError(
                    f"{folder / name}: wanted SHA-256 {recorded[:12]}…, given {found[:12]}…; the file was changed"
                )
        vocabulary = Vocabulary.read(folder / VOCABULARY)
        preprocessor = Preprocessor(vocabulary, **manifest["text"])
        model = keras.saving.load_model(folder / MODEL, compile=False, safe_mode=True)
        known = {"format", "task", "multi_label", "labels", "thresholds", "text", "versions", "files"}
        details = {key: value for key, value in manifest.items() if key not in known}
        return cls(model, preprocessor, manifest["labels"], manifest["thresholds"], details)

    def _forward(self, features):
        return self.model(features, training=False)

    def probabilities(self, texts: Sequence[str | bytes]) -> np.ndarray:
        """float32 [R, C] of texts; an empty one is answered too."""
        parts = [self._chunk(texts[i : i + CHUNK_ROWS]) for i in range(0, len(texts), CHUNK_ROWS)]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.labels)), np.float32)

    def _chunk(self, texts: Sequence[str | bytes]) -> np.ndarray:
        encoded = [text if isinstance(text, bytes) else text.encode("utf-8", "replace") for text in texts]
        sequences = self.preprocessor.sequences(self.preprocessor.tokenize(tf.constant(encoded, tf.string)))
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


def read_manifest(folder: Path) -> dict[str, Any]:
    """bundle.json of a run folder.

    Raises:
        InputError: It is missing or damaged, or its format is newer than this code.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(
            f"{folder}: wanted a run folder with {MANIFEST}, {error.strerror or error}"
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    if manifest.get("format", 0) > FORMAT:
        raise InputError(
            f"{path}: wanted bundle format {FORMAT} or older, given {manifest['format']}; update kmha"
        )
    return manifest


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

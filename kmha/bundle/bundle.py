"""A trained model with its preprocessor and labels, loaded from a run folder without the training code."""

import dataclasses
import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy as np
import tensorflow as tf

from kmha.bundle.manifest import (
    CLASSIFY,
    LARGEST,
    MANIFEST,
    MASKED_LM,
    MATCH,
    MODEL,
    MODEL_NAMES,
    SAMPLE,
    TAG,
    TASK_ENTRY,
    open_bundle,
    read_consistent,
    vocabulary_file,
    write_manifest,
)
from kmha.bundle.model_file import read_model
from kmha.document_windows import computed_tokens
from kmha.errors import InputError
from kmha.features import PADDING_MASK, TOKEN_IDS, validate_token_ids
from kmha.inference.batching import (
    BATCH_TOKENS,
    CHUNK_ROWS,
    TEXTS,
    TextRow,
    check_process,
    check_texts,
    chunks,
    encode_texts,
    graph_function,
    length_batches,
    text_columns,
)
from kmha.inference.mask_filler import MaskFiller
from kmha.inference.tagger import Tagger
from kmha.input_files import parse_json
from kmha.models.classifier import TextClassifier
from kmha.models.masked_lm import MaskedLanguageModel
from kmha.models.matcher import TextMatcher
from kmha.models.tagger import SequenceTagger
from kmha.text.preprocessor import PairPreprocessor, Preprocessor
from kmha.text.sentence_preprocessor import SentencePreprocessor
from kmha.text.vocabulary import Vocabulary
from kmha.version import package_version

MODELS = {CLASSIFY: TextClassifier, MATCH: TextMatcher, TAG: SequenceTagger, MASKED_LM: MaskedLanguageModel}
AnyPreprocessor = Preprocessor | PairPreprocessor | SentencePreprocessor


def task_of(model: Any) -> str:
    """The task of a model, by its class."""
    return next(task for task, kind in MODELS.items() if isinstance(model, kind))


def parts_of(preprocessor: AnyPreprocessor) -> dict[str, Preprocessor]:
    """The preprocessors of single texts by granularity; only pairs have granularities, otherwise the key is ""."""
    if isinstance(preprocessor, Preprocessor):
        return {"": preprocessor}
    if isinstance(preprocessor, SentencePreprocessor):
        return {"": preprocessor.part}
    return dict(zip(preprocessor.granularities, preprocessor.parts, strict=True))


def _read_preprocessor(
    folder: Path, manifest: dict[str, Any], files: Mapping[str, BinaryIO]
) -> AnyPreprocessor:
    """Reads the preprocessor of a run folder; raises TypeError if a setting has an unknown name or a wrong type."""

    def read(name: str) -> Vocabulary:
        return Vocabulary.parse(files[name].read(), str(folder / name))

    text = dict(manifest["text"])
    if manifest["task"] in (CLASSIFY, MASKED_LM):
        return Preprocessor(read(vocabulary_file(0)), **text)
    if manifest["task"] == TAG:
        sentences = {name: text.pop(name) for name in ("split", "characters") if name in text}
        part = Preprocessor(read(vocabulary_file(0)), **text)
        return SentencePreprocessor(part, **sentences)
    parts = {}
    for index, (granularity, settings) in enumerate(text.items()):
        # The file name contains the granularity: it must not leave the folder.
        name = vocabulary_file(index, granularity)
        if name not in manifest["files"]:
            raise InputError(f"files must contain the SHA-256 of {name}, got none")
        parts[granularity] = Preprocessor(read(name), **settings)
    return PairPreprocessor(parts)


def _parse_sample(content: bytes, path: Path, num_texts: int) -> list[Any]:
    """The sample in the content of a file: texts, or pairs if `num_texts` is 2."""
    expected = "a JSON string" if num_texts == 1 else "a JSON list of two strings"
    # Not splitlines: JSON strings may contain other line ends of Unicode.
    rows = [parse_json(line, f"{path}: expected {expected} a line") for line in content.split(b"\n") if line]
    if num_texts == 1 and all(isinstance(row, str) for row in rows):
        return rows
    pairs = (isinstance(row, list) and len(row) == 2 and all(isinstance(t, str) for t in row) for row in rows)
    if num_texts == 2 and all(pairs):
        return [tuple(row) for row in rows]
    raise InputError(f"{path}: expected {expected} a line, got something else")


def _one_label(
    probabilities: np.ndarray, labels: Sequence[str], abstain_below: float | None = None
) -> dict[str, Any]:
    best = int(probabilities.argmax())
    return {
        "label": labels[best],
        "probability": float(probabilities[best]),
        **_abstained(probabilities[best], abstain_below),
        "probabilities": _by_label(probabilities, labels),
    }


def _several_labels(
    probabilities: np.ndarray, labels: Sequence[str], thresholds: Sequence[float]
) -> dict[str, Any]:
    reached = probabilities >= np.asarray(thresholds, np.float32)
    order = np.argsort(-probabilities, kind="stable")
    return {
        "labels": [labels[i] for i in order if reached[i]],
        "probabilities": _by_label(probabilities, labels),
    }


def _pair(score: float, threshold: float | None, abstain_below: float | None = None) -> dict[str, Any]:
    prediction: dict[str, Any] = {"score": float(score)}
    if threshold is not None:
        prediction["match"] = bool(np.float32(score) >= np.float32(threshold))
        # The probability of no match is 1 - score.
        probability = np.float32(score) if prediction["match"] else np.float32(1) - np.float32(score)
        prediction |= _abstained(probability, abstain_below)
    return prediction


def _abstained(probability: float | np.floating, abstain_below: float | None) -> dict[str, bool]:
    if abstain_below is None:
        return {}
    return {"abstained": bool(np.float32(probability) < np.float32(abstain_below))}


def _by_label(probabilities: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
    return {label: float(p) for label, p in zip(labels, probabilities, strict=True)}


@dataclasses.dataclass
class Bundle:
    """A trained model that predicts from raw text.

    Args:
        model: A built `TextClassifier`, `TextMatcher`, `SequenceTagger` or `MaskedLanguageModel`.
        preprocessor: The preprocessor of its training: a `Preprocessor`, for a matcher a `PairPreprocessor`, for a
            tagger a `SentencePreprocessor`.
        labels: Names in the order of the model's outputs; empty for a masked language model.
        thresholds: Multi-label: the minimum probability of each label (None: 0.5). Binary matcher: the minimum
            probability of a match. Otherwise None.
        details: More JSON values for bundle.json: columns, data hashes, lengths of the training rows in tokens.
        sample: Some validation or training texts or pairs, used to calibrate and warm up exports.
        abstain_below: For a model with one prediction per row, the probability below which the prediction is marked
            as unreliable; None: never.

    Raises:
        InputError: The parts do not fit each other.
    """

    model: Any
    preprocessor: Any
    labels: list[str]
    thresholds: list[float] | None = None
    details: dict[str, Any] = dataclasses.field(default_factory=dict)
    sample: list[Any] = dataclasses.field(default_factory=list)
    abstain_below: float | None = None

    def __post_init__(self):
        if self.uses_thresholds and self.thresholds is None:
            self.thresholds = [0.5] * len(self.labels)
        self._check()
        self.tagger: Any = Tagger(self.model, self.preprocessor) if self.task == TAG else None
        self.filler: Any = MaskFiller(self.model, self.preprocessor) if self.task == MASKED_LM else None
        if not self._gives_probabilities:
            return
        self._logits = graph_function(lambda features: self.model(features, training=False))
        # In a graph: for a single text, eager ragged ops would take several times as long as the model.
        columns = [TEXTS] * self.preprocessor.num_texts
        self._sequences = graph_function(lambda *texts: self.preprocessor.encode(*texts), *columns)

    def _check(self) -> None:
        outputs = self.model.num_labels
        if len(self.labels) != outputs:
            raise InputError(
                f"expected as many labels as the model with {outputs} outputs, got {len(self.labels)} labels"
            )
        if self.thresholds is not None and not self.uses_thresholds:
            kind = MODEL_NAMES[self.task]
            if self.task in (CLASSIFY, MATCH):
                kind = "one label" if self.task == CLASSIFY else f"a {self.model.target} target"
            raise InputError(f"thresholds belong to a model of several labels, got one of {kind}")
        if self.thresholds is not None and len(self.thresholds) != outputs:
            raise InputError(f"expected {outputs} thresholds, one for each label, got {len(self.thresholds)}")
        if not all(abs(threshold) < LARGEST for threshold in self.thresholds or ()):
            raise InputError(f"expected finite thresholds, got {self.thresholds}")
        for each in self.model.weights:
            # The sum is NaN or infinite if one of the numbers is.
            if not np.isfinite(np.sum(keras.ops.convert_to_numpy(each), dtype=np.float64)):
                raise InputError(f"expected finite weights, got NaN or infinity in {each.path}")
        if self.abstain_below is not None and not self.has_single_prediction:
            raise InputError(
                "abstain_below belongs to a model with one prediction and its probability per row"
            )
        parts, encoders = parts_of(self.preprocessor), self.model.encoder_configs
        if list(parts) != list(encoders):
            raise InputError(
                f"expected texts tokenized as {', '.join(encoders)} as by the model, got {', '.join(parts)}"
            )
        for part, encoder in zip(parts.values(), encoders.values(), strict=True):
            tokens, length = len(part.vocabulary), self.model.max_sequence_length(part.max_length)
            if tokens > encoder.vocabulary_size:
                raise InputError(
                    f"expected a vocabulary of at most the model's {encoder.vocabulary_size} tokens, got {tokens}"
                )
            if length > encoder.max_length:
                raise InputError(f"max_length must be at most the model's {encoder.max_length}, got {length}")

    @property
    def task(self) -> str:
        """The model's task: "classify", "match", "tag" or "masked-lm"."""
        return task_of(self.model)

    @property
    def _gives_probabilities(self) -> bool:
        return self.task in (CLASSIFY, MATCH)

    @property
    def multi_label(self) -> bool:
        """Whether a text may have several labels."""
        return self.task == CLASSIFY and self.model.multi_label

    @property
    def uses_thresholds(self) -> bool:
        """Whether each output is a probability with its own threshold."""
        return self.multi_label or (self.task == MATCH and self.model.target == "binary")

    @property
    def has_single_prediction(self) -> bool:
        """Whether a row has one prediction with a probability: a label, a class, or match or no match."""
        return (self.task == CLASSIFY and not self.multi_label) or (
            self.task == MATCH and self.model.target != "graded"
        )

    def save(self, folder: Path) -> None:
        """Writes model.keras, the vocabularies, sample.jsonl and bundle.json with their hashes into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save(folder / MODEL)
        files = [MODEL]
        for index, (granularity, part) in enumerate(parts_of(self.preprocessor).items()):
            files.append(vocabulary_file(index, granularity))
            part.vocabulary.write(folder / files[-1])
        (folder / SAMPLE).unlink(missing_ok=True)
        if self.sample:
            lines = "".join(
                json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in self.sample
            )
            (folder / SAMPLE).write_text(lines, "utf-8")
            files.append(SAMPLE)
        entry, packages = TASK_ENTRY[self.task], ("tensorflow", "keras", "tensorflow-text")
        versions = {name: importlib.metadata.version(name) for name in packages}
        values = {
            **self.details,
            entry: getattr(self.model, entry),
            "labels": self.labels,
            "thresholds": self.thresholds,
            **({} if self.abstain_below is None else {"abstain_below": self.abstain_below}),
            "task": self.task,
            "text": self.preprocessor.get_config(),
            "versions": {"kmha": package_version(), **versions, "python": platform.python_version()},
        }
        write_manifest(folder, values, files)

    @classmethod
    def load(cls, folder: Path | str) -> "Bundle":
        """Loads what `save` wrote.

        Raises:
            InputError: The folder has no bundle, the format is newer, a file is missing or was changed, the model file
                contains code or a different model, or the parts do not fit each other; or this is a forked child of a
                process that used a model.
        """
        folder = Path(folder)
        check_process()
        return read_consistent(folder, lambda: cls._load(folder))

    @classmethod
    def _load(cls, folder: Path) -> "Bundle":
        with open_bundle(folder) as (manifest, files):
            model = read_model(files[MODEL], folder / MODEL, MODELS[manifest["task"]])
            entry = TASK_ENTRY[manifest["task"]]
            if getattr(model, entry) != manifest[entry]:
                raise InputError(
                    f"{folder / MANIFEST}: {entry} must be {getattr(model, entry)} as in {MODEL}"
                )
            known = {
                "format",
                "task",
                "labels",
                "thresholds",
                "abstain_below",
                "text",
                "versions",
                "files",
                entry,
            }
            details = {key: value for key, value in manifest.items() if key not in known}
            try:
                preprocessor = _read_preprocessor(folder, manifest, files)
                sample = []
                if SAMPLE in files:
                    sample = _parse_sample(files[SAMPLE].read(), folder / SAMPLE, preprocessor.num_texts)
                decision = manifest["thresholds"], details, sample, manifest.get("abstain_below")
                return cls(model, preprocessor, manifest["labels"], *decision)
            except (InputError, TypeError) as error:
                raise InputError(f"{folder / MANIFEST}: text or labels cannot be used: {error}") from error

    def probabilities(self, texts: Sequence[TextRow]) -> np.ndarray:
        """Probabilities float32 [R, C] of texts or pairs of texts, empty ones included; scores for graded pairs.

        Raises:
            InputError: `texts` is not a sequence of texts, or of pairs for a matcher; or a probability is NaN.
        """
        if not self._gives_probabilities:
            raise InputError(f"expected a classifier or a matcher, got {MODEL_NAMES[self.task]}")
        check_texts(texts)
        parts = [self._chunk(texts[i : i + CHUNK_ROWS]) for i in range(0, len(texts), CHUNK_ROWS)]
        result = np.concatenate(parts) if parts else np.zeros((0, len(self.labels)), np.float32)
        if not np.isfinite(result).all():
            row = int(np.argmin(np.isfinite(result).all(axis=1)))
            raise InputError(f"expected finite probabilities, the model returns NaN for text {row + 1}")
        return result

    def _chunk(self, rows: Sequence[TextRow]) -> np.ndarray:
        columns = text_columns(rows, self.preprocessor.num_texts)
        encoded = [encode_texts(texts, self.preprocessor.max_bytes) for texts in columns]
        sequences = self._sequences(*(tf.constant(texts, tf.string) for texts in encoded))
        lengths = np.sum([each.row_lengths().numpy() for each in sequences], axis=0)
        result = np.zeros((len(rows), len(self.labels)), np.float32)
        for selected in length_batches(computed_tokens(self.model, lengths), BATCH_TOKENS):
            features = self.preprocessor.pad([tf.gather(each, selected) for each in sequences])
            result[selected] = self.model.probabilities(self._logits(features)).numpy()
        return result

    def probabilities_of_ids(self, token_ids, padding_mask=None) -> np.ndarray:
        """`probabilities_of_features` for single texts: token ids and mask, integers [B, T]."""
        mask = {} if padding_mask is None else {PADDING_MASK: padding_mask}
        return self.probabilities_of_features({TOKEN_IDS: token_ids, **mask})

    def probabilities_of_features(self, features: dict[str, Any]) -> np.ndarray:
        """Probabilities float32 [B, C] of the model's inputs by name: ids, integers [B, T], and masks.

        A missing mask is 1 where the id is not the padding id. Raises InputError if ids are missing, not in the
        vocabulary, or too many.
        """
        checked = {}
        for ids_name, mask_name, _, part in self.preprocessor.inputs:
            if ids_name not in features:
                raise InputError(f"expected {ids_name}, got {', '.join(features) or 'none'}")
            ids = validate_token_ids(features[ids_name], len(part.vocabulary), part.max_length)
            mask = np.asarray(features.get(mask_name, ids != part.padding_id)) > 0
            if mask.shape != ids.shape:
                raise InputError(
                    f"{mask_name} must have the shape of {ids_name} {ids.shape}, got {mask.shape}"
                )
            checked |= {ids_name: tf.constant(ids), mask_name: tf.constant(mask.astype("int32"))}
        return self.model.probabilities(self._logits(checked)).numpy()

    def predict(self, texts: Sequence[TextRow], number: int = 1) -> list[dict[str, Any]]:
        """Predictions as JSON values.

        Args:
            texts: Texts, pairs of texts, or sentences (raw texts or lists of words).
            number: Number of the first row, for error messages.

        Returns:
            A dictionary for each row. One label: {"label", "probability" of the label, "probabilities": {label: p}}.
            Several labels: {"labels": best first, "probabilities": {label: p}}. A pair: {"score", "match": whether the
            score reaches the threshold}; graded: only "score"; classes: as for one label. With `abstain_below` also
            {"abstained": whether the prediction is unreliable}. A sentence: see
            `kmha.inference.tagger.sentence_prediction`. A text with [MASK]: see `kmha.inference.mask_filler`.
        """
        check_texts(texts)
        if self.tagger is not None:
            return self.tagger.predict(texts, self.labels, number)
        if self.filler is not None:
            return self.filler.predict(texts)
        return [self.prediction_from(row) for row in self.probabilities(texts)]

    def predict_stream(self, texts: Iterator[TextRow]) -> Iterator[dict[str, Any]]:
        """Yields the predictions of a stream of rows in order, in constant memory.

        Raises:
            InputError: As `probabilities` and the stream do, after the predictions of all rows before.
        """
        done = 0
        for chunk in chunks(texts, CHUNK_ROWS):
            yield from self.predict(chunk, done + 1)
            done += len(chunk)

    def prediction_from(self, probabilities: np.ndarray) -> dict[str, Any]:
        """The prediction for probabilities [C]."""
        if self.task == MATCH and self.model.target != "classes":
            threshold = self.thresholds[0] if self.thresholds else None
            return _pair(probabilities[0], threshold, self.abstain_below)
        if self.thresholds is None:
            return _one_label(probabilities, self.labels, self.abstain_below)
        return _several_labels(probabilities, self.labels, self.thresholds)

"""Text classification; scikit-learn and TensorFlow are imported in the methods, so that --help is fast."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from kmha.bundle.manifest import CLASSIFY
from kmha.config import EncoderConfig
from kmha.document_windows import window_shape_of
from kmha.errors import InputError, format_names
from training.io.examples import (
    ColumnOverrides,
    Columns,
    Example,
    Subset,
    TrainingSet,
    label_ids,
    label_matrix,
)
from training.io.tables import Row
from training.tasks.columns import column_hint, refuse_missing_value
from training.tasks.protocol import Baseline, Defaults, Task, TaskTraits, intervals_of
from training.tasks.settings import LABEL, LABELS, TEXT, ClassifySettings


@dataclasses.dataclass(frozen=True)
class ClassifyTask(ClassifySettings, Task):
    """Text classification; for the methods see `Task`."""

    @classmethod
    def from_bundle(cls, bundle: Any) -> "ClassifyTask":
        """The task of a trained bundle, with the windows of its model."""
        windows = window_shape_of(bundle.model)
        if windows is None:
            return cls(multi_label=bundle.multi_label)
        return cls(multi_label=bundle.multi_label, window=windows.length, window_overlap=windows.overlap)

    @property
    def metric(self) -> str:
        """Accuracy, or macro-F1 with several labels."""
        return "macro_f1" if self.multi_label else "accuracy"

    @property
    def traits(self) -> TaskTraits:
        """Classes, and with `multi_label` any number of them."""
        return TaskTraits("linear baseline", is_multi_label=bool(self.multi_label), is_text_and_label=True)

    @property
    def defaults(self) -> Defaults:
        """With several labels, embeddings learn faster: rare labels depend on rare words, which get few updates."""
        return Defaults(embedding_rate=4.0) if self.multi_label else Defaults()

    def resolve_columns(self, available: Sequence[str] | None, columns: Columns) -> tuple[Self, Columns]:
        """Finds the text and label columns, and whether rows have several labels."""
        columns = Columns(columns.text or TEXT, columns.label, columns.separator)
        if available is not None and columns.text not in available:
            hint = column_hint(columns.text, "text-column", available, CLASSIFY)
            raise InputError(
                f"--data.text-column: expected a column {columns.text}, got {format_names(available)}{hint}"
            )
        label = columns.label
        if not label:
            known = (LABEL, LABELS) if available is None else available
            order = (LABELS, LABEL) if self.multi_label else (LABEL, LABELS)
            label = next((name for name in order if name in known), "")
        if not label:
            hint = column_hint(LABEL, "label-column", available or (), CLASSIFY)
            raise InputError(
                f"--data.label-column: expected a column {LABEL} or {LABELS}, got {format_names(available or ())}{hint}"
            )
        multi_label = label == LABELS if self.multi_label is None else self.multi_label
        return dataclasses.replace(self, multi_label=multi_label), dataclasses.replace(columns, label=label)

    def columns_of_file(self, trained: Columns, flags: ColumnOverrides, available: Sequence[str]) -> Columns:
        """The text and label columns."""
        text, label = flags.text or trained.text or TEXT, flags.label or trained.label or LABEL
        return Columns(text, label, trained.separator)

    def parse_row(self, row: Row, columns: Columns) -> tuple[Example]:
        """The text and the labels of a row."""
        text, value = row.values[columns.text], row.values[columns.label]
        if not isinstance(text, str):
            raise InputError(f"{row.place}: {columns.text} must be one text, got a list")
        names = value if isinstance(value, list) else [value]
        if self.multi_label:
            names = [part for name in names for part in name.split(columns.separator)]
        names = tuple(name.strip() for name in names if name.strip() or not self.multi_label)
        if not self.multi_label and (len(names) != 1 or not names[0]):
            what = "none" if not any(names) else f"{len(names)} labels"
            raise InputError(f"{row.place}: {columns.label} must be one label, got {what}")
        for name in names:
            refuse_missing_value(name, columns.label, row.place)
        return (Example((text,), names, row.place),)

    def fit_linear_path(
        self, train: Any, validation: Any, labels: Sequence[str], preprocessor: Any, seed: int, alone: bool
    ) -> Any:
        """A linear classifier on n-grams; None with too many labels, or without n-grams of several texts."""
        from training.linear.fit import fit_linear_path

        return fit_linear_path(train, validation, len(labels), preprocessor.vocabulary.tokens, seed, alone)

    def build_model(
        self, encoders: dict[str, EncoderConfig], labels: Sequence[str], linear: Any = None
    ) -> Any:
        """A built `TextClassifier`."""
        from kmha.models.classifier import TextClassifier

        (encoder,) = encoders.values()
        model = TextClassifier(
            encoder,
            len(labels),
            multi_label=bool(self.multi_label),
            pooling=self.pooling,
            dropout=self.dropout,
            window=self.window,
            window_overlap=self.windows.overlap if self.windows else 0,
            window_pooling=self.window_pooling,
            linear_rows=len(linear.ngrams.keys) if linear else 0,
            linear_slots=linear.ngrams.slots if linear else (),
            linear_displaced=True,
            name="classifier",
        )
        model.build()
        return model

    def initialize(self, model: Any, source: Any) -> None:
        """Sets the bias of the head to the label frequencies of the training rows.

        Adam moves a weight by about the learning rate per step. From zero, the bias of a rare label would need
        more steps than a training has.

        Source: Lin et al. 2017, section 3.3, arXiv:1708.02002.
        """
        targets, weights = source.targets, source.weights.astype(np.float64)
        if self.multi_label:
            counts = weights @ targets
        else:
            counts = np.bincount(targets, weights, model.num_labels)
        frequencies = (counts + 0.5) / (weights.sum() + 1.0)
        odds = frequencies / (1 - frequencies) if self.multi_label else frequencies
        model.head.bias.assign(np.log(odds).astype(np.float32))

    def targets(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        """Label ids int32 [R]; with several labels 0 or 1, int32 [R, C]."""
        if self.multi_label:
            return label_matrix(part.examples, part.rows, labels)[0].astype(np.int32)
        ids, _ = label_ids(part.examples, part.rows, labels)
        # A label that the model lacks cannot be a target; the scores count such rows as wrong.
        return np.where(ids < len(labels), ids, 0).astype(np.int32)

    def training_set(self, part: Subset, labels: Sequence[str], seed: int) -> TrainingSet:
        """The rows of the part, weighted by `class_weights`."""
        targets = self.targets(part, labels)
        return TrainingSet(part.rows, targets, self.row_weights(targets))

    def row_weights(self, targets: np.ndarray) -> np.ndarray:
        """Weights float32 [R] with mean 1: all equal, or balanced so that every label has the same total weight."""
        if self.class_weights == "none":
            return np.ones(len(targets), np.float32)
        if not self.multi_label:
            counts = np.bincount(targets)
            return (len(targets) / (np.count_nonzero(counts) * counts[targets])).astype(np.float32)
        # With several labels, the rarest label of a row decides; rows without labels get the lowest weight.
        counts = np.maximum(targets.sum(axis=0), 1)
        rarity = np.where(targets > 0, 1.0 / counts, 0.0).max(axis=1)
        rarity = np.maximum(rarity, 1.0 / len(targets))
        return (rarity / rarity.mean()).astype(np.float32)

    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """Cross-entropy of each row, float32 [B], with several labels the sum over the labels."""
        from training.losses.classification import sigmoid_cross_entropy, softmax_cross_entropy

        loss = sigmoid_cross_entropy if self.multi_label else softmax_cross_entropy
        return loss(targets, outputs, self.smoothing)

    def loss_terms(self, labels: Sequence[str]) -> int:
        """With several labels, their number: reported losses are means over the labels."""
        return len(labels) if self.multi_label else 1

    def tune_thresholds(self, part: Subset, labels: Sequence[str], probabilities: Any, /) -> dict[str, Any]:
        """With several labels, the threshold of each with the best F1 on validation rows."""
        if not self.multi_label:
            return {}
        from training.metrics.thresholds import best_thresholds

        found = best_thresholds(self.targets(part, labels), probabilities)
        return {"thresholds": [float(value) for value in found]}

    def scores(
        self,
        part: Subset,
        labels: Sequence[str],
        probabilities: np.ndarray,
        decision: dict[str, Any],
        /,
        intervals: bool = False,
    ) -> dict[str, Any]:
        """Accuracy, precision, recall, F1, ROC-AUC, average precision, calibration, confusion.

        Labels that the model lacks count as errors; "unknown_labels" has the number of rows of each.
        """
        from training.metrics import classification as metrics

        true, names = self._true(part, labels)
        if self.multi_label:
            thresholds = np.asarray(decision["thresholds"], np.float32)
            result = metrics.multi_label_scores(true, probabilities, names, thresholds)
        else:
            result = metrics.single_label_scores(true, probabilities, names)
        if unknown := _unknown_label_counts(part, labels):
            result["unknown_labels"] = unknown
        if intervals:
            result["intervals"] = intervals_of(self.resampled(part, labels, probabilities, decision))
        return result

    def _true(self, part: Subset, labels: Sequence[str]) -> tuple[np.ndarray, list[str]]:
        """The labels of the rows: ids [R], or 0 or 1 [R, L]; and L names, which end with those the model lacks."""
        if not self.multi_label:
            return label_ids(part.examples, part.rows, labels)
        names = [*labels, *_unknown_label_counts(part, labels)]
        return label_matrix(part.examples, part.rows, names)[0], names

    def resampled(
        self, part: Subset, labels: Sequence[str], probabilities: np.ndarray, decision: dict[str, Any], /
    ) -> tuple:
        """Accuracy and F1."""
        if not self.multi_label:
            return self._resampled(part, labels, probabilities.argmax(axis=1))
        return self._resampled(part, labels, probabilities >= np.asarray(decision["thresholds"], np.float32))

    def _resampled(self, part: Subset, labels: Sequence[str], predicted: np.ndarray) -> tuple:
        from training.metrics.bootstrap import multi_label_resampled, single_label_resampled

        true, names = self._true(part, labels)
        if self.multi_label:
            return (multi_label_resampled(true, _pad_labels(predicted, len(names))),)
        return (single_label_resampled(true, predicted),)

    def baseline(
        self, train: Subset, validation: Subset, evaluated: Subset, labels: Sequence[str], seed: int
    ) -> Baseline:
        """A linear model on TF-IDF n-grams."""
        from training.baselines.text_linear import fit_baseline, sample_rows
        from training.metrics import classification as metrics

        sample = dataclasses.replace(train, rows=train.rows[sample_rows(len(train.rows), seed)])
        same_set = evaluated.examples is validation.examples
        is_evaluated = same_set and bool(np.isin(validation.rows, evaluated.rows).any())
        if not self.multi_label:
            # No model can learn a label that only validation rows have.
            known = label_ids(validation.examples, validation.rows, labels)[0] < len(labels)
            validation = dataclasses.replace(validation, rows=validation.rows[known])
        fitted = fit_baseline(
            sample.texts(),
            self.targets(sample, labels),
            multi_label=bool(self.multi_label),
            seed=seed,
            validation=(validation.texts(), self.targets(validation, labels)),
            join_validation=not is_evaluated,
            of_rows=len(train.rows),
        )
        predicted = fitted.predict(evaluated.texts())
        true, names = self._true(evaluated, labels)
        if self.multi_label:
            padded = _pad_labels(predicted, len(names))
            scores = metrics.multi_label_prediction_scores(true, padded, names)
        else:
            scores = metrics.single_label_prediction_scores(true, predicted, names, num_classes=len(labels))
        resampled = self._resampled(evaluated, labels, predicted)
        return Baseline(fitted.description, {**scores, "intervals": intervals_of(resampled)}, resampled)


def _unknown_label_counts(part: Subset, labels: Sequence[str]) -> dict[str, int]:
    """The number of rows of each label of a part that is not in `labels`, by name."""
    ids, _ = part.examples.local_labels(part.rows)
    counts = np.bincount(ids, minlength=len(part.examples.label_names)).tolist()
    seen, known = sorted(zip(part.examples.label_names, counts, strict=True)), set(labels)
    return {name: count for name, count in seen if count and name not in known}


def _pad_labels(predicted: np.ndarray, width: int) -> np.ndarray:
    """Predictions [R, C] padded with zeros to int8 [R, width]: unknown labels are never predicted."""
    return np.pad(predicted.astype(np.int8), ((0, 0), (0, width - predicted.shape[1])))

"""Classify a text: one label of many, or several at once.

Judging imports scikit-learn, which takes a second: inside the methods, so that --help need not wait for it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kmha.errors import InputError, did_you_mean
from training.data.types import Columns, Subset, TrainingSet
from training.io.example_store import Example, ExampleSet, label_ids, label_matrix
from training.io.tables import Row
from training.tasks.classify.settings import TEXT, ClassifySettings
from training.tasks.outputs import (
    random_probabilities,
    row_probabilities,
    unknown_rows,
    widened,
    with_unknown,
)
from training.tasks.protocol import Defaults

if TYPE_CHECKING:
    import keras

    from kmha.config import EncoderConfig

ONE, SEVERAL = "label", "labels"


@dataclasses.dataclass(frozen=True)
class ClassifyTask(ClassifySettings):
    """What a classifier adds to the encoder."""

    # See `Task`.
    baseline_name = "linear baseline"
    num_texts = 1
    has_classes = labels_alone = True
    holds_out_queries = whole_batches = makes_wrong_rows = False
    masking = None

    @property
    def metric(self) -> str:
        """Accuracy, or macro-F1 with several labels."""
        return "macro_f1" if self.multi_label else "accuracy"

    @property
    def defaults(self) -> Defaults:
        """Rare labels hang on rare words, which meet the optimizer too seldom to learn at the rate of the rest."""
        return Defaults(embedding_rate=4.0) if self.several_labels else Defaults()

    @property
    def kept(self) -> dict[str, Any]:
        """The metric."""
        return {"metric": self.metric}

    @property
    def several_labels(self) -> bool:
        """Whether a row may have any number of labels."""
        return bool(self.multi_label)

    def resolve(self, available: Sequence[str] | None, columns: Columns) -> tuple["ClassifyTask", Columns]:
        """Finds the text and label columns and whether rows have several labels."""
        columns = Columns(columns.text or TEXT, columns.label, columns.separator)
        label = columns.label
        if not label:
            known = (ONE, SEVERAL) if available is None else available
            order = (SEVERAL, ONE) if self.multi_label else (ONE, SEVERAL)
            label = next((name for name in order if name in known), "")
        if not label:
            hint = did_you_mean(ONE, available or (), "--data.label-column {}")
            hint = hint or "; name one with --data.label-column"
            raise InputError(
                f"--data.label-column: expected a column {ONE} or {SEVERAL},"
                f" got {', '.join(available or ())}{hint}"
            )
        multi_label = label == SEVERAL if self.multi_label is None else self.multi_label
        return dataclasses.replace(self, multi_label=multi_label), dataclasses.replace(columns, label=label)

    def examples(self, row: Row, columns: Columns) -> tuple[Example]:
        """Text and labels of a row."""
        text, given = row.values[columns.text], row.values[columns.label]
        if not isinstance(text, str):
            raise InputError(f"{row.place}: {columns.text} must be one text, got a list")
        names = given if isinstance(given, list) else [given]
        if self.multi_label:
            names = [part for name in names for part in name.split(columns.separator)]
        names = tuple(name.strip() for name in names if name.strip() or not self.multi_label)
        if not self.multi_label and (len(names) != 1 or not names[0]):
            what = "none" if not any(names) else f"{len(names)} labels"
            raise InputError(f"{row.place}: {columns.label} must be one label, got {what}")
        return (Example((text,), names, row.place),)

    def settled(self, sets: Mapping[str, ExampleSet]) -> "ClassifyTask":
        """Itself: the columns have said all."""
        return self

    def outputs(self, labels: Sequence[str], train: Subset) -> list[str]:
        """The labels."""
        return list(labels)

    def preprocessor(self, parts: Mapping[str, Any]) -> Any:
        """The only part."""
        (part,) = parts.values()
        return part

    def build(self, encoders: "dict[str, EncoderConfig]", labels: Sequence[str]):
        """A built classifier."""
        from kmha.models.classifier import TextClassifier

        (encoder,) = encoders.values()
        model = TextClassifier(
            encoder,
            len(labels),
            multi_label=self.several_labels,
            pooling=self.pooling,
            dropout=self.dropout,
            window=self.window,
            window_overlap=self.windows.overlap if self.windows else 0,
            window_pooling=self.window_pooling,
            name="classifier",
        )
        model.build()
        return model

    def forward(self, model: "keras.Model", features: Any) -> Any:
        """The logits."""
        return model(features, training=True)

    def training_set(self, part: Subset, labels: Sequence[str], seed: int) -> TrainingSet:
        """The rows of the part."""
        targets = self.targets(part, labels)
        return TrainingSet(part.rows, targets, self.weights(targets))

    def targets(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        """int32 label ids [R]; with several labels int32 [R, C], 1 = given."""
        if self.multi_label:
            return label_matrix(part.examples, part.rows, labels)[0].astype(np.int32)
        ids, _ = label_ids(part.examples, part.rows, labels)
        # A label that the model does not know cannot be a target; the scores count such rows as wrong.
        return np.where(ids < len(labels), ids, 0).astype(np.int32)

    def weights(self, targets: np.ndarray) -> np.ndarray:
        """Ones, or weights under which every label counts the same; their mean is 1."""
        if self.class_weights == "none":
            return np.ones(len(targets), np.float32)
        if not self.multi_label:
            counts = np.bincount(targets)
            return (len(targets) / (np.count_nonzero(counts) * counts[targets])).astype(np.float32)
        # With several labels a row weighs what its rarest label does; rows without labels weigh the least.
        counts = np.maximum(targets.sum(axis=0), 1)
        rarity = np.where(targets > 0, 1.0 / counts, 0.0).max(axis=1)
        rarity = np.maximum(rarity, 1.0 / len(targets))
        return (rarity / rarity.mean()).astype(np.float32)

    def prepare(self, model: "keras.Model", source: Any) -> None:
        """Starts the head at each label's share of the training rows.

        Adam moves a weight by little more than the learning rate a step: from zero the bias of a label that one
        row in a thousand has would not arrive within a training of some thousand steps.

        Source: Lin et al. 2017, §3.3, arXiv:1708.02002.
        """
        targets, weights = source.targets, source.weights.astype(np.float64)
        if self.multi_label:
            given = weights @ targets
        else:
            given = np.bincount(targets, weights, model.num_labels)
        shares = (given + 0.5) / (weights.sum() + 1.0)
        odds = shares / (1 - shares) if self.multi_label else shares
        model.head.bias.assign(np.log(odds).astype(np.float32))

    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """Cross-entropy of each example, float32 [B]."""
        from training.losses.classification import sigmoid_cross_entropy, softmax_cross_entropy

        loss = sigmoid_cross_entropy if self.multi_label else softmax_cross_entropy
        return loss(targets, outputs, self.smoothing)

    def reader(self, model: "keras.Model") -> Callable[[Any, Any], np.ndarray]:
        """Gives probabilities float32 [R, C]."""
        return functools.partial(row_probabilities, model)

    def guesses(self, model: "keras.Model", part: Subset) -> np.ndarray:
        """Random probabilities float32 [R, C]."""
        return random_probabilities(model, len(part.rows))

    def decision(self, part: Subset, labels: Sequence[str], probabilities: np.ndarray) -> dict[str, Any]:
        """With several labels, the probability from which each is given, by F1 on validation rows."""
        if not self.multi_label:
            return {}
        from training.metrics import thresholds

        found = thresholds.best_thresholds(self.targets(part, labels), probabilities)
        return {"thresholds": [float(value) for value in found]}

    def scores(
        self,
        part: Subset,
        labels: Sequence[str],
        probabilities: np.ndarray,
        decision: dict,
        intervals: bool = False,
    ) -> dict[str, Any]:
        """Accuracy, precision, recall, F1, ROC-AUC, average precision, calibration, confusion.

        Labels that the model does not know count as errors; "unknown_labels" has the rows of each, where
        there are any.
        """
        from training.metrics import classification as scores

        if self.multi_label:
            cuts = np.asarray(decision["thresholds"], np.float32)
            names = with_unknown(part, labels)
            true, _ = label_matrix(part.examples, part.rows, names)
            answers = widened(probabilities >= cuts, len(names))
            result = scores.multi_label_scores(true, probabilities, names, cuts)
        else:
            true, names = label_ids(part.examples, part.rows, labels)
            answers = probabilities.argmax(axis=1)
            result = scores.single_label_scores(true, probabilities, names)
        if unknown := unknown_rows(part, labels):
            result["unknown_labels"] = unknown
        return {**result, "intervals": self._intervals(true, answers)} if intervals else result

    def _intervals(self, true: np.ndarray, answers: np.ndarray) -> dict[str, Any]:
        from training.metrics import bootstrap as intervals

        make = intervals.multi_label_intervals if self.multi_label else intervals.single_label_intervals
        return {name: list(ends) for name, ends in make(true, answers).items()}

    def baseline(
        self, train: Subset, validation: Subset, evaluated: Subset, labels: Sequence[str], seed: int
    ) -> tuple[str, dict[str, Any]]:
        """TF-IDF n-grams and a linear model, on the same rows."""
        from training.baselines import text_linear as baseline
        from training.metrics import classification as scores

        drawn = dataclasses.replace(train, rows=train.rows[baseline.drawn_rows(len(train.rows), seed)])
        fitted = baseline.fit_baseline(
            drawn.texts(),
            self.targets(drawn, labels),
            multi_label=self.several_labels,
            seed=seed,
            validation=(validation.texts(), self.targets(validation, labels)),
            of_rows=len(train.rows),
        )
        answers = fitted.predict(evaluated.texts())
        if self.multi_label:
            names = with_unknown(evaluated, labels)
            true, _ = label_matrix(evaluated.examples, evaluated.rows, names)
            answers = widened(answers, len(names))
            result = scores.multi_label_answer_scores(true, answers, names)
        else:
            true, names = label_ids(evaluated.examples, evaluated.rows, labels)
            result = scores.single_label_answer_scores(true, answers, names, num_classes=len(labels))
        return fitted.description, {**result, "intervals": self._intervals(true, answers)}

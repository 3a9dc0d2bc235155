"""Text matching; scikit-learn and TensorFlow are imported in the methods, so that --help is fast."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from kmha.config import EncoderConfig
from kmha.errors import InputError, format_names
from kmha.features import SIDES
from training.io.examples import ColumnOverrides, Columns, Example, ExampleSet, Subset, TrainingSet, label_ids
from training.io.tables import Row
from training.tasks.match.rows import (
    DEFAULT_PAIRS,
    DEFAULT_TRIPLETS,
    QUERY,
    fits,
    number,
    pair_columns,
    pair_examples,
)
from training.tasks.protocol import Baseline, Defaults, Task, TaskTraits, intervals_of, metric_of_bundle
from training.tasks.settings import BY_QUERY, DEFAULT_FORM, LISTS, NONE, Loss, MatchSettings, Metric, Target

logger = logging.getLogger("kmha")

SCORE = "score"
# The cosine that separates right from wrong pairs in the contrastive stage; the head has a bias of its own.
CONTRASTIVE_THRESHOLD = 0.5

_METRICS: dict[Target, tuple[Metric, ...]] = {
    "binary": ("accuracy", "f1", "roc_auc", "average_precision"),
    "classes": ("accuracy", "macro_f1"),
    "graded": ("spearman", "pearson"),
}


@dataclasses.dataclass(frozen=True)
class MatchTask(MatchSettings, Task):
    """Text matching; for the methods see `Task`."""

    @classmethod
    def from_bundle(cls, bundle: Any) -> "MatchTask":
        """The task of a trained bundle."""
        target = bundle.model.target
        metric = metric_of_bundle(bundle, (*_METRICS[target], *(BY_QUERY if target != "classes" else ())))
        return cls(target=target, form=bundle.model.form, best_by=metric)

    @property
    def metric(self) -> str:
        """The metric of the settings."""
        return self.best_by

    @property
    def traits(self) -> TaskTraits:
        """Two texts; the others follow from the target, the metric and the loss."""
        return TaskTraits(
            num_texts=2,
            has_classes=self.target != "graded",
            keeps_queries_together=self.best_by in BY_QUERY or self.loss in LISTS,
            needs_whole_batches=self.loss == "contrastive",
            makes_negatives=self.loss == "contrastive" or self.hard_negatives != NONE,
        )

    @property
    def defaults(self) -> Defaults:
        """Pairs overfit earlier: the best epoch is the third of 125 batches on MRPC, the second of 275 on WikiQA."""
        return Defaults(batches_on=500)

    def resolve_columns(self, available: Sequence[str] | None, columns: Columns) -> tuple[Self, Columns]:
        """Finds the columns of pairs or triplets and checks that the settings go together."""
        columns = pair_columns(available, columns)
        task = dataclasses.replace(self, form=self.form or DEFAULT_FORM)
        if columns.wrong:
            if self.target not in ("auto", "binary"):
                raise InputError(f"--match.target: expected binary for triplets, got {self.target}")
            loss = "triplet" if self.loss == "auto" else self.loss
            task = dataclasses.replace(task, target="binary", loss=loss)
        task.check()
        overlap = task.form != "bi" if task.overlap is None else task.overlap
        return dataclasses.replace(task, overlap=overlap), columns

    def columns_of_file(self, trained: Columns, flags: ColumnOverrides, available: Sequence[str]) -> Columns:
        """The columns of pairs or triplets, and of the query if the file has one."""
        if flags.query and flags.query not in available:
            shown = f"{flags.query}, got {format_names(available)}"
            raise InputError(f"--query-column: expected a column {shown}")
        queries = (flags.query, trained.query, QUERY)
        query = next((name for name in queries if name and name in available), "")
        if not (flags.text or flags.text_b or flags.label):
            for columns in (trained, DEFAULT_PAIRS, DEFAULT_TRIPLETS):
                if columns.text and set(columns.required) <= set(available):
                    return dataclasses.replace(columns, query=query)
        # Missing columns are reported when the file is read.
        defaults = trained if trained.text and not trained.wrong else DEFAULT_PAIRS
        return Columns(
            flags.text or defaults.text,
            flags.label or defaults.label,
            text_b=flags.text_b or defaults.text_b,
            query=query,
        )

    def parse_row(self, row: Row, columns: Columns) -> tuple[Example, ...]:
        """The pairs of a row: one, or two of a triplet."""
        return pair_examples(row, columns, self.target)

    def resolve_from_data(self, sets: Mapping[str, ExampleSet]) -> "MatchTask":
        """Chooses target, loss and metric."""
        target = _target_of(sets["train"]) if self.target == "auto" else self.target
        for examples in sets.values():
            _check_labels(examples, target)
        loss = _loss_of(self, target, sets["train"])
        best_by = _metric_of(self, target, sets)
        return dataclasses.replace(self, target=target, loss=loss, best_by=best_by)

    @property
    def allow_few_labels(self) -> bool:
        """For labels, not for numbers or triplets; the form is resolved by now."""
        return self.target != "graded" and self.loss == "cross-entropy"

    def for_few_labels(self) -> Self:
        """Separate encoders without cross-attention: the head has few weights, and reads overlap features too."""
        return dataclasses.replace(self, form="cross", rounds=0, overlap=True)

    def few_label_targets(self, targets: np.ndarray) -> np.ndarray:
        """Class ids int32 [R]; of binary pairs 0 or 1, int32 [R, 1]."""
        values = targets[:, 0].astype(np.int32)
        return values if self.target == "classes" else values[:, None]

    @property
    def has_contrastive_stage(self) -> bool:
        """Not for classes: a cosine cannot tell them apart."""
        return self.target == "binary"

    def contrastive_outputs(self, model: Any, features: Any) -> Any:
        """The cosine of each pair, float32 [B, 1]."""
        from keras import ops

        a, b = (model.vectors(features, side, training=True) for side in SIDES)
        return ops.sum(a * b, axis=-1, keepdims=True)

    def contrastive_losses(self, targets: Any, outputs: Any, num_labels: int) -> Any:
        """Cross-entropy of the cosines as logits: a right pair is above `CONTRASTIVE_THRESHOLD`, a wrong one below."""
        from kmha.models.matcher import COSINE_SCALE
        from training.losses.pairs import binary_cross_entropy

        return binary_cross_entropy(targets, COSINE_SCALE * (outputs - CONTRASTIVE_THRESHOLD))

    def head_bases(self, model: Any) -> list[np.ndarray]:
        """The cosine, also with overlap features, also with |a - b| and a · b."""
        from training.tasks.match.initialization import head_bases

        return head_bases(model)

    def output_names(self, labels: Sequence[str], train: Subset) -> list[str]:
        """The classes, or one score."""
        return list(labels) if self.target == "classes" else [SCORE]

    def preprocessor(self, parts: Mapping[str, Any]) -> Any:
        """A `PairPreprocessor`."""
        from kmha.text.preprocessor import PairPreprocessor

        return PairPreprocessor(parts)

    def fit_linear_path(
        self, train: Any, validation: Any, labels: Sequence[str], preprocessor: Any, seed: int, alone: bool
    ) -> Any:
        """A linear model of the overlap at the first granularity; None with a single label."""
        from kmha.bundle.bundle import parts_of
        from training.tasks.match.linear_path import fit_pair_path

        part = next(iter(parts_of(preprocessor).values()))
        is_ranking = self.target == "binary" and self.best_by in BY_QUERY
        path = fit_pair_path(
            train, validation, self.target, len(labels), part, self.symmetric, seed, is_ranking
        )
        return path and dataclasses.replace(path, compares_rows=self.loss in LISTS)

    def predict_with_path(self, evaluator: Any, linear: Any, source: Any) -> Any:
        """The predictions of `evaluator.predict(source)` by the linear path without its network."""
        return evaluator.with_outputs(source, linear.linear_logits(source)).predict(source)

    def build_model(
        self, encoders: dict[str, EncoderConfig], labels: Sequence[str], linear: Any = None
    ) -> Any:
        """A built `TextMatcher`."""
        from kmha.models.matcher import TextMatcher

        network = None if linear is None else linear.network
        model = TextMatcher(
            encoders,
            len(labels),
            target=self.target,  # pyright: ignore  (resolved by now)
            form=self.form or DEFAULT_FORM,
            rounds=self.rounds,
            pooling=self.pooling,
            symmetric=self.symmetric,
            overlap=bool(self.overlap),
            share_weights=self.share_weights,
            dropout=self.dropout,
            linear_rows=None if linear is None else linear.layer.rows,
            linear_slots=1 if linear is None else linear.layer.slots,
            linear_trigrams=0 if linear is None else linear.layer.trigrams,
            overlap_units=0 if network is None else network.units,
            name="matcher",
        )
        model.build()
        return model

    def initialize(self, model: Any, source: Any) -> None:
        """Counts token rarities and sets the head to a linear model of the overlap; without overlap to the mean."""
        for index, pair in enumerate(model.pairs):
            if pair.overlap:
                pair.token_overlap.adapt(source.different_ids(index))
        if self.overlap:
            from training.tasks.match.initialization import initialize_from_overlap

            initialize_from_overlap(model, source, self.target)
        elif self.target != "classes" and self.loss in ("cross-entropy", "squares"):
            mean = float(source.targets[:, 0].mean())
            start = mean if self.target == "graded" else float(np.log((mean + 1e-3) / (1 - mean + 1e-3)))
            bias = model.cosine_bias if model.head is None else model.head.bias
            bias.assign(np.full(bias.shape, start, np.float32))

    def targets(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        """float32 [R, 2]: the value (0 or 1, a class id, or a number), and the number of the row's query."""
        queries = np.unique(part.examples.queries[part.rows], return_inverse=True)[1]
        return np.stack([self._values(part, labels), queries], axis=1).astype(np.float32)

    def _values(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        if self.target == "classes":
            ids, _ = label_ids(part.examples, part.rows, labels)
            # A class that the model lacks cannot be a target; the scores count such rows as wrong.
            return np.where(ids < len(labels), ids, 0)
        values = np.array([number(name) for name in part.examples.label_names], np.float64)
        return values[part.examples.local_labels(part.rows)[0]]

    def training_set(self, part: Subset, labels: Sequence[str], seed: int) -> TrainingSet:
        """The rows with candidates that the loss can compare, and hard negatives."""
        targets = self.targets(part, labels)
        rows = np.stack([part.rows, part.rows], axis=1).astype(np.int64)
        if self.hard_negatives != NONE:
            from training.tasks.match.hard_negatives import add_hard_negatives

            rows, targets = add_hard_negatives(part, rows, targets, self.hard_negatives, self.negatives, seed)
        if self.loss in (*LISTS, "contrastive"):
            from training.tasks.match.hard_negatives import comparable_rows

            useful = comparable_rows(targets[:, 0], targets[:, 1].astype(np.int64), self.loss)
            if not useful.rows.any():
                raise InputError(
                    f"--match.loss {self.loss}: expected queries with right and wrong candidates, got none"
                )
            if useful.skipped_queries:
                logger.info(
                    f"{useful.skipped_queries:,} queries skipped: too few candidates for the {self.loss} loss"
                )
            rows, targets = rows[useful.rows], targets[useful.rows]
        lists = targets[:, 1].astype(np.int64) if self.loss in LISTS else None
        return TrainingSet(rows, targets, np.ones(len(rows), np.float32), lists)

    def forward(self, model: Any, features: Any) -> Any:
        """The logits; with the contrastive loss those of every pair in the batch."""
        if self.loss == "contrastive":
            return model.all_pairs(features, training=True)
        return model(features, training=True)

    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """The loss of the settings for each row, float32 [B]."""
        from training.losses import pairs as pair_losses

        if self.loss == "triplet":
            return pair_losses.triplet(targets, outputs, self.margin)
        if self.loss == "cross-entropy":
            binary = self.target == "binary"
            loss = pair_losses.binary_cross_entropy if binary else pair_losses.cross_entropy
            return loss(targets, outputs, self.label_smoothing)
        losses = {
            "squares": pair_losses.mean_squared_error,
            "listwise": pair_losses.listwise_softmax,
            "contrastive": pair_losses.in_batch_contrastive,
        }
        return losses[self.loss](targets, outputs)

    def tune_thresholds(self, part: Subset, labels: Sequence[str], probabilities: Any, /) -> dict[str, Any]:
        """For binary pairs, the threshold with the best accuracy on validation rows."""
        if self.target != "binary":
            return {}
        from training.metrics.thresholds import steady_threshold

        return {"thresholds": [steady_threshold(self._values(part, labels) > 0, probabilities[:, 0])]}

    def scores(
        self,
        part: Subset,
        labels: Sequence[str],
        probabilities: np.ndarray,
        decision: dict[str, Any],
        /,
        intervals: bool = False,
    ) -> dict[str, Any]:
        """Scores of the rows, and of the rankings if rows have queries."""
        if self.target == "classes":
            from training.metrics.classification import single_label_scores

            true, names = label_ids(part.examples, part.rows, labels)
            scores = single_label_scores(true, probabilities, names)
        else:
            from training.tasks.match.scoring import pair_scores

            scores = pair_scores(*self._pair_arguments(part, labels, probabilities, decision))
        if intervals:
            scores["intervals"] = intervals_of(self.resampled(part, labels, probabilities, decision))
        return scores

    def resampled(
        self, part: Subset, labels: Sequence[str], probabilities: np.ndarray, decision: dict[str, Any], /
    ) -> tuple:
        """Scores of rows, and of queries if rows have them."""
        if self.target == "classes":
            from training.metrics.bootstrap import single_label_resampled

            true, _ = label_ids(part.examples, part.rows, labels)
            return (single_label_resampled(true, probabilities.argmax(axis=1)),)
        from training.tasks.match.scoring import pair_resampled

        return pair_resampled(*self._pair_arguments(part, labels, probabilities, decision))

    def _pair_arguments(
        self, part: Subset, labels: Sequence[str], probabilities: np.ndarray, decision: dict[str, Any]
    ) -> tuple[np.ndarray, np.ndarray, float | None, bool]:
        """The arguments of `pair_scores`."""
        threshold = float(decision["thresholds"][0]) if self.target == "binary" else None
        return self.targets(part, labels), probabilities[:, 0], threshold, part.examples.named_queries

    def baseline(
        self, train: Subset, validation: Subset, evaluated: Subset, labels: Sequence[str], seed: int
    ) -> Baseline:
        """TF-IDF cosine, BM25 and a linear model on overlap features; the one best on validation rows."""
        from training.tasks.match.scoring import Pairs, best_baseline, class_baseline

        def pairs(part: Subset) -> Pairs:
            texts = part.texts(0), part.texts(1)
            return Pairs(*texts, self.targets(part, labels), part.examples.named_queries)

        assert self.target != "auto"
        if self.target == "classes":
            true, names = label_ids(evaluated.examples, evaluated.rows, labels)
            return class_baseline(pairs(train), pairs(evaluated), true, names, len(labels), seed)
        return best_baseline(
            pairs(train), pairs(validation), pairs(evaluated), self.target, self.metric, seed
        )


def _target_of(train: ExampleSet) -> Target:
    """The kind of the training labels."""
    values = [number(name) for name in train.label_names]
    if any(value is None for value in values):
        return "classes"
    return "binary" if set(values) <= {0.0, 1.0} else "graded"


def _check_labels(examples: ExampleSet, target: Target) -> None:
    """Raises InputError for the first row with a label that the target does not allow."""
    for name in examples.label_names:
        if not fits(name, target):
            ids, _ = examples.local_labels(np.arange(len(examples)))
            row = int(np.flatnonzero(ids == examples.label_names.index(name))[0])
            expected = "0 or 1" if target == "binary" else "a number"
            raise InputError(
                f"{examples.place(row)}: the label must be {expected} for a {target} target, got {name!r}"
            )


def _loss_of(settings: MatchSettings, target: Target, train: ExampleSet) -> Loss:
    """The loss of the settings, or the default of the target; raises InputError if they do not go together."""
    default: Loss = "squares" if target == "graded" else "cross-entropy"
    loss = default if settings.loss == "auto" else settings.loss
    if target == "classes":
        name = next((name for name in train.label_names if number(name) is None), train.label_names[0])
        settings.check_classes(f"classes such as {name!r}")
    pairs = (("graded", "squares", "cross-entropy"), ("binary", "cross-entropy", "squares"))
    for one, other, refused in pairs:
        if (target, loss) == (one, refused):
            labels = "numbers" if target == "graded" else "labels of 0 and 1 (or --match.target graded)"
            raise InputError(
                f"--match.loss: expected {other}, triplet, listwise or contrastive for {labels}, got {loss}"
            )
    return loss


def _metric_of(settings: MatchSettings, target: Target, sets: Mapping[str, ExampleSet]) -> Metric:
    """The metric of the settings, or the default; raises InputError if it is undefined for these rows."""
    by_query = BY_QUERY if target != "classes" and sets["train"].named_queries else ()
    known = (*_METRICS[target], *by_query)
    metric = ("map" if by_query else known[0]) if settings.best_by == "auto" else settings.best_by
    if metric not in known:
        raise InputError(f"--match.best-by: expected one of {', '.join(known)} for these rows, got {metric}")
    if metric in by_query:
        for examples in sets.values():
            if not examples.named_queries:
                raise InputError(
                    f"{examples.origin}: expected names of queries as in the training rows for the metric {metric},"
                    f" got none; or set --match.best-by {known[0]}"
                )
    return metric

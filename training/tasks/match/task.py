"""Compare two texts: whether they match, how well, or which class the pair has.

Judging imports scikit-learn, which takes a second: inside the methods, so that --help need not wait for it.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kmha.errors import InputError
from training.data.types import Columns, Subset, TrainingSet
from training.io.example_store import Example, ExampleSet, label_ids
from training.io.tables import Row
from training.tasks.match.detection import check_labels, loss_of, metric_of, target_of
from training.tasks.match.rows import number, pair_columns, pair_examples
from training.tasks.match.settings import BY_QUERY, DEFAULT_FORM, LISTS, NONE, MatchSettings
from training.tasks.outputs import random_probabilities, row_probabilities
from training.tasks.protocol import Defaults

logger = logging.getLogger("kmha")

if TYPE_CHECKING:
    import keras

    from kmha.config import EncoderConfig

SCORE = "score"


@dataclasses.dataclass(frozen=True)
class MatchTask(MatchSettings):
    """What a matcher adds to the encoder."""

    # See `Task`.
    masking = None
    windows = None
    # Pairs are learnt by heart sooner: the best epoch of mrpc is the third of 125 batches, of wikiqa the second of 275.
    defaults = Defaults(batches_on=500)
    baseline_name = "baseline"
    num_texts = 2
    several_labels = False
    labels_alone = False

    @property
    def metric(self) -> str:
        """Name of the score that picks the best weights."""
        return self.best_by

    @property
    def kept(self) -> dict[str, Any]:
        """The metric."""
        return {"metric": self.metric}

    @property
    def has_classes(self) -> bool:
        """Whether labels are names; binary ones are too."""
        return self.target != "graded"

    @property
    def holds_out_queries(self) -> bool:
        """Whether a query's rows are judged together, or learnt together."""
        return self.best_by in BY_QUERY or self.loss in LISTS

    @property
    def whole_batches(self) -> bool:
        """With the contrastive loss, whose wrong answers are those of the other rows."""
        return self.loss == "contrastive"

    @property
    def makes_wrong_rows(self) -> bool:
        """With the contrastive loss or hard negatives."""
        return self.loss == "contrastive" or self.hard_negatives != NONE

    def resolve(self, available: Sequence[str] | None, columns: Columns) -> tuple["MatchTask", Columns]:
        """Finds the columns; refuses settings that contradict each other."""
        columns = pair_columns(available, columns)
        task = dataclasses.replace(self, form=self.form or DEFAULT_FORM)
        if columns.wrong:
            if self.target not in ("auto", "binary"):
                raise InputError(f"--match.target: expected binary for triplets, got {self.target}")
            loss = "triplet" if self.loss == "auto" else self.loss
            task = dataclasses.replace(task, target="binary", loss=loss)
        task.check()
        return dataclasses.replace(
            task, overlap=task.form != "bi" if task.overlap is None else task.overlap
        ), columns

    def examples(self, row: Row, columns: Columns) -> tuple[Example, ...]:
        """The pairs in a row."""
        return pair_examples(row, columns, self.target)

    def settled(self, sets: Mapping[str, ExampleSet]) -> "MatchTask":
        """The task with everything decided that was left to the rows."""
        target = target_of(sets["train"]) if self.target == "auto" else self.target
        for examples in sets.values():
            check_labels(examples, target)
        loss = loss_of(self, target, sets["train"])
        best_by = metric_of(self, target, sets)
        return dataclasses.replace(self, target=target, loss=loss, best_by=best_by)

    def outputs(self, labels: Sequence[str], train: Subset) -> list[str]:
        """The classes, or one score."""
        return list(labels) if self.target == "classes" else [SCORE]

    def preprocessor(self, parts: Mapping[str, Any]) -> Any:
        """One for pairs, of all parts."""
        from kmha.text.pair_preprocessor import PairPreprocessor

        return PairPreprocessor(parts)

    def build(self, encoders: "dict[str, EncoderConfig]", labels: Sequence[str]):
        """A built matcher."""
        from kmha.models.matcher import TextMatcher

        model = TextMatcher(
            encoders,
            len(labels),
            target=self.target,  # pyright: ignore  (settled by now)
            form=self.form or DEFAULT_FORM,
            rounds=self.rounds,
            pooling=self.pooling,
            symmetric=self.symmetric,
            overlap=bool(self.overlap),
            share_weights=self.share_weights,
            dropout=self.dropout,
            name="matcher",
        )
        model.build()
        return model

    def prepare(self, model: "keras.Model", source: Any) -> None:
        """Learns how rare tokens are, and starts from what overlap alone says; without overlap from the mean."""
        for index, pair in enumerate(model.pairs):
            if pair.overlap:
                pair.token_overlap.adapt(source.different_ids(index))
        if self.overlap:
            from training.tasks.match.initialization import start_from_overlap

            start_from_overlap(model, source, self.target)
        elif self.target != "classes" and self.loss in ("cross-entropy", "squares"):
            mean = float(source.targets[:, 0].mean())
            start = mean if self.target == "graded" else float(np.log((mean + 1e-3) / (1 - mean + 1e-3)))
            bias = model.cosine_bias if model.head is None else model.head.bias
            bias.assign(np.full(bias.shape, start, np.float32))

    def forward(self, model: "keras.Model", features: Any) -> Any:
        """The logits; with the contrastive loss those of every pair of the batch."""
        if self.loss == "contrastive":
            return model.all_pairs(features, training=True)
        return model(features, training=True)

    def training_set(self, part: Subset, labels: Sequence[str], seed: int) -> TrainingSet:
        """The rows that the loss can learn from, and hard negatives."""
        targets = self.targets(part, labels)
        rows = np.stack([part.rows, part.rows], axis=1).astype(np.int64)
        if self.hard_negatives != NONE:
            from training.tasks.match.hard_negatives import with_hard_negatives

            rows, targets = with_hard_negatives(
                part, rows, targets, self.hard_negatives, self.negatives, seed
            )
        if self.loss in (*LISTS, "contrastive"):
            from training.tasks.match.hard_negatives import teaching_rows

            teaching = teaching_rows(targets[:, 0], targets[:, 1].astype(np.int64), self.loss)
            if not teaching.rows.any():
                raise InputError(
                    f"--match.loss {self.loss}: expected queries with right answers to tell from others, got none"
                )
            if teaching.skipped_queries:
                logger.info(
                    f"{teaching.skipped_queries:,} queries skipped: the {self.loss} loss can learn nothing from them"
                )
            rows, targets = rows[teaching.rows], targets[teaching.rows]
        lists = targets[:, 1].astype(np.int64) if self.loss in LISTS else None
        return TrainingSet(rows, targets, np.ones(len(rows), np.float32), lists)

    def targets(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        """float32 [R, 2]: 0 or 1, a class id or a number; and the number of the row's query among these rows."""
        queries = np.unique(part.examples.queries[part.rows], return_inverse=True)[1]
        return np.stack([self._values(part, labels), queries], axis=1).astype(np.float32)

    def _values(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        if self.target == "classes":
            ids, _ = label_ids(part.examples, part.rows, labels)
            # A class that the model does not know cannot be a target; the scores count such rows as wrong.
            return np.where(ids < len(labels), ids, 0)
        values = np.array([number(name) for name in part.examples.label_names], np.float64)
        return values[part.examples.local_labels(part.rows)[0]]

    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """The chosen loss of each row, float32 [B]."""
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

    def reader(self, model: "keras.Model") -> Callable[[Any, Any], np.ndarray]:
        """Gives probabilities float32 [R, C]."""
        return functools.partial(row_probabilities, model)

    def guesses(self, model: "keras.Model", part: Subset) -> np.ndarray:
        """Random probabilities float32 [R, C]."""
        return random_probabilities(model, len(part.rows))

    def decision(self, part: Subset, labels: Sequence[str], probabilities: np.ndarray) -> dict[str, Any]:
        """Of binary pairs, the probability from which one matches, by accuracy on validation rows."""
        if self.target != "binary":
            return {}
        from training.metrics.thresholds import steady_threshold

        return {"thresholds": [steady_threshold(self._values(part, labels) > 0, probabilities[:, 0])]}

    def scores(
        self,
        part: Subset,
        labels: Sequence[str],
        probabilities: np.ndarray,
        decision: dict,
        intervals: bool = False,
    ) -> dict[str, Any]:
        """Scores of the rows, and where they have queries of the rankings."""
        from training.tasks.match.scoring import class_scores, pair_scores

        if self.target == "classes":
            true, names = label_ids(part.examples, part.rows, labels)
            return class_scores(true, probabilities, names, intervals)
        threshold = float(decision["thresholds"][0]) if self.target == "binary" else None
        has_queries = part.examples.named_queries
        return pair_scores(self.targets(part, labels), probabilities[:, 0], threshold, has_queries, intervals)

    def baseline(
        self, train: Subset, validation: Subset, evaluated: Subset, labels: Sequence[str], seed: int
    ) -> tuple[str, dict[str, Any]]:
        """TF-IDF cosine, BM25 and a linear model on overlap features; the one best on validation rows."""
        from training.tasks.match.scoring import Pairs, baseline_scores, class_baseline_scores

        def pairs(part: Subset) -> Pairs:
            return Pairs(
                part.texts(0), part.texts(1), self.targets(part, labels), part.examples.named_queries
            )

        assert self.target != "auto"
        if self.target == "classes":
            true, names = label_ids(evaluated.examples, evaluated.rows, labels)
            return class_baseline_scores(pairs(train), pairs(evaluated), true, names, len(labels), seed)
        return baseline_scores(
            pairs(train), pairs(validation), pairs(evaluated), self.target, self.metric, seed
        )

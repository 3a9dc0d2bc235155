"""Compare two texts: whether they match, how well, or which class the pair has.

Judging imports scikit-learn, which takes a second: inside the methods, so that --help need not wait for it.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from kmha.errors import InputError
from training.cli.bounds import Count, Positive, Probability, Range
from training.io.example_store import Example, ExampleSet, label_ids
from training.io.tables import Row
from training.tasks.match.rows import number, pair_columns, pair_examples
from training.tasks.match.settings import (
    BY_QUERY,
    LISTS,
    NONE,
    Loss,
    Metric,
    Target,
    check_labels,
    check_together,
    loss_of,
    metric_of,
    target_of,
)
from training.tasks.outputs import random_probabilities, row_probabilities
from training.tasks.protocol import Columns, Defaults, Part, TrainingSet

logger = logging.getLogger("kmha")

if TYPE_CHECKING:
    import keras

    from kmha.config import EncoderConfig

SCORE = "score"
DEFAULT_FORM = "cross"
Tokenization = Literal["wordpiece", "char", "word"]


@dataclasses.dataclass(frozen=True)
class MatchTask:
    """What a matcher adds to the encoder."""

    target: Literal["auto"] | Target = "auto"
    """What labels are: 0 or 1, names of classes, or numbers; auto: what they look like."""
    form: Literal["cross", "bi", "joint"] | None = None
    """cross: each text alone, then both looking at each other; bi: each alone, with the cosine; joint: both as one
    sequence; None: cross, of a checkpoint joint."""
    granularities: tuple[Tokenization, ...] = ()
    """Ways to cut texts, each with an encoder of its own; none: as --text.tokenization says."""
    rounds: Annotated[int, Range(at_least=1, at_most=4)] = 1
    """Of cross-attention, in the cross form."""
    pooling: Literal["cls", "mean", "max"] = "mean"
    """How the token vectors of a text become one."""
    symmetric: bool = False
    """Whether the order of the two texts changes nothing."""
    overlap: bool | None = None
    """Whether tokens that stand in both texts are marked; None: but in the bi form and of a checkpoint."""
    share_weights: bool = True
    """Whether both texts go through the same encoder."""
    dropout: Probability = 0.3
    """Probability of dropping a value of the joined features."""
    loss: Literal["auto"] | Loss = "auto"
    """What training lowers; auto: cross-entropy, of graded pairs squares."""
    margin: Positive = 1.0
    """Of the triplet loss: by how much a right answer's logit should lead."""
    label_smoothing: Annotated[float, Range(at_least=0, below=1)] = 0.0
    """Share of each target spread over all answers, with cross-entropy."""
    hard_negatives: str = NONE
    """More wrong pairs to train on, from the training texts: none, bm25, or a run folder of the bi form."""
    negatives: Count = 4
    """Hard negatives of each query."""
    best_by: Literal["auto"] | Metric = "auto"
    """Score that picks the best weights; auto: map where rows have queries, else accuracy, of numbers spearman."""

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
        check_together(task)
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

    def outputs(self, labels: Sequence[str], train: Part) -> list[str]:
        """The classes, or one score."""
        return list(labels) if self.target == "classes" else [SCORE]

    def tokenizations(self, defaults: str) -> tuple[str, ...]:
        """The granularities, or the usual way."""
        return tuple(dict.fromkeys(self.granularities)) or (defaults,)

    def preprocessor(self, parts: Mapping[str, Any]) -> Any:
        """One for pairs, of all parts."""
        from kmha.text.pair_preprocessor import PairPreprocessor

        return PairPreprocessor(parts)

    def encoder(self, config: "EncoderConfig") -> "EncoderConfig":
        """As the settings describe it; for the joint form with room for both texts."""
        if self.form != "joint":
            return config
        return dataclasses.replace(config, num_segments=2, max_length=2 * config.max_length - 1)

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
                pair.token_overlap.learn(source.different_ids(index))
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

    def training_set(self, part: Part, labels: Sequence[str], seed: int) -> TrainingSet:
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

    def targets(self, part: Part, labels: Sequence[str]) -> np.ndarray:
        """float32 [R, 2]: 0 or 1, a class id or a number; and the number of the row's query among these rows."""
        queries = np.unique(part.examples.queries[part.rows], return_inverse=True)[1]
        return np.stack([self._values(part, labels), queries], axis=1).astype(np.float32)

    def _values(self, part: Part, labels: Sequence[str]) -> np.ndarray:
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

    def guesses(self, model: "keras.Model", part: Part) -> np.ndarray:
        """Random probabilities float32 [R, C]."""
        return random_probabilities(model, len(part.rows))

    def decision(self, part: Part, labels: Sequence[str], probabilities: np.ndarray) -> dict[str, Any]:
        """Of binary pairs, the probability from which one matches, by accuracy on validation rows."""
        if self.target != "binary":
            return {}
        from training.metrics.thresholds import steady_threshold

        return {"thresholds": [steady_threshold(self._values(part, labels) > 0, probabilities[:, 0])]}

    def scores(
        self,
        part: Part,
        labels: Sequence[str],
        probabilities: np.ndarray,
        decision: dict,
        intervals: bool = False,
    ) -> dict[str, Any]:
        """Scores of the rows, and where they have queries of the rankings."""
        from training.tasks.match.scoring import pair_scores

        return pair_scores(self, part, labels, probabilities, decision, intervals)

    def baseline(
        self, train: Part, validation: Part, evaluated: Part, labels: Sequence[str], seed: int
    ) -> tuple[str, dict[str, Any]]:
        """TF-IDF cosine, BM25 and a linear model on overlap features; the one best on validation rows."""
        from training.tasks.match.scoring import baseline_scores

        return baseline_scores(self, train, validation, evaluated, labels, seed)

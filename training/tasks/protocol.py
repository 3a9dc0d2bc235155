"""The interface of a task: all that differs between classification, matching, tagging and masked language modeling."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kmha.config import EncoderConfig
from kmha.document_windows import WindowShape
from kmha.errors import InputError, shown
from training.io.examples import ColumnOverrides, Columns, Example, ExampleSet, Masking, Subset, TrainingSet
from training.io.tables import Row
from training.tasks.settings import TaskSettings

if TYPE_CHECKING:
    from training.metrics.bootstrap import ResampledScores


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Defaults of settings that depend on the task."""

    dropout: float = 0.3
    token_dropout: float | None = None  # None: depends on the length of the texts
    embedding_rate: float = 1.0  # of the embedding tables, relative to the other weights
    # In total, in 3 to 20 epochs. Beyond 1,200, scores fell on every labeled data set of docs/results.md.
    batches: int = 1200
    batches_on: int = 800  # for a pretrained encoder, in 2 to 6 epochs


@dataclasses.dataclass(frozen=True)
class TaskTraits:
    """Properties of a task that data loading and training depend on."""

    baseline_name: str = "baseline"  # in messages and reports
    num_texts: int = 1  # per row
    is_multi_label: bool = False
    has_classes: bool = True  # labels are names: training rows have every one, and the split is stratified
    is_text_and_label: bool = False  # one text and one label column, so that tables are read in blocks
    keeps_queries_together: bool = False  # all rows of a query are held out together
    needs_whole_batches: bool = False  # the loss compares all rows of a batch, so replicas cannot share it
    makes_negatives: bool = False  # training adds negative rows, so positive rows alone are enough


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A fitted baseline on the evaluated rows."""

    description: str  # in one line
    scores: dict[str, Any]  # with "intervals"
    resampled: "tuple[ResampledScores, ...]"  # in the order of `Task.resampled`


class Task(TaskSettings, abc.ABC):
    """Behavior of a task, to which a subclass adds settings; methods are in the order of a training run."""

    @classmethod
    @abc.abstractmethod
    def from_bundle(cls, bundle: Any) -> Self:
        """The task of a trained bundle, to read and to score rows."""

    @property
    @abc.abstractmethod
    def metric(self) -> str:
        """Name of the score that selects the best weights; higher is better."""

    @property
    @abc.abstractmethod
    def traits(self) -> TaskTraits:
        """Properties that data loading and training depend on."""

    @property
    def defaults(self) -> Defaults:
        """Defaults of other settings."""
        return Defaults()

    @property
    def masking(self) -> Masking | None:
        """How tokens are masked; None for tasks with labels."""
        return None

    @property
    def windows(self) -> WindowShape | None:
        """How long texts are divided; None: each text is one sequence."""
        return None

    @property
    def details_for_bundle(self) -> dict[str, Any]:
        """JSON values that the bundle stores, so that the task can score rows later."""
        return {"metric": self.metric}

    @abc.abstractmethod
    def resolve_columns(self, available: Sequence[str] | None, columns: Columns) -> tuple[Self, Columns]:
        """The task and the columns of a file, None if unknown; InputError if a column is missing."""

    @abc.abstractmethod
    def columns_of_file(self, trained: Columns, flags: ColumnOverrides, available: Sequence[str]) -> Columns:
        """The columns of a file to score: from flags, else those of training, else defaults; InputError if missing."""

    @abc.abstractmethod
    def parse_row(self, row: Row, columns: Columns) -> Sequence[Example]:
        """The examples in a row; raises InputError with the row's place."""

    def resolve_from_data(self, sets: Mapping[str, ExampleSet]) -> Self:
        """The task with all settings that depend on the rows of these sets; InputError for rows that do not fit."""
        return self

    def for_few_labels(self) -> Self:
        """The task as few labels are trained, if `allow_few_labels`."""
        return self

    def few_label_targets(self, targets: np.ndarray) -> np.ndarray:
        """Label ids int [R], or for outputs that do not exclude each other 0 or 1, int [R, C]; from `targets`."""
        return targets

    @property
    def has_contrastive_stage(self) -> bool:
        """Whether the encoder can be trained without the head, from few labels."""
        return True

    def contrastive_outputs(self, model: Any, features: Any) -> Any:
        """The input of `contrastive_losses`, in training."""
        return model.pooled_vectors(features, training=True)

    def contrastive_losses(self, targets: Any, outputs: Any, num_labels: int) -> Any:
        """The loss of each row, float32 [B], that trains the encoder without the head, from few labels."""
        from training.losses.contrastive import contrastive_loss

        return contrastive_loss(targets, outputs, num_labels)

    def head_bases(self, model: Any) -> Sequence[np.ndarray | None]:
        """What a linear head may read: matrices [W, Z] from the head's input to choose from; None: all of it."""
        return [None]

    def output_names(self, labels: Sequence[str], train: Subset) -> list[str]:
        """Names of the model's outputs, from the labels of the training rows."""
        return list(labels)

    def preprocessor(self, parts: Mapping[str, Any]) -> Any:
        """The preprocessor of rows, from the preprocessors of single texts by tokenization."""
        (part,) = parts.values()
        return part

    def fit_linear_path(
        self, train: Any, validation: Any, labels: Sequence[str], preprocessor: Any, seed: int, alone: bool
    ) -> Any:
        """Fits a linear model whose logits are added to those of the encoder; None without one.

        It has `description`, a line; `logits(source)` of rows, float32 [R, C]; `assign(model, factor)`, which sets the
        linear path of the model; `weigh(linear, encoder, targets)`, the arguments of `scale_paths` of the model with
        the lowest loss; `refit(sources, seed)`, the same model fitted on the rows of several sources; of texts and
        pairs `is_base`, whether it is the model to improve on; and of pairs a `network`, or None. `alone`: the model
        has no encoder.
        """
        return None

    def join_paths(
        self, model: Any, linear: Any, outputs: np.ndarray | None, validation: Any
    ) -> tuple[Sequence[Any], np.ndarray]:
        """Scales both paths of a trained model by factors that are fitted on the validation rows.

        Args:
            model: The model.
            linear: Its linear path, from `fit_linear_path`.
            outputs: Outputs of the model for the validation rows, float32 [R, C]; None: its encoder is not used.
            validation: The validation rows.

        Returns:
            The factors, first those of the linear path and of the encoder, and the new outputs, float32 [R, C].
        """
        own = linear.logits(validation)
        encoder = np.zeros_like(own) if outputs is None else outputs - own
        factors = (1.0, 0.0) if outputs is None else linear.weigh(own, encoder, validation.targets)
        model.scale_paths(*factors)
        joined = factors[0] * own + factors[1] * encoder + sum(factors[2:])
        return factors, joined.astype(np.float32)

    def predict_with_path(self, evaluator: Any, linear: Any, source: Any) -> Any:
        """The predictions of `evaluator.predict(source)` by the linear path alone."""
        return evaluator.with_outputs(source, linear.logits(source)).predict(source)

    @abc.abstractmethod
    def build_model(
        self, encoders: dict[str, EncoderConfig], labels: Sequence[str], linear: Any = None
    ) -> Any:
        """A built Keras model with an encoder for each tokenization.

        The labels are the names of its outputs; `linear` is the result of `fit_linear_path`.
        """

    def initialize(self, model: Any, source: Any) -> None:
        """Sets the weights of a built model that follow from the training rows, their targets and weights."""

    @abc.abstractmethod
    def targets(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        """Targets of the loss, [R, …]."""

    def training_set(self, part: Subset, labels: Sequence[str], seed: int) -> TrainingSet:
        """The rows to train on with targets and weights, from the training rows."""
        return TrainingSet(part.rows, self.targets(part, labels), np.ones(len(part.rows), np.float32))

    def forward(self, model: Any, features: Any) -> Any:
        """The input of the loss, in training."""
        return model(features, training=True)

    @abc.abstractmethod
    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """Loss of each row, float32 [B]; a sum of `loss_terms` terms."""

    def loss_terms(self, labels: Sequence[str]) -> int:
        """By what reported training losses are divided, so that they have the scale of validation losses."""
        return 1

    def gather_outputs(self, num_outputs: int, source: Any, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
        """The outputs for all rows, from (plan, outputs) of each batch: [R, C], of a tagger for all words [N, K]."""
        return _row_outputs(num_outputs, source, outputs)

    def postprocessor(self, model: Any) -> Callable[[Any, Any], Any]:
        """A function from a source and (plan, outputs) of its batches to predictions, such as probabilities [R, C]."""
        return functools.partial(row_probabilities, model)

    def dummy_predictions(self, model: Any, part: Subset) -> Any:
        """Random predictions, to check that the metric is defined for the rows of a part."""
        return random_probabilities(model, len(part.rows))

    def tune_thresholds(self, part: Subset, labels: Sequence[str], predictions: Any, /) -> dict[str, Any]:
        """Decision thresholds, chosen on validation rows: JSON values for the bundle, empty without thresholds."""
        return {}

    @abc.abstractmethod
    def scores(
        self,
        part: Subset,
        labels: Sequence[str],
        predictions: Any,
        thresholds: dict[str, Any],
        /,
        intervals: bool = False,
    ) -> dict[str, Any]:
        """Scores of predictions, with the result of `tune_thresholds`; on request with bootstrap intervals."""

    @abc.abstractmethod
    def resampled(
        self, part: Subset, labels: Sequence[str], predictions: Any, thresholds: dict[str, Any], /
    ) -> "tuple[ResampledScores, ...]":
        """What the intervals of `scores` and comparisons with other predictions need, for each kind of row."""

    @abc.abstractmethod
    def baseline(
        self, train: Subset, validation: Subset, evaluated: Subset, labels: Sequence[str], seed: int
    ) -> Baseline:
        """Fits the baseline and scores it on the evaluated rows."""


def metric_of_bundle(bundle: Any, known: Sequence[Any]) -> Any:
    """The metric in a bundle's details, by default the first one; raises InputError for one that is not known."""
    metric = bundle.details.get("metric", known[0])
    if metric not in known:
        raise InputError(f"bundle.json: metric must be one of {', '.join(known)}, got {shown(metric)}")
    return metric


def intervals_of(resampled: "Sequence[ResampledScores]") -> dict[str, list[float]]:
    """Bootstrap intervals of all scores."""
    return {name: ends for each in resampled for name, ends in each.intervals().items()}


def row_probabilities(model: Any, source: Any, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
    """Probabilities float32 [R, C] of the source's rows, from (plan, logits [B, C]) of each batch."""
    batches = ((plan, model.probabilities(logits)) for plan, logits in outputs)
    return _row_outputs(model.num_labels, source, batches)


def _row_outputs(width: int, source: Any, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
    result = np.zeros((len(source.rows), width), np.float32)
    for plan, found in outputs:
        result[plan.rows] = np.asarray(found)[: len(plan.rows)]
    return result


def random_probabilities(model: Any, rows: int) -> np.ndarray:
    """Probabilities float32 [R, C] of random logits."""
    logits = np.random.default_rng(0).normal(size=(rows, model.num_labels))
    return np.asarray(model.probabilities(logits.astype(np.float32)))

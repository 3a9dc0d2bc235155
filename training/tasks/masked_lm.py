"""Masked language modeling: predict masked tokens of unlabeled texts; other tasks can start from the encoder."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from kmha.config import EncoderConfig
from kmha.errors import InputError
from training.cli.bounds import check_ranges
from training.io.examples import ColumnOverrides, Columns, Example, Masking, Subset
from training.io.tables import Row
from training.tasks.protocol import Baseline, Defaults, Task, TaskTraits, intervals_of
from training.tasks.settings import MaskedLmSettings

TEXT = "text"
METRIC = "masked_accuracy"


@dataclasses.dataclass(frozen=True)
class MaskedLmTask(MaskedLmSettings, Task):
    """Masked language modeling; for the methods see `Task`."""

    @classmethod
    def from_bundle(cls, bundle: Any) -> "MaskedLmTask":
        """The task of a trained bundle; raises InputError if its details are invalid."""
        details = bundle.details.get("masking", {})
        try:
            task = cls(**details)
            check_ranges(task)
        except (TypeError, InputError) as error:
            raise InputError(
                f"masking: expected share, whole_word and packed, got {details!r} ({error})"
            ) from error
        return task

    @property
    def metric(self) -> str:
        """Accuracy of the masked tokens."""
        return METRIC

    @property
    def traits(self) -> TaskTraits:
        """No classes."""
        return TaskTraits("unigram baseline", is_multi_label=True, has_classes=False)

    @property
    def defaults(self) -> Defaults:
        """Little dropout, since masking is noise enough; many batches, since each has few targets."""
        return Defaults(dropout=0.1, token_dropout=0.0, batches=6000, batches_on=6000)

    @property
    def masking(self) -> Masking:
        """The settings."""
        return Masking(self.share, self.whole_word, self.packed)

    @property
    def details_for_bundle(self) -> dict[str, Any]:
        """The metric and the settings."""
        return {"metric": METRIC, "masking": dataclasses.asdict(self.masking)}

    def resolve_columns(self, available: Sequence[str] | None, columns: Columns) -> tuple[Self, Columns]:
        """The column of the text."""
        return self, Columns(columns.text or TEXT)

    def columns_of_file(self, trained: Columns, flags: ColumnOverrides, available: Sequence[str]) -> Columns:
        """The text column."""
        return Columns(flags.text or (trained.text if trained.text in available else "") or TEXT)

    def parse_row(self, row: Row, columns: Columns) -> Sequence[Example]:
        """The text of a row; nothing if it is empty."""
        text = row.values[columns.text]
        if not isinstance(text, str):
            raise InputError(f"{row.place}: {columns.text} must be one text, got a list")
        return (Example((text,), (), row.place),) if text.strip() else ()

    def output_names(self, labels: Sequence[str], train: Subset) -> list[str]:
        """None: the outputs are tokens."""
        return []

    def build_model(
        self, encoders: dict[str, EncoderConfig], labels: Sequence[str], linear: Any = None
    ) -> Any:
        """A built `MaskedLanguageModel`."""
        from kmha.models.masked_lm import MaskedLanguageModel

        (encoder,) = encoders.values()
        model = MaskedLanguageModel(encoder, name="masked_lm")
        model.build()
        return model

    def initialize(self, model: Any, source: Any) -> None:
        """Sets the output bias to the token frequencies of the training texts."""
        from training.metrics.masked_lm import unigram_probabilities

        counts = np.zeros(model.vocabulary_size, np.int64)
        found = source.token_counts()
        counts[: len(found)] = found
        model.bias.assign(np.log(unigram_probabilities(counts)).astype(np.float32))

    def targets(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        """Zeros [R]: the batches make the targets when they mask tokens."""
        return np.zeros(len(part.rows), np.int32)

    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """Mean cross-entropy of each row's masked tokens, float32 [B]; the row's weight is their number."""
        from training.losses.classification import masked_token_loss

        return masked_token_loss(targets, outputs)

    def postprocessor(self, model: Any) -> Callable[[Any, Any], Any]:
        """Gives `MaskedPredictions`: how well the masked tokens of each row were predicted."""
        from training.metrics.masked_lm import masked_predictions

        return functools.partial(masked_predictions, model.vocabulary_size)

    def dummy_predictions(self, model: Any, part: Subset) -> Any:
        """One masked token with a uniform, wrong prediction."""
        from training.metrics.masked_lm import MaskedPredictions

        loss = np.full(1, np.log(model.vocabulary_size))
        return MaskedPredictions(np.ones(1, np.int32), loss, np.zeros(1, np.int32))

    def scores(
        self, part: Subset, labels: Sequence[str], masked: Any, decision: dict, /, intervals: bool = False
    ) -> dict[str, Any]:
        """Loss, perplexity and accuracy of the masked tokens."""
        from training.metrics.masked_lm import masked_scores

        scores = {"rows": len(part.rows), **masked_scores(masked)}
        if intervals:
            scores["intervals"] = intervals_of(self.resampled(part, labels, masked, decision))
        return scores

    def resampled(self, part: Subset, labels: Sequence[str], masked: Any, decision: dict, /) -> tuple:
        """Perplexity and accuracy."""
        from training.metrics.masked_lm import masked_resampled

        return (masked_resampled(masked),)

    def baseline(
        self, train: Subset, validation: Subset, evaluated: Subset, labels: Sequence[str], seed: int
    ) -> Baseline:
        """The token frequencies of the training texts as predictions of the same masked tokens."""
        from training.metrics.masked_lm import unigram_predictions

        counts = train.source.token_counts()
        predictions = unigram_predictions(counts, evaluated.source)
        return Baseline(
            f"frequencies of {int(counts.sum()):,} training tokens",
            self.scores(evaluated, labels, predictions, {}, intervals=True),
            self.resampled(evaluated, labels, predictions, {}),
        )

"""Learn a language from texts without labels: find the tokens that were hidden.

What it learns is of use as the encoder that another task starts from (`--encoder.pretrained`).
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kmha.errors import InputError
from training.cli.bounds import check_ranges
from training.data.types import Columns, Masking, Subset, TrainingSet
from training.io.example_store import Example, ExampleSet
from training.io.tables import Row
from training.tasks.masked_lm.settings import MaskedLmSettings
from training.tasks.protocol import Defaults

if TYPE_CHECKING:
    import keras

    from kmha.config import EncoderConfig
    from training.metrics.masked_lm import MaskedAnswers

TEXT = "text"
METRIC = "masked_accuracy"


def kept_task(details: Mapping[str, Any]) -> "MaskedLmTask":
    """The task that a bundle's details describe; raises InputError where they describe none."""
    kept = details.get("masking", {})
    try:
        task = MaskedLmTask(**kept)
        check_ranges(task)
    except (TypeError, InputError) as error:
        raise InputError(f"masking: expected share, whole_word and packed, got {kept!r} ({error})") from error
    return task


@dataclasses.dataclass(frozen=True)
class MaskedLmTask(MaskedLmSettings):
    """What a masked language model hides."""

    # See `Task`.
    baseline_name = "unigram baseline"
    num_texts = 1
    several_labels = True
    has_classes = False
    holds_out_queries = False
    labels_alone = False
    whole_batches = False
    makes_wrong_rows = False
    metric = METRIC

    windows = None

    @property
    def masking(self) -> Masking:
        """The settings."""
        return Masking(self.share, self.whole_word, self.packed)

    @property
    def defaults(self) -> Defaults:
        """Hidden tokens are noise enough; and each batch teaches little, so it takes many."""
        return Defaults(dropout=0.1, token_dropout=0.0, batches=6000, batches_on=6000)

    @property
    def kept(self) -> dict[str, Any]:
        """The metric and the settings."""
        return {"metric": METRIC, "masking": dataclasses.asdict(self.masking)}

    def resolve(self, available: Sequence[str] | None, columns: Columns) -> tuple["MaskedLmTask", Columns]:
        """The column of the text."""
        return self, Columns(columns.text or TEXT)

    def examples(self, row: Row, columns: Columns) -> Sequence[Example]:
        """The text of a row; none of a row without one."""
        text = row.values[columns.text]
        if not isinstance(text, str):
            raise InputError(f"{row.place}: {columns.text} must be one text, got a list")
        return (Example((text,), (), row.place),) if text.strip() else ()

    def settled(self, sets: Mapping[str, ExampleSet]) -> "MaskedLmTask":
        """Itself."""
        return self

    def outputs(self, labels: Sequence[str], train: Subset) -> list[str]:
        """None: the outputs are tokens."""
        return []

    def preprocessor(self, parts: Mapping[str, Any]) -> Any:
        """The only part."""
        (part,) = parts.values()
        return part

    def build(self, encoders: "dict[str, EncoderConfig]", labels: Sequence[str]):
        """A built masked language model."""
        from kmha.models.masked_lm import MaskedLanguageModel

        (encoder,) = encoders.values()
        model = MaskedLanguageModel(encoder, name="masked_lm")
        model.build()
        return model

    def forward(self, model: "keras.Model", features: Any) -> Any:
        """The logits."""
        return model(features, training=True)

    def training_set(self, part: Subset, labels: Sequence[str], seed: int) -> TrainingSet:
        """The rows of the part."""
        return TrainingSet(part.rows, self.targets(part, labels), np.ones(len(part.rows), np.float32))

    def targets(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        """Zeros [R]: what is wanted of a row is made with it."""
        return np.zeros(len(part.rows), np.int32)

    def prepare(self, model: "keras.Model", source: Any) -> None:
        """Starts the output at how often each token stands in the training texts."""
        from training.metrics.masked_lm import unigram_probabilities

        counts = np.zeros(model.vocabulary_size, np.int64)
        found = source.token_counts()
        counts[: len(found)] = found
        model.bias.assign(np.log(unigram_probabilities(counts)).astype(np.float32))

    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """Mean cross-entropy of each row's masked tokens, float32 [B]; the row's weight is their number."""
        from training.losses.classification import masked_token_loss

        return masked_token_loss(targets, outputs)

    def reader(self, model: "keras.Model") -> "Callable[[Any, Any], MaskedAnswers]":
        """Gives how well the tokens of each row were found."""
        from training.metrics.masked_lm import masked_answers

        return functools.partial(masked_answers, model.vocabulary_size)

    def guesses(self, model: "keras.Model", part: Subset) -> "MaskedAnswers":
        """One token that was not found."""
        from training.metrics.masked_lm import MaskedAnswers

        return MaskedAnswers(
            np.ones(1, np.int32), np.full(1, np.log(model.vocabulary_size)), np.zeros(1, np.int32)
        )

    def decision(self, part: Subset, labels: Sequence[str], answers: Any, /) -> dict[str, Any]:
        """Nothing."""
        return {}

    def scores(
        self,
        part: Subset,
        labels: Sequence[str],
        answers: "MaskedAnswers",
        decision: dict,
        /,
        intervals: bool = False,
    ) -> dict[str, Any]:
        """Loss, perplexity and accuracy over the masked tokens."""
        from training.metrics.masked_lm import masked_scores

        return {"rows": len(part.rows), **masked_scores(answers, intervals)}

    def baseline(
        self, train: Subset, validation: Subset, evaluated: Subset, labels: Sequence[str], seed: int
    ) -> tuple[str, dict[str, Any]]:
        """How often each token stands in the training texts, asked for the same masked tokens."""
        from training.metrics.masked_lm import masked_scores, unigram_answers

        counts = train.source.token_counts()
        answers = unigram_answers(counts, evaluated.source)
        description = f"frequencies of {int(counts.sum()):,} training tokens"
        return description, {"rows": len(evaluated.rows), **masked_scores(answers, intervals=True)}

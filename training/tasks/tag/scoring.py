"""Scores of tagged sentences."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kmha.inference.tagger import TaggedSentences
from kmha.tags import Scheme
from training.metrics.classification import calibration_error
from training.metrics.spans import tag_intervals, tag_scores

LEAST_PROBABILITY = 1e-7


def sentence_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: Scheme, intervals: bool
) -> dict[str, Any]:
    """Scores of the tags of sentences, in the tagging scheme of the rows.

    Args:
        gold: The labeled tags.
        predicted: The predicted tags.
        scheme: Scheme of both.
        intervals: Whether to add bootstrap intervals.
    """
    scores = tag_scores(gold, predicted, scheme)
    return {**scores, "intervals": tag_intervals(gold, predicted, scheme)} if intervals else scores


def word_scores(targets: np.ndarray, tagged: TaggedSentences) -> dict[str, float | None]:
    """The loss of the words, None without words, and the calibration error.

    Args:
        targets: Expected tag ids, int32 [N].
        tagged: The predictions.
    """
    rows = np.arange(len(targets))
    probabilities = np.maximum(tagged.probabilities[rows, targets], LEAST_PROBABILITY)
    confidences = tagged.probabilities[rows, tagged.tag_ids]
    return {
        "loss": float(-np.log(probabilities).mean()) if len(targets) else None,
        "ece": calibration_error(confidences, tagged.tag_ids == targets),
    }

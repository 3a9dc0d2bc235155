"""How well a tagger, or its baseline, scores the sentences of a part."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kmha.tags.tagging import Tagged
from training.data.sentence_batches import read_sentences
from training.metrics.classification import calibration_error
from training.metrics.spans import most_frequent_errors, tag_intervals, tag_scores
from training.tasks.protocol import Part

if TYPE_CHECKING:
    from training.tasks.tag.task import TagTask

LEAST_PROBABILITY = 1e-7


def sentence_scores(
    task: "TagTask", part: Part, labels: Sequence[str], tagged: Tagged, intervals: bool
) -> dict[str, Any]:
    """Scores of tags; see `TagTask.scores`."""
    gold, scheme = task.given_tags(part), task.given_scheme
    assert scheme != "auto"
    predicted = [
        task.as_given([str(labels[index]) for index in sentence.tag_ids]) for sentence in tagged.sentences()
    ]
    scores = _scores(task, gold, predicted, intervals)
    expected = task.targets(part, labels)
    probabilities = tagged.probabilities[np.arange(len(expected)), expected]
    scores["loss"] = (
        float(-np.log(np.maximum(probabilities, LEAST_PROBABILITY)).mean()) if len(expected) else None
    )
    sure = tagged.probabilities[np.arange(len(expected)), tagged.tag_ids]
    scores["ece"] = calibration_error(sure, tagged.tag_ids == expected)
    if intervals:
        words = read_sentences(part.examples, part.rows)
        scores["errors"] = most_frequent_errors(words, gold, predicted, scheme)
    return scores


def baseline_scores(
    task: "TagTask", train: Part, validation: Part, evaluated: Part, seed: int
) -> tuple[str, dict[str, Any]]:
    """What the baseline is, and its scores on the judged sentences."""
    from training.baselines.tagging import fit_tag_baseline

    learnt, held_out = (
        (read_sentences(part.examples, part.rows), task.given_tags(part)) for part in (train, validation)
    )
    fitted = fit_tag_baseline(*learnt, *held_out, seed)
    predicted = fitted.predict(read_sentences(evaluated.examples, evaluated.rows))
    return fitted.description, _scores(task, task.given_tags(evaluated), predicted, True)


def _scores(task: "TagTask", gold: Any, predicted: Any, intervals: bool) -> dict[str, Any]:
    scheme: Any = task.given_scheme
    scores = tag_scores(gold, predicted, scheme)
    return {**scores, "intervals": tag_intervals(gold, predicted, scheme)} if intervals else scores

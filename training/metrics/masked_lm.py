"""How well hidden tokens were found: by a model, and by how often tokens stand."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from kmha.text.vocabulary import SPECIAL_TOKENS
from training.metrics.bootstrap import percentile_interval

RESAMPLES, LEVEL = 1000, 0.95
BATCH_TOKENS, MOST_ROWS = 1 << 16, 4096


class MaskedAnswers(NamedTuple):
    """What became of the masked tokens of some rows.

    Attributes:
        counts: Masked tokens of each row, int32 [N].
        losses: Sum of minus the log-probabilities of the true ones, in nats, float64 [N].
        hits: How many were the most probable ones, int32 [N].
    """

    counts: np.ndarray
    losses: np.ndarray
    hits: np.ndarray


def masked_answers(vocabulary_size: int, source: Any, outputs: Iterable[tuple[Any, Any]]) -> MaskedAnswers:
    """Compares a model's logits with the true tokens.

    Args:
        vocabulary_size: V.
        source: The rows, a `MaskedSource`.
        outputs: Of each batch its plan and its logits, float32 [B, M, V].
    """
    answers = _none(len(source.lengths))
    for plan, logits in outputs:
        targets = source.batch(plan)["targets"]
        there = targets >= 0
        # float32 whatever the policy is, and in one operation: probabilities would be as large as the logits.
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(np.where(there, targets, 0), logits).numpy()
        hits = (tf.argmax(logits, axis=-1, output_type=tf.int32).numpy() == targets) & there
        _put(answers, plan.rows, there, losses * there, hits)
    return answers


def unigram_probabilities(counts: np.ndarray) -> np.ndarray:
    """Of each token, one more than counted, so that an unseen one is possible, float64 [V]."""
    return (counts + 1.0) / (counts.sum() + len(counts))


def unigram_answers(counts: np.ndarray, source: Any) -> MaskedAnswers:
    """What one says who knows nothing but how often each token stands.

    Args:
        counts: Of the training texts, integers [V].
        source: The rows, a `MaskedSource`.
    """
    vocabulary = source.tokens.preprocessor.vocabulary
    counts = counts.copy()
    # Never hidden, so never the answer.
    counts[[vocabulary.id_of(token) for token in SPECIAL_TOKENS]] = 0
    losses, best = -np.log(unigram_probabilities(counts)), counts.argmax()
    answers = _none(len(source.lengths))
    for plan in source.plans(source.buckets([], 8), BATCH_TOKENS, MOST_ROWS, rng=None):
        targets = source.batch(plan)["targets"]
        there = targets >= 0
        _put(answers, plan.rows, there, losses[np.where(there, targets, 0)] * there, targets == best)
    return answers


def _none(rows: int) -> MaskedAnswers:
    return MaskedAnswers(np.zeros(rows, np.int32), np.zeros(rows), np.zeros(rows, np.int32))


def _put(
    answers: MaskedAnswers, rows: np.ndarray, there: np.ndarray, losses: np.ndarray, hits: np.ndarray
) -> None:
    for kept, values in zip(answers, (there, losses.astype(np.float64), hits), strict=True):
        kept[rows] = values.sum(axis=1)[: len(rows)]


def masked_scores(answers: MaskedAnswers, intervals: bool = False) -> dict[str, Any]:
    """Scores over all masked tokens.

    Args:
        answers: Of some rows.
        intervals: Whether to add 95 % bootstrap intervals, over rows.

    Returns:
        "masked_tokens", "loss" (mean, in nats), "perplexity" (its exponential), "masked_accuracy", and perhaps
        "intervals" of the last two. None where there is no masked token.
    """
    tokens = int(answers.counts.sum())
    if not tokens:
        return {"masked_tokens": 0, "loss": None, "perplexity": None, "masked_accuracy": None}
    loss = float(answers.losses.sum()) / tokens
    scores: dict[str, Any] = {
        "masked_tokens": tokens,
        "loss": loss,
        "perplexity": float(np.exp(loss)),
        "masked_accuracy": int(answers.hits.sum()) / tokens,
    }
    if intervals:
        scores["intervals"] = _intervals(answers)
    return scores


def _intervals(answers: MaskedAnswers) -> dict[str, list[float]]:
    generator = np.random.default_rng(0)
    table = np.stack([np.asarray(each, np.float64) for each in answers], axis=1)
    table = table[table[:, 0] > 0]
    sums = np.empty((RESAMPLES, 3))
    for resample in range(RESAMPLES):
        # How often each row is drawn says as much as which row each draw is, and needs no table of its own.
        drawn = np.bincount(generator.integers(0, len(table), len(table)), minlength=len(table))
        sums[resample] = drawn @ table
    perplexities, accuracies = np.exp(sums[:, 1] / sums[:, 0]), sums[:, 2] / sums[:, 0]
    return {
        "perplexity": list(percentile_interval(perplexities, LEVEL)),
        "masked_accuracy": list(percentile_interval(accuracies, LEVEL)),
    }

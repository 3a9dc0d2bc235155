"""Masked-token scores of a model and of the unigram baseline."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from kmha.text.vocabulary import SPECIAL_TOKENS
from training.metrics.bootstrap import ResampledScores, Statistics

BATCH_TOKENS, MOST_ROWS = 1 << 16, 4096


class MaskedPredictions(NamedTuple):
    """Results for the masked tokens of each row."""

    counts: np.ndarray  # masked tokens, int32 [N]
    losses: np.ndarray  # sum of the cross-entropies of the true tokens, float64 [N]
    hits: np.ndarray  # tokens whose prediction is right, int32 [N]


def masked_predictions(
    vocabulary_size: int, source: Any, outputs: Iterable[tuple[Any, Any]]
) -> MaskedPredictions:
    """Compares a model's outputs, (plan, logits float32 [B, M, V]) of each batch, with a `MaskedSource`."""
    predictions = _empty(len(source.lengths))
    for plan, logits in outputs:
        targets = source.batch(plan)["targets"]
        is_masked = targets >= 0
        # In float32 under any policy, and in one operation to save memory.
        masked = np.where(is_masked, targets, 0)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(masked, logits).numpy()
        hits = (tf.argmax(logits, axis=-1, output_type=tf.int32).numpy() == targets) & is_masked
        _put(predictions, plan.rows, is_masked, losses * is_masked, hits)
    return predictions


def unigram_probabilities(counts: np.ndarray) -> np.ndarray:
    """Probabilities float64 [V] from counts plus 1, so that unseen tokens are possible."""
    return (counts + 1.0) / (counts.sum() + len(counts))


def unigram_predictions(counts: np.ndarray, source: Any) -> MaskedPredictions:
    """Predicts the masked tokens of a `MaskedSource` by the token counts of the training texts, integers [V]."""
    vocabulary = source.tokens.preprocessor.vocabulary
    counts = counts.copy()
    # Special tokens are never masked.
    counts[[vocabulary.id_of(token) for token in SPECIAL_TOKENS]] = 0
    losses, best = -np.log(unigram_probabilities(counts)), counts.argmax()
    predictions = _empty(len(source.lengths))
    for plan in source.plans(source.buckets([]), BATCH_TOKENS, MOST_ROWS, rng=None):
        targets = source.batch(plan)["targets"]
        is_masked = targets >= 0
        of_tokens = losses[np.where(is_masked, targets, 0)] * is_masked
        _put(predictions, plan.rows, is_masked, of_tokens, targets == best)
    return predictions


def _empty(rows: int) -> MaskedPredictions:
    return MaskedPredictions(np.zeros(rows, np.int32), np.zeros(rows), np.zeros(rows, np.int32))


def _put(
    predictions: MaskedPredictions,
    rows: np.ndarray,
    is_masked: np.ndarray,
    losses: np.ndarray,
    hits: np.ndarray,
) -> None:
    for column, values in zip(predictions, (is_masked, losses.astype(np.float64), hits), strict=True):
        column[rows] = values.sum(axis=1)[: len(rows)]


def masked_scores(predictions: MaskedPredictions) -> dict[str, Any]:
    """Scores over all masked tokens, None without any.

    Returns:
        "masked_tokens", "loss" (mean), "perplexity" (its exponential) and "masked_accuracy".
    """
    tokens = int(predictions.counts.sum())
    if not tokens:
        return {"masked_tokens": 0, "loss": None, "perplexity": None, "masked_accuracy": None}
    loss = float(predictions.losses.sum()) / tokens
    return {
        "masked_tokens": tokens,
        "loss": loss,
        "perplexity": float(np.exp(loss)),
        "masked_accuracy": int(predictions.hits.sum()) / tokens,
    }


def masked_resampled(predictions: MaskedPredictions) -> ResampledScores:
    """`perplexity` and `masked_accuracy` of the rows with masked tokens."""
    rows = np.stack([np.asarray(each, np.float64) for each in predictions], axis=1)

    def statistics(groups: np.ndarray) -> Statistics:
        def scores(weights: np.ndarray) -> dict[str, np.ndarray]:
            tokens, losses, hits = (weights @ groups).T
            return {"perplexity": np.exp(losses / tokens), "masked_accuracy": hits / tokens}

        return scores

    return ResampledScores(rows[rows[:, 0] > 0], statistics)

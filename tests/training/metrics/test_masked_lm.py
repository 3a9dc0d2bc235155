import math

import numpy as np
import pytest

from tests.training.data.test_masked_batches import source_of, tokens  # noqa: F401
from training.metrics.masked_lm import (
    MaskedPredictions,
    masked_predictions,
    masked_resampled,
    masked_scores,
    unigram_predictions,
    unigram_probabilities,
)


def test_scores_are_of_all_masked_tokens_together():
    predictions = MaskedPredictions(np.array([3, 0, 1]), np.array([6.0, 0.0, 2.0]), np.array([1, 0, 1]))
    scores = masked_scores(predictions)
    assert scores["masked_tokens"] == 4 and scores["loss"] == 2.0
    assert scores["perplexity"] == pytest.approx(math.exp(2)) and scores["masked_accuracy"] == 0.5
    intervals = masked_resampled(predictions).intervals()
    assert set(intervals) == {"perplexity", "masked_accuracy"}
    assert intervals["masked_accuracy"] == pytest.approx([1 / 3, 1.0])


def test_scores_without_masked_tokens_are_none():
    empty = MaskedPredictions(*np.zeros((3, 2)))
    assert masked_scores(empty) == {
        "masked_tokens": 0,
        "loss": None,
        "perplexity": None,
        "masked_accuracy": None,
    }


def test_every_token_has_a_probability():
    probabilities = unigram_probabilities(np.array([3, 0, 1]))
    assert probabilities.tolist() == pytest.approx([4 / 7, 1 / 7, 2 / 7])


def test_baseline_equals_a_model_with_constant_logits(tokens):  # noqa: F811
    """The same tokens are predicted, whatever the batches are."""
    source = source_of(tokens)
    counts = source.token_counts()
    logits = np.log(unigram_probabilities(counts)).astype(np.float32)
    plans = source.plans([8, 16], 100, 5, rng=None)

    def outputs():
        for plan in plans:
            rows, slots = source.batch(plan)["targets"].shape
            yield plan, np.tile(logits, (rows, slots, 1))

    predictions, expected = (
        masked_predictions(len(counts), source, outputs()),
        unigram_predictions(counts, source),
    )
    np.testing.assert_array_equal(predictions.counts, expected.counts)
    np.testing.assert_array_equal(predictions.hits, expected.hits)
    np.testing.assert_allclose(predictions.losses, expected.losses, rtol=1e-5)
    assert expected.counts.min() > 0 and expected.hits.sum() > 0

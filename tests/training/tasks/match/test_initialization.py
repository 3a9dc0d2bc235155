"""The head that training starts from, against scikit-learn's linear models."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from kmha.config import EncoderConfig
from kmha.models.matcher import TextMatcher
from tests.layer_checks import to_numpy
from tests.training.tasks.match.conftest import GRANULARITIES, ROWS
from training.data.inputs import Inputs
from training.data.pair_batches import PairSource
from training.io.examples import TrainingSet
from training.tasks.match.initialization import initialize_from_overlap, training_shares
from training.tasks.match.task import MatchTask


def source_of(inputs: Inputs, values, rows=None, lists=None, **options) -> PairSource:
    """The pairs of some rows of the set, with target values [R]."""
    rows = np.arange(ROWS) if rows is None else np.asarray(rows)
    queries = np.arange(len(rows)) if lists is None else lists
    targets = np.stack([values, queries], axis=1).astype(np.float32)
    training_set = TrainingSet(np.stack([rows, rows], axis=1), targets, np.ones(len(rows), np.float32), lists)
    source: Any = inputs.source("train", training_set, **options)
    return source


def new_model(inputs: Inputs, target: Any = "binary", num_labels: int = 1, **options) -> TextMatcher:
    """A small matcher that knows how rare tokens are."""
    encoders = {
        name: EncoderConfig(
            len(part.vocabulary), hidden_dim=4, num_heads=1, intermediate_dim=4, max_length=79, num_layers=1
        )
        for name, part in zip(GRANULARITIES, inputs.preprocessor.parts, strict=True)
    }
    if options.get("form") == "joint":
        encoders = {name: replace(config, num_segments=2) for name, config in encoders.items()}
    model = TextMatcher(encoders, num_labels, target=target, **options)
    model.build()
    source = source_of(inputs, np.zeros(ROWS))
    for index, pair in enumerate(model.pairs):
        pair.token_overlap.adapt(source.different_ids(index))
    return model


def features_of(inputs: Inputs, rows=None) -> dict:
    """The features of rows as the preprocessor makes them, in their order."""
    examples = inputs.parts["train"].examples
    rows = np.arange(ROWS) if rows is None else np.asarray(rows)
    return inputs.preprocessor(*(list(examples.read_texts(rows, side)) for side in (0, 1)))


def shares_of(model: TextMatcher, inputs: Inputs, rows=None) -> np.ndarray:
    return to_numpy(model.shares(features_of(inputs, rows))).astype(np.float64)


def predictions_of(model: TextMatcher, inputs: Inputs, rows=None) -> np.ndarray:
    return to_numpy(model.probabilities(model(features_of(inputs, rows))))


def standardized(shares: np.ndarray) -> np.ndarray:
    """Shares of mean 0 and standard deviation 1, without shares whose deviation is rounding errors.

    Both shares of texts without repeated words are sums of the same rarities, in different orders.
    """
    spread = shares.std(axis=0)
    assert not ((spread > 1e-5) & (spread < 1e-2)).any()
    return StandardScaler().fit_transform(np.where(spread > 1e-3, shares, 0))


def noisy_values(shares: np.ndarray) -> np.ndarray:
    """Numbers that follow from the shares, but not only from them; float64 [R]."""
    scaled = standardized(shares)
    generator = np.random.default_rng(5)
    return scaled @ generator.normal(size=scaled.shape[1]) / 4 + generator.normal(size=len(scaled))


def fitted(shares: np.ndarray, labels: np.ndarray) -> tuple[Any, np.ndarray]:
    """scikit-learn's model and what it makes of its own rows, [R, classes that there are]."""
    scaled = standardized(shares)
    machine = LogisticRegression(C=1.0, tol=1e-8, max_iter=10_000).fit(scaled, labels)
    return machine, machine.predict_proba(scaled)


FORMS = [{}, {"symmetric": True}, {"form": "joint"}]


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_binary_head_starts_as_logistic_regression(inputs, options):
    model = new_model(inputs, **options)
    shares = shares_of(model, inputs)
    labels = (noisy_values(shares) > 0.3).astype(int)
    initialize_from_overlap(model, source_of(inputs, labels), "binary")
    _, expected = fitted(shares, labels)
    np.testing.assert_allclose(predictions_of(model, inputs)[:, 0], expected[:, 1], atol=1e-4)
    assert np.ptp(expected[:, 1]) > 0.5


@pytest.mark.parametrize(
    ("num_labels", "present"), [(3, (0, 1, 2)), (4, (0, 2, 3)), (2, (0, 1)), (3, (0, 2))]
)
def test_class_head_starts_as_logistic_regression(inputs, num_labels, present):
    model = new_model(inputs, "classes", num_labels)
    shares = shares_of(model, inputs)
    values = noisy_values(shares)
    limits = np.quantile(values, np.linspace(0, 1, len(present) + 1)[1:-1])
    labels = np.array(present)[np.searchsorted(limits, values)]
    initialize_from_overlap(model, source_of(inputs, labels), "classes")
    machine, expected = fitted(shares, labels)
    assert machine.classes_.tolist() == list(present)
    found = predictions_of(model, inputs)
    known = found[:, list(present)]
    np.testing.assert_allclose(known / known.sum(axis=1, keepdims=True), expected, atol=1e-4)
    # A class that no row has is never predicted.
    missing = np.setdiff1d(np.arange(num_labels), present)
    assert (found[:, missing] < known.max(axis=1, keepdims=True)).all()
    np.testing.assert_array_equal(np.array(present)[expected.argmax(axis=1)], found.argmax(axis=1))


def test_graded_head_starts_as_ridge_regression(inputs):
    model = new_model(inputs, "graded")
    shares = shares_of(model, inputs)
    values = noisy_values(shares).astype(np.float32)
    initialize_from_overlap(model, source_of(inputs, values), "graded")
    scaled = standardized(shares)
    expected = Ridge(alpha=1.0).fit(scaled, values).predict(scaled)
    np.testing.assert_allclose(predictions_of(model, inputs)[:, 0], expected, atol=1e-4)
    assert np.ptp(expected) > 0.5


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("options", [{}, {"full_shapes": True}, {"full_shapes": True, "divisor": 2}], ids=str)
def test_overlap_of_each_row_is_computed_once(inputs, options, listed):
    generator = np.random.default_rng(7)
    lists = np.repeat(np.arange(ROWS), generator.integers(1, 9, ROWS))[:ROWS] if listed else None
    rows = generator.permutation(ROWS)
    source = source_of(inputs, np.arange(ROWS), rows, lists, **options)
    model = new_model(inputs)
    shares, values = training_shares(model, source)
    # The target of each row is its number.
    assert sorted(values.tolist()) == list(range(ROWS))
    expected = shares_of(model, inputs, rows)
    np.testing.assert_allclose(shares[np.argsort(values)], expected, atol=1e-5)


def test_padded_batches_do_not_change_the_overlap(inputs):
    lists = np.arange(ROWS) // 3
    source = source_of(inputs, np.arange(ROWS), None, lists, full_shapes=True, divisor=2)
    plans = source.plans(source.buckets([], 8), 2048, 32, rng=None)
    batches = [source.batch(plan)["targets"] for plan in plans]
    fillers = [np.flatnonzero(batch[:, 1] < 0) for batch in batches]
    assert any(
        len(rows) and rows[0] < len(batch) - len(rows) for rows, batch in zip(fillers, batches, strict=True)
    )


@pytest.mark.parametrize(
    ("target", "num_labels", "value"),
    [("binary", 1, 0), ("binary", 1, 1), ("classes", 3, 2), ("graded", 1, 2.5)],
)
def test_single_label_gives_zero_weights(inputs, target, num_labels, value):
    model = new_model(inputs, target, num_labels)
    initialize_from_overlap(model, source_of(inputs, np.full(ROWS, value)), target)
    assert model.head is not None
    kernel, bias = model.head.get_weights()
    np.testing.assert_allclose(kernel, 0, atol=1e-6)
    # The mean is the best constant prediction.
    np.testing.assert_allclose(bias, value if target == "graded" else 0, atol=1e-6)


@pytest.mark.parametrize("target", ["binary", "graded"])
def test_constant_overlap_does_not_divide_by_zero(inputs, target):
    rows = np.zeros(12, int)
    model = new_model(inputs, target)
    labels = np.arange(12) % 3 == 0
    initialize_from_overlap(model, source_of(inputs, labels, rows), target)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    # All that is known is how many of them match.
    np.testing.assert_allclose(predictions_of(model, inputs, rows[:1]), 1 / 3, atol=1e-3)
    # Predictions for other texts, of other lengths, are not random.
    np.testing.assert_allclose(predictions_of(model, inputs), 1 / 3, atol=1e-2)


def test_rarities_are_counted_before_the_overlap(inputs):
    task = MatchTask(target="binary", loss="cross-entropy", best_by="accuracy", overlap=True)
    known = new_model(inputs)
    model = task.build_model(known.encoder_configs, ["score"])
    source = source_of(inputs, np.arange(ROWS) % 2)
    task.initialize(model, source)
    shares = shares_of(known, inputs)
    assert model.share_scale is not None
    np.testing.assert_allclose(to_numpy(model.share_scale.mean), shares.mean(axis=0), rtol=1e-4, atol=1e-5)
    _, expected = fitted(shares, np.arange(ROWS) % 2)
    np.testing.assert_allclose(predictions_of(model, inputs)[:, 0], expected[:, 1], atol=1e-4)

"""The fit of the network on the overlap: what a linear model lacks, each target, and rows that lack a label."""

import types

import numpy as np
import pytest
import scipy.sparse

from kmha.layers.linear_pairs import PARTS, LinearPairs
from tests.layer_checks import to_numpy
from tests.stages import with_stages
from tests.training.tasks.match.conftest import ROWS as ROWS_OF_SET
from tests.training.tasks.match.test_initialization import features_of, new_model, source_of
from tests.training.tasks.match.test_linear_path import SHAPES, fit
from training.tasks.match import linear_path
from training.tasks.match.initialization import fit_linear
from training.tasks.match.linear_path import PairPath, fit_pair_path, weigh_pairs
from training.tasks.match.overlap_network import (
    MOST_LABELS,
    NETWORKS,
    UNITS,
    fit_network,
)
from training.tasks.match.task import MatchTask

ROWS = 1500


def rows_where_signs_differ(target: str, outputs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two features whose product determines the value, random parts, and the values."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(ROWS, 2))
    product = features[:, 0] * features[:, 1]
    values = 100 + 10 * product if target == "graded" else (product > 0).astype(float)
    if outputs == 3:
        values += product > 0.8
    return features, generator.normal(size=(ROWS, PARTS, outputs)), values


@pytest.mark.parametrize(("target", "outputs"), [*SHAPES.items(), ("classes", 2)])
def test_it_learns_what_a_linear_model_cannot(target, outputs):
    features, parts, values = rows_where_signs_differ(target, outputs)
    half = ROWS // 2
    network = fit_network(features[:half], parts[:half], values[:half], np.ones(half), target, seed=0)
    assert network is not None and network.units == NETWORKS * UNITS
    logits, true = network.logits(features[half:], parts[half:]), values[half:]
    assert logits.shape == (half, outputs)
    if target == "graded":
        assert np.corrcoef(logits[:, 0], true)[0, 1] > 0.9 and abs(logits.mean() - true.mean()) < 2
    else:
        found = logits[:, 0] > 0 if outputs == 1 else logits.argmax(axis=1)
        assert np.mean(found == true) > 0.85


def test_the_sum_has_its_factors():
    features, parts, values = rows_where_signs_differ("binary", 1)
    network = fit_network(features, parts, values, np.ones(ROWS), "binary", seed=0)
    assert network is not None
    joined = network.scaled(0.5, 2.0, 0.25).logits(features, parts)
    np.testing.assert_allclose(
        joined, 0.5 * parts.sum(axis=1) + 2 * network.logits(features, parts) + 0.25, atol=1e-4
    )


def test_the_largest_seed():
    features, parts, values = rows_where_signs_differ("binary", 1)
    assert fit_network(features, parts, values, np.ones(ROWS), "binary", seed=2**32 - 1) is not None


def test_rows_without_a_label_or_with_many_have_no_network():
    parts = np.zeros((ROWS, PARTS, MOST_LABELS + 1))
    labels = np.arange(ROWS) % (MOST_LABELS + 1)
    assert fit_network(np.zeros((ROWS, 2)), parts, labels, np.ones(ROWS), "classes", seed=0) is None
    features, parts, values = rows_where_signs_differ("classes", 3)
    assert fit_network(features, parts, np.minimum(values, 1), np.ones(ROWS), "classes", seed=0) is None
    assert fit_network(features, parts[:, :, :1], np.ones(ROWS), np.ones(ROWS), "binary", seed=0) is None


def test_parts_are_of_models_that_were_not_fitted_on_the_group():
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 5)
    # A column for each group, whose rows have a random label of their own: fits on other groups give it no weight.
    values = generator.integers(0, 2, 40)[groups].astype(float)
    dense = np.hstack([generator.normal(size=(200, 1)), np.eye(40)[groups]])
    matrix = scipy.sparse.csr_matrix(dense)
    # A number, and ten tokens of each kind.
    path = PairPath(LinearPairs(1, 10), "binary", (np.zeros(1), np.ones(1)), np.zeros(0), 1.0, "")
    rows = types.SimpleNamespace(targets=np.stack([values, groups], axis=1), weights=np.ones(200))
    parts = path.out_of_fold_parts(matrix, rows, seed=0)
    assert parts.shape == (200, PARTS, 1)
    np.testing.assert_array_equal(parts[:, 1:], 0.0)
    kernel, _ = fit_linear(matrix, values, "binary", 1)
    assert np.abs(kernel[1:]).min() > 0.1


def test_a_network_is_used_if_it_is_better_than_the_path(inputs):
    values = np.arange(ROWS_OF_SET) % 2
    source = source_of(inputs, values)
    path = fit_pair_path(source, source, "binary", 1, inputs.preprocessor.parts[0], symmetric=False, seed=0)
    assert path is not None
    features, _ = path.parts(source)
    generator = np.random.default_rng(0)
    # The linear model has no parts but noise, and the labels follow from the product of two numbers.
    centered = features - features.mean(axis=0)
    first, second = np.argsort(-features.std(axis=0))[:2]
    truth = (centered[:, first] * centered[:, second] > 0).astype(np.float32)
    parts = generator.normal(size=(ROWS_OF_SET, PARTS, 1))
    network = fit_network(features, parts, truth, np.ones(ROWS_OF_SET), "binary", seed=0)
    assert network is not None
    noise, logits = parts.sum(axis=1), network.logits(features, parts)
    assert weigh_pairs(noise, logits, truth, "binary")[1] > 0.5
    # The other way round, there is nothing to gain.
    assert weigh_pairs(logits, noise, truth, "binary")[1] < 0.2


@pytest.mark.parametrize(
    ("target", "symmetric"),
    with_stages(
        [(target, symmetric) for target in SHAPES for symmetric in (False, True)],
        [("binary", False), ("classes", True)],
    ),
)
def test_the_model_has_the_logits_of_the_path_and_its_network(inputs, target, symmetric, monkeypatch):
    factors = (0.7, 1.5, 0.1 if target == "graded" else 0.0)
    monkeypatch.setattr("training.tasks.match.linear_path.weigh_pairs", lambda *arguments: factors)
    path, source = fit(inputs, target, symmetric=symmetric)
    assert path.network is not None
    # The columns of the fit are in the order of the layer's parts.
    matrix, values = path.matrix(linear_path._overlaps(path.layer, source)), source.targets[:, 0]
    again, kernel, bias = path.fitted(matrix, values, source.weights, path.penalty)
    blocks = zip(np.split(matrix.toarray(), path.ends, axis=1), np.split(kernel, path.ends), strict=True)
    expected = np.stack([block @ of_part for block, of_part in blocks], axis=1)
    expected[:, 0] += bias
    np.testing.assert_allclose(again.parts(source)[1], expected, atol=1e-3)
    outputs = SHAPES[target]
    encoders = new_model(inputs, target, outputs, overlap=True, symmetric=symmetric).encoder_configs
    task = MatchTask(target=target, symmetric=symmetric, overlap=True)
    model = task.build_model(encoders, [str(label) for label in range(outputs)], path)
    path.assign(model)
    features = features_of(inputs)
    np.testing.assert_allclose(to_numpy(model.overlap_logits(features)), path.logits(source), atol=1e-4)
    # As at the end of a fit: both paths are scaled, then the linear model is that of all rows.
    monkeypatch.undo()
    scaled, _ = task.join_paths(model, path, to_numpy(model(features)), source)
    refitted = path.refit((source, source), seed=0)
    refitted.assign(model, scaled[0])
    np.testing.assert_allclose(
        to_numpy(model.overlap_logits(features)), scaled[0] * refitted.logits(source), atol=2e-3
    )


def test_a_single_query_has_no_network(inputs):
    source = source_of(inputs, np.arange(30) % 2, range(30))
    source.targets[:, 1] = 7
    path = fit_pair_path(source, source, "binary", 1, inputs.preprocessor.parts[0], symmetric=False, seed=0)
    assert path is not None and path.network is None


def test_a_network_that_does_not_lower_the_loss_is_left_out(inputs, monkeypatch):
    monkeypatch.setattr("training.tasks.match.linear_path.weigh_pairs", lambda *arguments: (1.3, 0.0, 0.0))
    path, source = fit(inputs, "binary")
    assert path.network is None
    linear = path.logits(source)
    monkeypatch.setattr("training.tasks.match.linear_path.weigh_pairs", lambda *arguments: (0.0, 1.5, 0.0))
    path, source = fit(inputs, "binary")
    assert path.network is not None and "with a network of 64 units" in path.description
    # Its factor of the linear model may be 0; the linear model alone is not changed.
    np.testing.assert_array_equal(path.linear_logits(source), linear)
    assert np.abs(path.logits(source) - linear).max() > 0.01
    refitted = path.refit((source, source), seed=0)
    assert refitted.network is path.network
    assert np.abs(refitted.linear_logits(source) - path.linear_logits(source)).max() > 0

"""The linear path of a matcher: its logits in the graph, unusual rows, and the weights of both paths."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.stages import with_stages
from tests.training.tasks.match.test_initialization import ROWS, new_model, source_of
from training.config.config import TextSection
from training.data.inputs import make_inputs
from training.io.examples import Example, Subset, TrainingSet, write_examples
from training.tasks.match import linear_path
from training.tasks.match.linear_path import fit_pair_path, weigh_pairs
from training.tasks.match.task import MatchTask

SHAPES = {"binary": 1, "classes": 3, "graded": 1}


@pytest.fixture(autouse=True)
def one_penalty(monkeypatch):
    monkeypatch.setattr(linear_path, "PENALTIES", (1.0,))


def values_of(source: Any, target: str) -> np.ndarray:
    """Labels that follow from the lengths of both texts, or numbers."""
    values = source.input_lengths[:, 0] - 1.0 * source.input_lengths[:, 1]
    if target == "graded":
        return values
    return np.searchsorted(np.quantile(values, (0.3, 0.6)), values) * (1 if target == "classes" else 0.5) // 1


def fit(inputs, target: str, values: np.ndarray | None = None, symmetric=False, rows=None) -> Any:
    rows = np.arange(ROWS) if rows is None else rows
    if values is None:
        values = values_of(source_of(inputs, np.zeros(ROWS)), target)[rows]
    source = source_of(inputs, values, rows)
    part = inputs.preprocessor.parts[0]
    return fit_pair_path(source, source, target, SHAPES[target], part, symmetric, seed=0), source


@pytest.mark.parametrize(
    ("target", "symmetric"),
    with_stages(
        [(target, symmetric) for target in SHAPES for symmetric in (False, True)],
        [("binary", True), ("classes", False), ("graded", False)],
    ),
)
def test_the_graph_has_the_logits_of_the_fit(inputs, target, symmetric, monkeypatch):
    found = []

    def fit_linear(features, *arguments):
        kernel, bias = original(features, *arguments)
        # The fits on some of the rows are those of the network.
        if features.shape[0] == ROWS:
            found.append(features @ kernel + bias)
        return kernel, bias

    original = linear_path.fit_linear
    monkeypatch.setattr(linear_path, "fit_linear", fit_linear)
    path, source = fit(inputs, target, symmetric=symmetric)
    assert path.layer.rows > 100
    logits = path.linear_logits(source)
    assert min(np.abs(logits - each).max() for each in found) < 1e-3 * np.abs(logits).max()
    np.testing.assert_allclose(
        path.linear_logits(source_of(inputs, source.targets[:5, 0], range(5))), logits[:5], atol=1e-4
    )


@pytest.mark.second
def test_a_refit_has_all_rows_and_the_same_features(inputs):
    path, source = fit(inputs, "binary", rows=np.arange(0, ROWS, 2))
    _, other = fit(inputs, "binary", rows=np.arange(1, ROWS, 2))
    refitted = path.refit((source, other), seed=0)
    hits = [(each.linear_logits(other)[:, 0] > 0) == other.targets[:, 0] for each in (path, refitted)]
    assert hits[1].mean() > hits[0].mean()
    model = new_model(inputs, linear_rows=path.layer.rows, linear_slots=path.layer.slots)
    layer = model.linear
    assert layer is not None
    dataclasses.replace(refitted, network=None).assign(model, 0.5)
    np.testing.assert_array_equal(layer.packed, path.layer.packed)
    np.testing.assert_allclose(layer.bias, 0.5 * np.asarray(refitted.layer.bias), rtol=1e-6)


NAMES = 120


@pytest.fixture(scope="module")
def misspelt(tmp_path_factory) -> Any:
    """A name and, in turns, itself with a typing error or another name; the source and the preprocessor."""
    generator = np.random.default_rng(0)
    names = ["".join(generator.choice(list("abdeilmnorst"), 9)) for _ in range(NAMES)]
    pairs = []
    for number, name in enumerate(names):
        place = number % 9
        other = name[:place] + "u" + name[place + 1 :] if number % 2 else names[number - 1]
        pairs.append((name, other))
    folder = tmp_path_factory.mktemp("misspelt")
    examples = write_examples((Example(pair, ("1",), "a:1") for pair in pairs), folder / "rows", num_texts=2)
    given = make_inputs(
        TextSection(max_length=16, vocabulary_size=150, min_frequency=1),
        {"train": Subset(examples, np.arange(NAMES))},
        folder,
        MatchTask(granularities=("wordpiece",)),
    )
    values = np.arange(NAMES) % 2
    rows, targets = np.stack([np.arange(NAMES)] * 2, axis=1), np.stack([values, np.arange(NAMES)], axis=1)
    made = given.source("train", TrainingSet(rows, targets.astype(np.float32), np.ones(NAMES, np.float32)))
    return made, given.preprocessor.parts[0]


def test_words_with_typing_errors_share_trigrams(misspelt):
    source, part = misspelt
    half = NAMES // 2
    train, test = (
        dataclasses.replace(
            source, rows=source.rows[at], targets=source.targets[at], weights=source.weights[at]
        )
        for at in (np.s_[:half], np.s_[half:])
    )
    path = fit_pair_path(train, train, "binary", 1, part, symmetric=False, seed=0)
    assert path is not None and path.layer.trigrams
    found = (path.logits(test)[:, 0] > 0) == test.targets[:, 0]
    assert found.mean() == 1.0
    # Rare trigrams weigh more. Of the texts are misspelt names, and the last name of all pairs.
    weights = np.asarray(path.layer.trigram_weights)
    assert 1 <= weights.min() < weights.max() == pytest.approx((1 + np.log(half * 1.5 + 2)) ** 2)
    refitted = path.refit((train, test), seed=0)
    for before, after in zip(path.layer.spelling.weights, refitted.layer.spelling.weights, strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_vocabulary_of_characters_has_no_trigrams(inputs):
    path, _ = fit(inputs, "binary")
    assert path.layer.trigrams == 0 and path.layer.spelling is None


def test_unusual_rows(inputs):
    assert fit(inputs, "binary", np.ones(ROWS))[0] is None
    # A class without rows, two rows, and two rows with an empty side.
    for target, values, rows in (
        ("classes", [0.0, 2.0] * 3, range(6)),
        ("binary", [0.0, 1.0], range(2)),
        ("graded", [0.5, 1.0], range(ROWS - 2, ROWS)),
    ):
        path, source = fit(inputs, target, np.array(values), rows=np.array(rows))
        logits = path.logits(source)
        assert np.isfinite(logits).all()
        if target == "classes":
            assert (logits.argmax(axis=1) != 1).all()


def test_both_paths_are_weighed_for_each_target():
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(2000, 3))
    linear, encoder = (truth + generator.normal(size=truth.shape) * noise for noise in (0.5, 1.0))
    labels = (truth + generator.gumbel(size=truth.shape)).argmax(axis=1)
    factors = weigh_pairs(linear, encoder, labels, "classes")
    assert factors[0] > factors[1] > 0 and factors[2] == 0
    one = linear[:, :1], encoder[:, :1]
    linear_factor, encoder_factor, bias = weigh_pairs(*one, 2 * truth[:, 0] + 3, "graded")
    assert linear_factor > encoder_factor > 0 and abs(bias - 3) < 0.1
    few = weigh_pairs(one[0][:2], one[1][:2], np.ones(2), "graded")
    assert 0 < few[0] < 1 and few[1] == 0
    noise = weigh_pairs(one[0], generator.normal(size=(2000, 1)), 2 * truth[:, 0] + 3, "graded")
    assert noise[0] > 1 and noise[1] < 0.05
    probability = 1 / (1 + np.exp(-2 * truth[:, 0]))
    factors = weigh_pairs(*one, generator.random(2000) < probability, "binary")
    assert factors[0] > factors[1] > 0 and factors[2] == 0
    # An encoder that has learned nothing has no weight.
    noise = generator.normal(size=(2000, 1))
    factors = weigh_pairs(one[0], noise, generator.random(2000) < probability, "binary")
    assert factors[0] > 1 and factors[1] < 0.2


def test_a_pretrained_encoder_is_the_model_to_improve_on(inputs):
    path = dataclasses.replace(fit(inputs, "binary")[0], is_base=False)
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(2000, 1))
    targets = generator.random((2000, 1)) < 1 / (1 + np.exp(-2 * truth))
    encoder, noise = truth + 0.5 * generator.normal(size=truth.shape), generator.normal(size=truth.shape)
    of_linear, of_encoder, bias = path.weigh(noise, encoder, targets)
    assert of_linear < 0.1 < 1 < of_encoder and bias == 0
    assert dataclasses.replace(path, is_base=True).weigh(noise, encoder, targets)[1] > 1
    few = path.weigh(noise[:9], encoder[:9], targets[:9])
    assert few[0] == 0 < few[1]


def test_scores_of_a_ranking_loss_are_shifted_before_both_paths_are_weighed(inputs):
    path = dataclasses.replace(
        fit(inputs, "binary", np.array([0.0, 1.0] * (ROWS // 2)))[0], compares_rows=True
    )
    generator = np.random.default_rng(0)
    truth = generator.normal(size=(2000, 1))
    linear, encoder = (truth + generator.normal(size=truth.shape) * noise for noise in (0.5, 1.0))
    targets = generator.random((2000, 1)) < 1 / (1 + np.exp(-2 * truth))
    first, second, bias = path.weigh(linear, encoder, targets)
    shifted = path.weigh(linear, encoder + 7, targets)
    np.testing.assert_allclose(shifted, (first, second, shifted[2]), rtol=1e-3)
    assert second > 0.1
    np.testing.assert_allclose(
        first * linear + second * encoder + bias,
        shifted[0] * linear + shifted[1] * (encoder + 7) + shifted[2],
        atol=1e-2,
    )


@pytest.mark.parametrize(("best_by", "is_ranking"), [("map", True), ("accuracy", False)])
def test_of_rankings_the_encoder_counts_if_it_orders_candidates(inputs, best_by, is_ranking):
    source = source_of(inputs, np.arange(ROWS) % 2)
    task = MatchTask(target="binary", best_by=best_by, loss="cross-entropy")
    path = task.fit_linear_path(source, source, ["score"], inputs.preprocessor, 0, alone=False)
    assert path.is_ranking == is_ranking
    generator = np.random.default_rng(0)
    queries = np.repeat(np.arange(200), 5)
    of_row, of_query = generator.normal(size=(1000, 1)), 2 * generator.normal(size=(200, 1))[queries]
    values = generator.random((1000, 1)) < 1 / (1 + np.exp(-2 * of_row - of_query))
    targets = np.concatenate([values, queries[:, None]], axis=1)
    linear = of_row + generator.normal(size=of_row.shape)
    assert (path.weigh(linear, of_query, targets)[1] == 0) == is_ranking
    assert path.weigh(linear, of_row, targets)[1] > 0.5

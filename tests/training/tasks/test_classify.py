import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.config import EncoderConfig
from kmha.errors import InputError
from training.io.examples import Columns, Example, Subset, write_examples
from training.io.tables import Row
from training.metrics.thresholds import best_thresholds
from training.tasks.classify import ClassifyTask

COLUMNS = Columns("text", "label", "|")
ONE, SEVERAL = ClassifyTask(multi_label=False), ClassifyTask(multi_label=True)


class Rows(NamedTuple):
    """Targets and weights of training rows, as `initialize` reads them."""

    targets: np.ndarray
    weights: np.ndarray


def part_of(folder: Path, *labels: tuple[str, ...]) -> Subset:
    examples = [Example((f"text {number}",), names, f"a.csv:{number}") for number, names in enumerate(labels)]
    return Subset(write_examples(examples, folder), np.arange(len(labels)))


@pytest.mark.parametrize(
    ("task", "available", "given_name", "name", "several"),
    [
        (ClassifyTask(), ["text", "label"], "", "label", False),
        (ClassifyTask(), ["text", "labels"], "", "labels", True),
        (ClassifyTask(), ["text", "label", "labels"], "", "label", False),
        (SEVERAL, ["text", "label", "labels"], "", "labels", True),
        (SEVERAL, ["text", "label"], "", "label", True),
        (ONE, ["text", "labels"], "", "labels", False),
        (ClassifyTask(), ["text", "kind"], "kind", "kind", False),
        (ClassifyTask(), ["text", "labels"], "labels", "labels", True),
        (ClassifyTask(), None, "", "label", False),
        (SEVERAL, None, "", "labels", True),
    ],
)
def test_label_column_and_multi_label_are_resolved(task, available, given_name, name, several):
    found, columns = task.resolve_columns(available, Columns("text", given_name, "|"))
    assert (columns.label, found.traits.is_multi_label) == (name, several)
    assert found.metric == ("macro_f1" if several else "accuracy")


@pytest.mark.parametrize(
    ("available", "hint"),
    [
        (["text", "Label2"], "got text, Label2; did you mean --data.label-column Label2?"),
        (["text"], "got text; texts without labels? --task masked-lm"),
        (["text", "y"], "got text, y; set --data.label-column"),
    ],
)
def test_missing_label_column_raises(available, hint):
    with pytest.raises(InputError) as caught:
        ClassifyTask().resolve_columns(available, Columns("text", "", "|"))
    assert str(caught.value) == f"--data.label-column: expected a column label or labels, {hint}"


@pytest.mark.parametrize(
    ("task", "given_labels", "expected"),
    [
        (ONE, " a|b ", ("a|b",)),
        (ONE, ["a"], ("a",)),
        (SEVERAL, "a| b |", ("a", "b")),
        (SEVERAL, "", ()),
        (SEVERAL, " | ", ()),
        (SEVERAL, ["a", "b|c"], ("a", "b", "c")),
        (SEVERAL, [], ()),
    ],
)
def test_parse_row_returns_the_example(task, given_labels, expected):
    row = Row({"text": " x ", "label": given_labels}, "a.csv:2")
    assert task.parse_row(row, COLUMNS) == (Example((" x ",), expected, "a.csv:2"),)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(
            (
                {"text": "x", "label": name},
                f"a.csv:2: label must be a label, got {name}, a missing value of pandas; remove the row or rename the"
                " label",
            )
            for name in ("nan", "NaN", "<NA>")
        ),
        ({"text": "x", "label": " "}, "a.csv:2: label must be one label, got none"),
        ({"text": "x", "label": []}, "a.csv:2: label must be one label, got none"),
        ({"text": "x", "label": ["a", "b"]}, "a.csv:2: label must be one label, got 2 labels"),
        ({"text": ["x"], "label": "a"}, "a.csv:2: text must be one text, got a list"),
    ],
)
def test_invalid_row_raises(values, message):
    with pytest.raises(InputError) as caught:
        ONE.parse_row(Row(values, "a.csv:2"), COLUMNS)
    assert str(caught.value) == message


def test_targets_are_indices_of_the_model_labels(tmp_path):
    part = part_of(tmp_path, ("b",), ("a",), ("new",))
    assert ONE.targets(part, ["a", "b"]).tolist() == [1, 0, 0]
    several = part_of(tmp_path, ("b", "a"), (), ("new", "b"))
    assert SEVERAL.targets(several, ["a", "b"]).tolist() == [[1, 1], [0, 0], [0, 1]]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=50))
def test_balanced_weights_give_labels_equal_totals(targets):
    targets = np.array(targets)
    weights = ClassifyTask(multi_label=False, class_weights="balanced").row_weights(targets)
    sums = [weights[targets == label].sum() for label in np.unique(targets)]
    np.testing.assert_allclose(sums, sums[0], rtol=1e-5)
    np.testing.assert_allclose(weights.mean(), 1, rtol=1e-5)
    assert (ONE.row_weights(targets) == 1).all()


def test_balanced_multi_label_weights_prefer_rare_labels():
    targets = np.array([[1, 0], [1, 0], [1, 0], [1, 1], [0, 0]])
    weights = ClassifyTask(multi_label=True, class_weights="balanced").row_weights(targets)
    assert weights[3] == weights.max() and weights[4] == weights.min() > 0
    np.testing.assert_allclose(weights.mean(), 1, rtol=1e-6)


def test_thresholds_exist_for_several_labels_only(tmp_path):
    part = part_of(tmp_path, ("a",), ("b",), ("a", "b"), ())
    probabilities = np.array([[0.3, 0.1], [0.1, 0.8], [0.4, 0.7], [0.2, 0.6]], np.float32)
    found = SEVERAL.tune_thresholds(part, ["a", "b"], probabilities)["thresholds"]
    targets = SEVERAL.targets(part, ["a", "b"])
    np.testing.assert_allclose(found, best_thresholds(targets, probabilities))
    assert ONE.tune_thresholds(part, ["a", "b"], probabilities) == {}


def test_unknown_label_counts_as_an_error(tmp_path):
    part = part_of(tmp_path, ("a",), ("b",), ("new",), ("new",))
    scores = ONE.scores(
        part, ["a", "b"], np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.9, 0.1]]), {}, True
    )
    assert (scores["rows"], scores["accuracy"], scores["unknown_labels"]) == (4, 0.5, {"new": 2})
    assert scores["intervals"]["accuracy"][0] <= 0.5 <= scores["intervals"]["accuracy"][1]


def test_unknown_label_counts_as_an_error_with_several_labels(tmp_path):
    part = part_of(tmp_path / "more", ("a",), ("b", "new"), ())
    probabilities = np.array([[0.9, 0.1], [0.1, 0.9], [0.1, 0.1]])
    decision = {"thresholds": [0.5, 0.5]}
    scores = SEVERAL.scores(part, ["a", "b"], probabilities, decision, True)
    assert scores["unknown_labels"] == {"new": 1}
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["per_class"]["new"]["recall"] == 0
    known = part_of(tmp_path / "known", ("a",), ("b",), ())
    scores = SEVERAL.scores(known, ["a", "b"], probabilities, decision)
    assert scores["accuracy"] == 1 and "unknown_labels" not in scores and "intervals" not in scores


@pytest.mark.parametrize("task", [ONE, SEVERAL])
def test_baseline_is_scored_on_the_same_rows_and_labels(tmp_path, task):
    examples = [Example((word,), (label,), "") for word, label in [("red", "warm"), ("blue", "cold")] * 8]
    train = Subset(write_examples(examples, tmp_path / "train"), np.arange(16))
    unknown = [*examples[:6], Example(("green",), ("new",), "")]
    evaluated = Subset(write_examples(unknown, tmp_path / "judged"), np.arange(7))
    baseline = task.baseline(train, train, evaluated, ["cold", "warm"], seed=0)
    scores = baseline.scores
    assert "16 training rows" in baseline.description
    assert scores["rows"] == 7 and scores["per_class"]["warm"]["recall"] == 1
    assert scores["accuracy"] == pytest.approx(6 / 7) and "new" in scores["per_class"]
    assert "macro_f1" in scores["intervals"]


def test_baseline_is_not_trained_on_evaluated_or_unknown_rows(tmp_path):
    rows = [("red", "warm"), ("blue", "cold")] * 8 + [("sky", "cold"), ("fog", "gray")]
    examples = write_examples([Example((word,), (label,), "") for word, label in rows], tmp_path)
    train, validation, test = (
        Subset(examples, np.array(each)) for each in (range(12), range(12, 18), [0, 1])
    )
    labels = ["cold", "warm"]
    assert "12 training rows and 5 val" in ONE.baseline(train, validation, test, labels, 0).description
    assert "12 training rows" in (found := ONE.baseline(train, validation, validation, labels, 0)).description
    assert "val" not in found.description and found.scores["rows"] == 6


def test_training_losses_have_the_scale_of_validation_losses(tmp_path):
    part = part_of(tmp_path, ("a",), ("a", "b"), ("c",), ())
    logits = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    task, labels = dataclasses.replace(SEVERAL, label_smoothing=0.0), ["a", "b", "c"]
    scores = task.scores(part, labels, 1 / (1 + np.exp(-logits)), {"thresholds": [0.5] * 3})
    losses = np.asarray(task.row_losses(task.targets(part, labels), logits))
    assert losses.mean() / task.loss_terms(labels) == pytest.approx(scores["loss"], rel=1e-5)
    assert ONE.loss_terms(labels) == 1


def test_default_label_smoothing_is_for_one_label():
    logits = np.array([[2.0, -1.0, 0.5]], np.float32)
    one, several = np.array([0], np.int32), np.array([[1, 0, 1]], np.int32)
    given = dataclasses.replace(ONE, label_smoothing=0.1), dataclasses.replace(SEVERAL, label_smoothing=0.0)
    assert ONE.row_losses(one, logits) == given[0].row_losses(one, logits)
    assert SEVERAL.row_losses(several, logits) == given[1].row_losses(several, logits)
    assert ONE.row_losses(one, logits) != dataclasses.replace(ONE, label_smoothing=0.0).row_losses(
        one, logits
    )


@pytest.mark.parametrize("class_weights", ["none", "balanced"])
def test_head_bias_starts_at_the_label_frequencies(class_weights):
    encoder = EncoderConfig(20, hidden_dim=8, num_heads=2, num_layers=1, intermediate_dim=8)
    one = dataclasses.replace(ONE, class_weights=class_weights)
    targets = np.repeat([0, 1, 2], [700, 290, 10]).astype(np.int32)
    model = one.build_model({"": encoder}, ["a", "b", "c"])
    one.initialize(model, Rows(targets, one.row_weights(targets)))
    share = np.array([0.7, 0.29, 0.01]) if class_weights == "none" else np.full(3, 1 / 3)
    bias = model.head.bias.numpy()
    np.testing.assert_allclose(np.exp(bias) / np.exp(bias).sum(), share, atol=1e-3)

    several = dataclasses.replace(SEVERAL, class_weights=class_weights)
    indicators = (np.arange(1000)[:, None] < [500, 20, 0]).astype(np.int32)
    model = several.build_model({"": encoder}, ["a", "b", "c"])
    several.initialize(model, Rows(indicators, several.row_weights(indicators)))
    weights = several.row_weights(indicators)
    shares = 1 / (1 + np.exp(-model.head.bias.numpy()))
    np.testing.assert_allclose(shares, weights @ indicators / weights.sum(), atol=1e-3)
    assert np.isfinite(model.head.bias.numpy()).all() and shares[2] > 0

import dataclasses
import functools
import types
from typing import Any

import numpy as np
import pytest

from kmha.errors import InputError
from tests.bundles import one_label_bundle, pair_bundle
from tests.training.tiny_runs import CONFIG, LABELS, make_source, tiny_model
from training.evaluation import evaluator as evaluator
from training.evaluation.evaluator import Evaluator, resolve_task
from training.io.examples import ColumnOverrides, Columns
from training.tasks.protocol import random_probabilities, row_probabilities

NAMES = [f"label {number}" for number in range(LABELS)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_source(tmp_path_factory.mktemp("source"), rows=30)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def reader(model):
    return functools.partial(row_probabilities, model)


def evaluated(model, source, lengths) -> np.ndarray:
    task: Any = types.SimpleNamespace(postprocessor=reader)
    return Evaluator(model, task, NAMES, lengths).predict(source)


def test_probabilities_do_not_depend_on_the_batches(model, source, monkeypatch):
    one = evaluated(model, source, [CONFIG.max_length])
    np.testing.assert_allclose(one.sum(axis=1), 1.0, rtol=1e-5)
    assert one.std(axis=0).min() > 1e-3
    monkeypatch.setattr(evaluator, "BATCH_TOKENS", 40)
    monkeypatch.setattr(evaluator, "MAX_ROWS", 3)
    np.testing.assert_allclose(evaluated(model, source, [4, 8, CONFIG.max_length]), one, atol=1e-5)


def test_rows_longer_than_the_training_rows_are_evaluated(model, source):
    one = evaluated(model, source, [CONFIG.max_length])
    np.testing.assert_allclose(evaluated(model, source, [4]), one, atol=1e-5)


def test_probabilities_are_those_of_the_model_row_by_row(model, source):
    from training.data.length_buckets import BatchPlan

    predictions = evaluated(model, source, [CONFIG.max_length])
    for row in (0, 17):
        batch = source.batch(BatchPlan(np.array([row]), int(source.lengths[row]), 1))
        alone = np.asarray(model.probabilities(model(batch["features"])))
        np.testing.assert_allclose(predictions[row], alone[0], atol=1e-5)


def test_validation_gives_loss_and_metric_of_the_task(model, source):
    seen = {}

    def scores(part, labels, probabilities, decision):
        seen.update(part=part, labels=labels, rows=len(probabilities), decision=decision)
        return {"loss": np.float32(0.5), "accuracy": 0.25, "more": [1]}

    part: Any = "part"
    task: Any = types.SimpleNamespace(
        metric="accuracy",
        scores=scores,
        tune_thresholds=lambda *_: {"thresholds": [0.5]},
        postprocessor=reader,
    )
    result = Evaluator(model, task, NAMES, [CONFIG.max_length]).validate(source, part)
    assert result == {"loss": 0.5, "accuracy": 0.25}
    assert seen == {"part": "part", "labels": NAMES, "rows": 30, "decision": {"thresholds": [0.5]}}


def test_a_metric_that_is_undefined_is_refused_before_training(model):
    examples = types.SimpleNamespace(origin="a.csv")
    part: Any = types.SimpleNamespace(rows=np.arange(2), examples=examples)
    scores: dict[str, Any] = {"map": 0.5}
    task: Any = types.SimpleNamespace(
        metric="map",
        scores=lambda *_: scores,
        tune_thresholds=lambda *_: {},
        postprocessor=reader,
        dummy_predictions=lambda model, part: random_probabilities(model, len(part.rows)),
    )
    evaluator = Evaluator(model, task, NAMES, [CONFIG.max_length])
    evaluator.check_metric_is_defined(part)
    scores["map"] = None
    with pytest.raises(InputError, match="a.csv: expected validation rows with a defined map, got 2 without"):
        evaluator.check_metric_is_defined(part)


PAIRS = {"text": "text_a", "text_b": "text_b", "label": "label"}
NAMED = {"text": "s1", "text_b": "s2", "label": "y", "query": "qid"}
TRIPLETS = {"text": "anchor", "text_b": "positive", "wrong": "negative"}
NOTHING = ColumnOverrides()


@pytest.mark.parametrize(
    ("trained", "given", "available", "found"),
    [
        (PAIRS, NOTHING, ["text_a", "text_b", "label"], PAIRS),
        (PAIRS, NOTHING, ["text_a", "text_b", "label", "query_id"], PAIRS | {"query": "query_id"}),
        (PAIRS, NOTHING, ["anchor", "positive", "negative"], TRIPLETS),
        (NAMED, NOTHING, ["s1", "s2", "y", "qid", "query_id"], NAMED),
        (NAMED, NOTHING, ["s1", "s2", "y"], NAMED | {"query": ""}),
        (NAMED, NOTHING, ["text_a", "text_b", "label", "query_id"], PAIRS | {"query": "query_id"}),
        (NAMED, ColumnOverrides(label="x"), ["s1", "s2", "x"], NAMED | {"label": "x", "query": ""}),
        (NAMED, ColumnOverrides(query="q"), ["s1", "s2", "y", "q", "qid"], NAMED | {"query": "q"}),
        (TRIPLETS, NOTHING, ["anchor", "positive", "negative"], TRIPLETS),
        (TRIPLETS, NOTHING, ["text_a", "text_b", "label"], PAIRS),
        (TRIPLETS, ColumnOverrides(label="good"), ["text_a", "text_b", "good"], PAIRS | {"label": "good"}),
        # The reader of the file reports missing columns.
        (NAMED, NOTHING, ["s1", "y"], NAMED | {"query": ""}),
        (None, NOTHING, [], PAIRS),
        ({"text": 7, "wrong": None, "other": "x"}, NOTHING, [], PAIRS),
        (["text"], NOTHING, [], PAIRS),
    ],
)
def test_columns_of_pairs_are_resolved(trained, given, available, found):
    bundle = dataclasses.replace(pair_bundle(), details={} if trained is None else {"columns": trained})
    task, columns = resolve_task(bundle, given, available)
    assert columns == Columns(**found)
    assert task.traits.num_texts == 2


def test_columns_of_single_texts_are_resolved():
    bundle = dataclasses.replace(one_label_bundle(), details={"columns": {"text": "body", "label": "kind"}})
    assert resolve_task(bundle, NOTHING, ["body", "kind"])[1] == Columns("body", "kind")
    assert resolve_task(bundle, ColumnOverrides(label="y"), ["body"])[1] == Columns("body", "y")
    assert resolve_task(one_label_bundle(), NOTHING, [])[1] == Columns("text", "label")

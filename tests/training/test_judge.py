import types
from typing import Any

import numpy as np
import pytest

from tests.training.tiny_runs import CONFIG, LABELS, make_source, tiny_model
from training import judge
from training.judge import Judge

NAMES = [f"label {number}" for number in range(LABELS)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_source(tmp_path_factory.mktemp("source"), rows=30)


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def judged(model, source, lengths) -> np.ndarray:
    unused: Any = None
    return Judge(model, unused, NAMES, lengths).probabilities(source)


def test_probabilities_do_not_depend_on_the_batches(model, source, monkeypatch):
    one = judged(model, source, [CONFIG.max_length])
    np.testing.assert_allclose(one.sum(axis=1), 1.0, rtol=1e-5)
    assert one.std(axis=0).min() > 1e-3
    monkeypatch.setattr(judge, "BATCH_TOKENS", 40)
    monkeypatch.setattr(judge, "MOST_ROWS", 3)
    np.testing.assert_allclose(judged(model, source, [4, 8, CONFIG.max_length]), one, atol=1e-5)


def test_rows_longer_than_any_training_row_are_judged_too(model, source):
    one = judged(model, source, [CONFIG.max_length])
    np.testing.assert_allclose(judged(model, source, [4]), one, atol=1e-5)


def test_probabilities_are_those_of_the_model_row_by_row(model, source):
    from training.buckets import BatchPlan

    answers = judged(model, source, [CONFIG.max_length])
    for row in (0, 17):
        batch = source.batch(BatchPlan(np.array([row]), int(source.lengths[row]), 1))
        alone = np.asarray(model.probabilities(model(batch["features"])))
        np.testing.assert_allclose(answers[row], alone[0], atol=1e-5)


def test_validation_gives_loss_and_metric_of_the_task(model, source):
    seen = {}

    def scores(part, labels, probabilities, decision):
        seen.update(part=part, labels=labels, rows=len(probabilities), decision=decision)
        return {"loss": np.float32(0.5), "accuracy": 0.25, "more": [1]}

    part: Any = "part"
    task: Any = types.SimpleNamespace(
        metric="accuracy", scores=scores, decision=lambda *_: {"thresholds": [0.5]}
    )
    result = Judge(model, task, NAMES, [CONFIG.max_length]).validate(source, part)
    assert result == {"loss": 0.5, "accuracy": 0.25}
    assert seen == {"part": "part", "labels": NAMES, "rows": 30, "decision": {"thresholds": [0.5]}}

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.benchmark.measure import (
    LEAST_ROUNDS,
    MOST_CALLS,
    Job,
    MeasuredModel,
    Round,
    common_length,
    jobs,
    read_into_cache,
    run_rounds,
    spread,
    start_worker,
    warm_up,
)
from kmha.errors import InputError
from training.io.json_subprocess import Crashed

FACTS = {"takes_texts": True, "batched": True}


@pytest.mark.parametrize(
    ("lengths", "length"),
    [
        ([None, None], 40),
        ([None, [16]], 16),
        ([[16, 32], None, [32, 64]], 32),
        ([[16, 32, 64], [16, 32]], 32),
        ([[16, 48, 256], [32, 48, 256]], 48),
        ([[16], [32]], None),
    ],
)
def test_common_length_holds_the_default_if_all_models_take_such_a_length(lengths, length):
    assert common_length(lengths, default=40) == length


@given(st.lists(st.text(), max_size=30), st.integers(0, 40))
def test_spread_takes_texts_evenly(texts, most):
    numbered = [f"{number} {text}" for number, text in enumerate(texts)]
    taken = spread(numbered, most)
    assert len(taken) == len(set(taken)) == min(most or len(texts), len(texts))
    assert taken == sorted(taken, key=numbered.index)
    if len(taken) > 1:
        assert (taken[0], taken[-1]) == (numbered[0], numbered[-1])


def test_read_into_cache_accepts_files_and_folders(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "sub").mkdir()
    read_into_cache(tmp_path)
    read_into_cache(tmp_path / "a")


def test_a_missing_runtime_is_named(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'onnxruntime' else find(name, *rest)\n"
    )
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        with start_worker("onnx", "a.onnx", 1) as worker, pytest.raises(InputError) as caught:
            worker.listen()
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
    assert str(caught.value) == "a.onnx: expected the package onnxruntime, got none; pip install 'kmha[onnx]'"


class Fake:
    """A worker that replies at once, crashes after some replies, and logs its requests."""

    def __init__(self, name, log, seconds=0.001, replies=None):
        self.name, self.log, self.seconds, self.left = name, log, seconds, replies

    def request(self, do, column, batch, calls=1, first=None, **_):
        if self.left == 0:
            raise Crashed(f"{self.name} crashed")
        self.left = None if self.left is None else self.left - 1
        if do == "warm_up":
            return {"first_seconds": self.seconds, "least_seconds": self.seconds}
        self.log.append((self.name, column, batch, first, calls))
        return {"seconds": [self.seconds] * calls, "cpu_seconds": self.seconds}


class Clock:
    """A clock that advances by a second with each call."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


def models(log, names="abc", **facts):
    return [MeasuredModel(name, name, Fake(name, log), {**FACTS, **facts}) for name in names]


def test_all_models_run_the_same_rows_in_every_round():
    log = []
    measured = models(log)
    all_jobs = jobs([1, 4])
    warm_up(measured, all_jobs, 0, True)
    number = run_rounds(measured, all_jobs, 1, rows=7, has_ids=True, clock=Clock())
    assert number > LEAST_ROUNDS
    for start in range(0, len(log), 3):
        turn = log[start : start + 3]
        assert {name for name, *_ in turn} == set("abc")
        assert len({tuple(request) for _, *request in turn}) == 1
    firsts = {entry[0] for entry in log[:: 3 * len(all_jobs)]}
    assert firsts == set("abc"), "every model is first in some round"


def test_rounds_continue_through_the_rows():
    log = []
    (model,) = models(log, "a")
    run_rounds([model], [Job("ids", 4)], 0, rows=10, has_ids=True)
    starts, calls = [entry[3] for entry in log], log[0][4]
    assert starts == [number * calls * 4 % 10 for number in range(LEAST_ROUNDS)]


@pytest.mark.parametrize(("seconds", "calls"), [(0.0001, MOST_CALLS), (0.05, 2), (3, 1)])
def test_slow_models_get_fewer_calls_a_round(seconds, calls):
    log = []
    pair = [
        MeasuredModel(name, "", Fake(name, log, s), FACTS) for name, s in (("fast", 1e-5), ("slow", seconds))
    ]
    warm_up(pair, jobs([1]), 0, True)
    run_rounds(pair, jobs([1]), 1, rows=3, has_ids=True, clock=Clock())
    assert {entry[4] for entry in log} == {calls}


@pytest.mark.parametrize(
    ("facts", "has_ids", "expected"),
    [
        ({}, True, {("texts", 1), ("ids", 1), ("texts", 8), ("ids", 8)}),
        ({}, False, {("texts", 1), ("texts", 8)}),
        ({"takes_texts": False}, True, {("ids", 1), ("ids", 8)}),
        ({"batched": False}, True, {("texts", 1), ("ids", 1)}),
    ],
)
def test_models_run_only_jobs_that_they_support(facts, has_ids, expected):
    log = []
    run_rounds(models(log, "a", **facts), jobs([1, 8]), 0, rows=3, has_ids=has_ids)
    assert {(column, batch) for _, column, batch, *_ in log} == expected


@pytest.mark.parametrize("replies", [0, 1, 3, 5])
def test_other_models_continue_when_one_crashes(replies):
    log = []
    crashing = MeasuredModel("crashing", "", Fake("crashing", log, replies=replies), FACTS)
    other = MeasuredModel("other", "", Fake("other", log), FACTS)
    warm_up([crashing, other], jobs([1]), 0, True)
    run_rounds([crashing, other], jobs([1]), 0, rows=3, has_ids=True)
    assert crashing.failed == "crashing crashed"
    assert other.failed is None
    assert all(set(rounds) == set(range(LEAST_ROUNDS)) for rounds in other.rounds.values())
    assert crashing.request(do="memory", column="", batch=0) is None


def test_a_model_that_failed_to_load_supports_no_job():
    failed_model = MeasuredModel("failed", "", Fake("failed_model", []), {}, failed="killed")
    assert not failed_model.supports(Job("ids", 1), True)


def test_rounds_are_stored_by_number():
    log = []
    (model,) = models(log, "a")
    run_rounds([model], [Job("ids", 1)], 0, rows=3, has_ids=True)
    assert model.rounds[Job("ids", 1)][1] == Round([0.001], 0.001)

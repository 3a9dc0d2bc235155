import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.benchmark.figures import (
    busyness,
    column,
    cpu_seconds,
    fastest,
    percentiles_ms,
    ratio,
    report,
    tables,
    texts_per_second,
)
from export.benchmark.measure import Job, MeasuredModel, Round

SECONDS = st.floats(1e-6, 10)
ROUNDS = st.dictionaries(
    st.integers(0, 9),
    st.builds(Round, st.lists(SECONDS, min_size=1, max_size=5), SECONDS),
    min_size=1,
)
FACTS = {"takes_texts": True, "batched": True, "import_bytes": 300_000_000, "import_seconds": 2.0}
SINGLE_WORKER = Job("texts", 1)


def model(name, rounds, **more):
    warm = {job: {"first_seconds": 0.5, "least_seconds": 0.1} for job in rounds}
    return MeasuredModel(name, "onnx", None, {**FACTS, "load_seconds": 0.25}, 2_500_000, rounds, warm, **more)  # pyright: ignore


@given(ROUNDS)
def test_percentiles_equal_numpys_over_all_calls(rounds):
    calls = np.concatenate([played.seconds for played in rounds.values()])
    found = percentiles_ms(rounds)
    for percent in (50, 95, 99):
        assert found[f"p{percent}"] == pytest.approx(1e3 * np.percentile(calls, percent))
    assert found["p50"] <= found["p95"] <= found["p99"]


def test_throughput_is_that_of_the_median_round():
    rounds = {0: Round([0.5, 0.5], 1), 1: Round([1.0, 1.0], 1), 2: Round([100.0, 100.0], 1)}
    assert texts_per_second(rounds, 8) == pytest.approx(8.0)


@given(ROUNDS, st.floats(0.1, 10))
def test_a_model_that_always_takes_k_times_as_long_has_ratio_k(rounds, k):
    slower = {
        n: Round([k * s for s in played.seconds], k * played.cpu_seconds) for n, played in rounds.items()
    }
    assert ratio(slower, rounds) == pytest.approx(k)
    assert ratio(slower, rounds, cpu_seconds) == pytest.approx(k)


def test_other_load_does_not_change_a_ratio():
    load = [1, 1, 7, 1, 30]
    fast = {n: Round([0.001 * factor], 0) for n, factor in enumerate(load)}
    slow = {n: Round([0.002 * factor], 0) for n, factor in enumerate(load)}
    assert ratio(slow, fast) == pytest.approx(2)


@pytest.mark.parametrize("reference", [{}, {5: Round([1.0], 1.0)}])
def test_no_common_round_gives_no_ratio(reference):
    assert ratio({0: Round([1.0], 1.0)}, reference) is None


def test_zero_processor_time_gives_no_ratio():
    still = {0: Round([1e-7], 0.0)}
    assert ratio(still, still, cpu_seconds) is None
    assert busyness([model("a", {SINGLE_WORKER: still})]) is None


def test_a_column_has_the_best_batch_size():
    rounds = {
        SINGLE_WORKER: {0: Round([0.25], 0.1)},
        Job("texts", 8): {0: Round([1.0], 1.0)},
        Job("texts", 32): {0: Round([8.0], 8.0)},
        Job("ids", 1): {0: Round([1e-6], 1e-6)},
    }
    found = column(model("a", rounds), "texts", {})
    assert found is not None
    assert found["throughput"] == {
        "texts_per_second": 8.0,
        "batch_size": 8,
        "by_batch_size": {"1": 4.0, "8": 8.0, "32": 4.0},
    }
    assert found["first_answer_ms"] == 500 and found["calls"] == 1


def test_reports_and_tables_have_each_model_and_its_ratios():
    run = model("the run", {SINGLE_WORKER: {0: Round([0.4], 0.4)}}, peak_bytes=500_000_000)
    copy = model("copy", {SINGLE_WORKER: {0: Round([0.1], 0.2)}})
    reports = [report(each, {"the run": run, "the first": copy}) for each in (run, copy)]
    assert reports[1]["texts"]["ratios"] == {"the run": pytest.approx(0.25), "the first": 1.0}
    assert reports[1]["texts"]["cpu_ratios"]["the run"] == pytest.approx(0.5)
    assert reports[0]["memory"] == {"imports_mb": 300.0, "peak_mb": 500.0, "above_imports_mb": 200.0}
    assert reports[0]["ids"] is None
    assert (fastest(reports, "texts"), fastest(reports, "ids")) == ("copy", None)
    assert busyness([run, copy]) == pytest.approx(0.5 / 0.6)
    lines = tables(reports, None)
    assert " cpu ms  of the run  of the first  best texts/s  at batch" in lines[0]
    assert lines[2].split() == ["copy", "100", "100", "100", "0.25", "1.00", "200", "0.50", "1.00", "10", "1"]
    assert lines[-2].split() == ["the", "run", "250", "500", "200", "500", "2.50"]


def test_a_model_that_failed_to_load_is_reported_without_figures():
    dead = MeasuredModel(
        *("dead", "onnx"),
        None,  # pyright: ignore
        {},
        1,
        failed="its process was killed by signal 9, saying nothing",
    )
    alive = model("alive", {SINGLE_WORKER: {0: Round([0.1], 0.1)}})
    reports = [report(each, {"the run": alive}) for each in (alive, dead)]
    assert reports[1] == {
        "name": "dead", "kind": "onnx", "bytes": 1, "failed": dead.failed, "texts": None, "ids": None,
    }  # fmt: skip
    assert not any("dead" in line for line in tables(reports, None))

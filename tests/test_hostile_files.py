"""Every command on a changed run, TOML or data file exits with 0 or 2 and one line; `make soak` runs 2,000 cases."""

import gc
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from export.commands import MODULES
from tests.command_runs import TINY
from tests.hostile_files import (
    COMMANDS,
    Runs,
    changed_rows,
    changed_runs,
    changed_settings,
    check,
    read_rows,
    read_settings,
    settings_of,
)

logger = logging.getLogger("kmha")

# Numbers of cases; few of slow commands. A run in "fit" is the pretrained encoder.
RUN_CASES = {
    **{
        "predict": 200,
        "evaluate": 100,
        "embed": 80,
        "explain": 60,
        "report": 60,
        "calibrate": 60,
        "suggest": 60,
    },
    **{"heads": 30, "fit": 30, "compare": 10},
    **{f"export {name}": 30 for name in ("savedmodel", "tflite", "onnx", "verify", "benchmark")},
    "export huggingface": 60,
}
ROW_CASES = {
    **{
        "predict": 60,
        "evaluate": 60,
        "calibrate": 40,
        "explain": 40,
        "report": 30,
        "suggest": 40,
        "heads": 20,
    },
    **{"fit": 50, "compare": 10, "export verify": 30, "export benchmark": 20},
}
ROWS_READ, SETTINGS_READ, SETTINGS_FITTED = 300, 400, 50
# They start other commands, read exported models, which are trusted, or need another environment.
NOT_CHANGED = {"launch", "benchmark", "export answer", "export explain", "export batch"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def runs(folder):
    return Runs(folder)


def test_every_command_that_reads_a_run_is_tested():
    assert set(RUN_CASES) == set(COMMANDS) == set(MODULES) - NOT_CHANGED
    cases = sum(RUN_CASES.values()) + sum(ROW_CASES.values())
    assert cases + ROWS_READ + SETTINGS_READ + SETTINGS_FITTED >= 2_000


@given(content=changed_settings(settings_of()))
def test_changed_settings(folder, content):
    check(read_settings(content, folder))


@given(changed=changed_rows())
def test_changed_rows(folder, changed):
    name, content = changed
    check(read_rows(name, content, folder))


@given(data=st.data())
def test_changed_runs(runs, data):
    check(runs.call_with_run("predict", *data.draw(changed_runs(runs))))


def try_cases(name: str, count: int, changes: Any, command: Callable) -> None:
    """Calls a command with so many changes, and logs how many of them it accepted."""
    statuses = []

    # Shrinking a failing case would take longer than all cases.
    @settings(max_examples=count, phases=[Phase.explicit, Phase.generate], database=None)
    @given(changed=changes)
    def every_change(changed):
        outcome = command(*changed)
        check(outcome)
        statuses.append(outcome.status)

    started = time.monotonic()
    every_change()
    # Each loaded run has separate graphs.
    gc.collect()
    accepted = len(statuses) - statuses.count(2)
    logger.info(f"{name}: {len(statuses)} cases, {accepted} accepted, {time.monotonic() - started:.0f} s ")


@pytest.mark.soak
def test_many_changed_settings(folder):
    changes = st.tuples(changed_settings(settings_of()))
    try_cases("settings", SETTINGS_READ, changes, lambda content: read_settings(content, folder))


@pytest.mark.soak
def test_many_fits_with_changed_settings(runs):
    changes = st.tuples(changed_settings(settings_of(*TINY)))
    try_cases("fit, settings", SETTINGS_FITTED, changes, runs.call_with_settings)


@pytest.mark.soak
def test_many_changed_data_files(folder):
    try_cases("rows", ROWS_READ, changed_rows(), lambda name, content: read_rows(name, content, folder))


@pytest.mark.soak
@pytest.mark.parametrize("command", ROW_CASES)
def test_command_on_many_changed_rows(runs, command):
    changes = changed_rows()
    try_cases(
        f"{command}, rows",
        ROW_CASES[command],
        changes,
        lambda *changed: runs.call_with_rows(command, *changed),
    )


@pytest.mark.soak
@pytest.mark.parametrize("command", RUN_CASES)
def test_command_on_many_changed_runs(runs, command):
    changes = changed_runs(runs)
    try_cases(
        f"{command}, runs",
        RUN_CASES[command],
        changes,
        lambda *changed: runs.call_with_run(command, *changed),
    )

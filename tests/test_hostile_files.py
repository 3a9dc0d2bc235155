"""Every command on a changed run, TOML or data file exits with 0 or 2 and one line; `make soak` tries 2,000 changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hostile_files import (
    DATA,
    changed_bytes,
    changed_runs,
    changed_settings,
    check,
    read_rows,
    read_run,
    read_settings,
    run_files,
)

COMMANDS = ("predict", "evaluate", "report")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def original(folder):
    return run_files(folder / "run")


@given(content=changed_settings())
def test_changed_settings(folder, content):
    check(read_settings(content, folder))


@given(data=st.data(), name=st.sampled_from(list(DATA)))
def test_changed_rows(folder, data, name):
    check(read_rows(name, data.draw(changed_bytes(DATA[name])), folder))


@given(data=st.data())
def test_changed_runs(folder, original, data):
    check(read_run(original, data.draw(changed_runs(original)), folder / "run", "predict"))


@pytest.mark.soak
@settings(max_examples=500)
@given(content=changed_settings())
def test_500_changed_settings(folder, content):
    check(read_settings(content, folder))


@pytest.mark.soak
@settings(max_examples=500)
@given(data=st.data(), name=st.sampled_from(list(DATA)))
def test_500_changed_data_files(folder, data, name):
    check(read_rows(name, data.draw(changed_bytes(DATA[name])), folder))


@pytest.mark.soak
@settings(max_examples=1_000)
@given(data=st.data(), command=st.sampled_from(COMMANDS))
def test_1000_changed_runs(folder, original, data, command):
    check(read_run(original, data.draw(changed_runs(original)), folder / "run", command))

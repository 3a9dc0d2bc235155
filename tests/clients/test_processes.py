"""Environments and servers of the clients."""

import sys

import pytest

from clients import processes
from clients.comparison import ClientUnavailableError
from clients.processes import (
    READY_FILE,
    ServerError,
    error_line,
    free_port,
    install_npm_packages,
    python_environment,
    running_server,
)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "Collecting x\nERROR: No matching distribution found\nhint: try later\n",
            "ERROR: No matching distribution found",
        ),
        ("I0000 round-off errors are common\nTraceback:\n  x()\nIndexError: 3\n", "IndexError: 3"),
        ("first\n\nlast\n\n", "last"),
        ("", "no output"),
    ],
)
def test_error_line_is_the_first_error_or_the_last_line(output, expected):
    assert error_line(output) == expected


def test_a_missing_interpreter_is_reported(tmp_path):
    with pytest.raises(ClientUnavailableError, match="/no/such/python is not installed"):
        python_environment(tmp_path / "env", ["x"], "/no/such/python")


def test_an_environment_that_cannot_be_created_is_reported(tmp_path):
    (tmp_path / "env").write_text("a file at the path of the folder")
    with pytest.raises(ClientUnavailableError):
        python_environment(tmp_path / "env", ["x"], sys.executable, without_pip=True)


def test_a_ready_environment_is_reused(tmp_path, monkeypatch):
    def refuse(command):
        raise AssertionError(command)

    monkeypatch.setattr(processes, "_run_tool", refuse)
    folder = tmp_path / "env"
    folder.mkdir()
    (folder / READY_FILE).write_text(f"{sys.executable}\nx==1")
    assert python_environment(folder, ["x==1"]) == str(folder / "bin" / "python")
    with pytest.raises(AssertionError, match="venv"):
        python_environment(folder, ["x==2"])


def test_missing_npm_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(processes.shutil, "which", lambda name: None)
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "package.json").write_text("{}")
    with pytest.raises(ClientUnavailableError, match="npm is not installed"):
        install_npm_packages(tmp_path, ["left@1"])


def test_the_block_starts_when_the_server_is_ready(tmp_path):
    flag = tmp_path / "flag"
    program = f"import pathlib, time; pathlib.Path({str(flag)!r}).touch(); time.sleep(60)"
    with running_server([sys.executable, "-c", program], flag.exists, 30):
        assert flag.exists()


@pytest.mark.parametrize(
    ("program", "seconds", "words"),
    [
        ("print('starting'); raise SystemExit('error: port taken')", 30, "^error: port taken$"),
        ("import time; print('warming', flush=True); time.sleep(60)", 1, "not ready in time"),
    ],
)
def test_a_server_that_does_not_start_is_reported(program, seconds, words):
    with (
        pytest.raises(ServerError, match=words),
        running_server([sys.executable, "-c", program], lambda: False, seconds),
    ):
        pass


def test_ports_are_unprivileged():
    assert 1024 < free_port() < 65536

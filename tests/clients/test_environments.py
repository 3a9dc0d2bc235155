"""Environments of the clients: the exact reason where one cannot be made."""

import sys

import pytest

from clients import environments
from clients.environments import READY, npm_packages, python_environment, reason
from clients.outcome import NotRunError


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            "Collecting x\nERROR: No matching distribution found\nhint: try later\n",
            "ERROR: No matching distribution found",
        ),
        ("I0000 round-off errors are common\nTraceback:\n  x()\nIndexError: 3\n", "IndexError: 3"),
        ("first\n\nlast\n\n", "last"),
        ("", "it said nothing"),
    ],
)
def test_the_reason_is_the_tools_own_line(output, expected):
    assert reason(output) == expected


def test_a_missing_interpreter_is_told(tmp_path):
    with pytest.raises(NotRunError, match="/no/such/python is not installed"):
        python_environment(tmp_path / "env", ["x"], "/no/such/python")


def test_an_environment_that_cannot_be_made_is_told_and_not_kept(tmp_path):
    (tmp_path / "env").write_text("a file in the way")
    with pytest.raises(NotRunError):
        python_environment(tmp_path / "env", ["x"], sys.executable, without_pip=True)


def test_one_that_is_ready_is_kept(tmp_path, monkeypatch):
    def refuse(command):
        raise AssertionError(command)

    monkeypatch.setattr(environments, "_done", refuse)
    folder = tmp_path / "env"
    folder.mkdir()
    (folder / READY).write_text(f"{sys.executable}\nx==1")
    assert python_environment(folder, ["x==1"]) == str(folder / "bin" / "python")
    with pytest.raises(AssertionError, match="venv"):
        python_environment(folder, ["x==2"])


def test_without_npm_the_reason_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(environments.shutil, "which", lambda name: None)
    monkeypatch.setattr(environments.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "package.json").write_text("{}")
    with pytest.raises(NotRunError, match="npm is not installed"):
        npm_packages(tmp_path, ["left@1"])

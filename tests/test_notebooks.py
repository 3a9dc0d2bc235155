"""examples/notebooks: the code of each notebook runs, without Jupyter."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.command_runs import ROOT, clean_environment, run_script

NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_of(path: Path) -> str:
    """The code cells of a notebook as a script; lines with ! run in the shell, as in Jupyter, and have to succeed."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return "import subprocess\n" + re.sub(
        r"^!(.+)$", lambda line: f"subprocess.run({line[1]!r}, shell=True, check=True)", code, flags=re.M
    )


def test_there_are_three_notebooks():
    assert len(NOTEBOOKS) == 3


@every_notebook
def test_a_notebook_is_saved_without_outputs(path):
    notebook = json.loads(path.read_text("utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert notebook["cells"][0]["source"][0].startswith("# ")
    assert all(
        cell["outputs"] == [] and cell["execution_count"] is None
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    )


@pytest.mark.second
@every_notebook
def test_the_code_of_a_notebook_runs(path, tmp_path):
    environment = clean_environment()
    python = os.pathsep.join((str(Path(sys.executable).parent), environment["PATH"]))
    assert run_script(code_of(path), cwd=tmp_path, env=environment | {"PATH": python})


def test_a_failing_command_of_a_notebook_is_noticed(tmp_path):
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["!exit 3\n", "print(1)"]}]}))
    with pytest.raises(AssertionError, match="status 3"):
        run_script(code_of(path))

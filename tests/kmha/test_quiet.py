"""Importing TensorFlow prints nothing and hides no errors: each test starts a separate process."""

import subprocess
import sys

import pytest

from tests.command_runs import ROOT, clean_environment

IMPORT = "from kmha.quiet import import_tensorflow; import_tensorflow()\n"
USE = """
import kmha.bundle.bundle, sys, tensorflow as tf
tf.function(lambda x: x + 1)(tf.constant(1.0))
list(tf.data.Dataset.range(3).map(lambda x: x + 1))
import_tensorflow()
"""


def python(program: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment() | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.mark.second
def test_importing_and_first_use_print_nothing_and_stderr_works_afterwards():
    result = python(IMPORT + USE + "import os; print('one', file=sys.stderr); os.write(2, b'two')")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "one\ntwo")


@pytest.mark.parametrize("module", ["keras", "tensorflow"])
def test_an_import_error_is_raised(module):
    result = python(f"import sys; sys.modules[{module!r}] = None\n{IMPORT}")
    assert result.returncode == 1
    assert (
        "ModuleNotFoundError" in result.stderr.splitlines()[-1] and module in result.stderr.splitlines()[-1]
    )


def test_an_earlier_import_is_not_repeated():
    result = python(
        "import os, sys, types; sys.modules['tensorflow'] = types.ModuleType('tensorflow')\n" + IMPORT
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.second
def test_a_closed_stderr_is_supported():
    result = python("import os, sys; os.close(2); sys.stderr = None\n" + IMPORT + "print('done')")
    assert (result.returncode, result.stdout) == (0, "done\n")


@pytest.mark.second
def test_messages_are_printed_on_request():
    result = python(IMPORT, TF_CPP_MIN_LOG_LEVEL="0")
    assert result.returncode == 0 and result.stderr != ""

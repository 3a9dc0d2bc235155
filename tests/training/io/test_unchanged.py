import os

import pytest

from kmha.errors import InputError
from training.io.atomic_write import unchanged

CHANGED = "expected a file that stays as it is while it is read, got one that has changed meanwhile"


def longer(path):
    with open(path, "a") as file:
        file.write("more")


def as_long(path):
    path.write_text("other")
    os.utime(path, ns=(0, 1))


def replaced(path):
    time = path.stat().st_mtime_ns
    new = path.with_name("new")
    new.write_text("other")
    os.utime(new, ns=(time, time))
    new.replace(path)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "a.csv").write_text("text\n")
    return tmp_path / "a.csv"


@pytest.mark.parametrize("change", [longer, as_long, replaced, os.remove])
def test_a_file_that_changes_is_named(path, change):
    with pytest.raises(InputError, match=f"a.csv: {CHANGED}"), unchanged(None, path):
        change(path)


def test_a_change_explains_what_was_refused(path):
    with pytest.raises(InputError, match=CHANGED), unchanged(path):
        longer(path)
        raise InputError("a.csv:7: expected two fields")
    with pytest.raises(InputError, match="expected two fields"), unchanged(path):
        raise InputError("a.csv:7: expected two fields")


def test_other_errors_stay_as_they_are(path):
    with pytest.raises(ZeroDivisionError), unchanged(path):
        longer(path)
        raise ZeroDivisionError


def test_a_file_that_stays_is_fine(path):
    with unchanged(path, path.with_name("none")):
        path.read_text()

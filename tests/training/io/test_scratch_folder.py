import errno
import os
import tempfile
from pathlib import Path

import pytest

from training.io.scratch_folder import NOTE, named, remove_left, scratch_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_it_is_noted_while_it_is_there(tmp_path, temporary):
    with pytest.raises(ZeroDivisionError), scratch_folder(tmp_path) as scratch:
        assert scratch.is_dir() and (tmp_path / NOTE).read_text() == str(scratch)
        raise ZeroDivisionError
    assert not (tmp_path / NOTE).exists() and not list(temporary.iterdir())


def test_what_a_kill_left_is_removed(tmp_path, temporary):
    (temporary / "kmha-x" / "deep").mkdir(parents=True)
    (tmp_path / NOTE).write_text(str(temporary / "kmha-x"))
    remove_left(tmp_path)
    assert not list(temporary.iterdir()) and not (tmp_path / NOTE).exists()
    remove_left(tmp_path)


@pytest.mark.parametrize("kind", ["another name", "another place", "a way out", "a link"])
def test_nothing_else_is(tmp_path, temporary, kind):
    kept = tmp_path / "kmha-thesis"
    noted = {
        "another name": temporary / "thesis",
        "another place": kept,
        "a way out": temporary / "kmha-x" / ".." / ".." / "kmha-thesis",
        "a link": temporary / "kmha-link",
    }[kind]
    kept.mkdir()
    (temporary / "thesis").mkdir()
    (temporary / "kmha-x").mkdir()
    os.symlink(kept, temporary / "kmha-link")
    (tmp_path / NOTE).write_text(str(noted))
    remove_left(tmp_path)
    assert kept.is_dir() and len(list(temporary.iterdir())) == 3


@pytest.mark.parametrize(
    ("error", "filename"),
    [(OSError(errno.ENOSPC, "full"), "a"), (OSError(errno.ENOSPC, "full", "b"), "b"), (OSError("odd"), None)],
)
def test_what_does_not_say_where_it_was_written_is_told(error, filename):
    with pytest.raises(OSError) as caught, named(Path("a")):
        raise error
    assert (caught.value.filename, caught.value.errno) == (filename, error.errno)

from pathlib import Path

import pytest

from kmha.errors import InputError
from training.io.atomic_write import atomic_write


def write(path: Path, kind: str, word: str) -> None:
    if kind == "folder":
        path.mkdir()
        path = path / "part"
    path.write_text(word)


def read(path: Path, kind: str) -> str:
    return (path / "part" if kind == "folder" else path).read_text()


both = pytest.mark.parametrize("kind", ["file", "folder"])


@both
def test_the_artefact_appears_whole_and_leaves_nothing_beside_it(tmp_path, kind):
    final = tmp_path / "new" / "deep" / "model"
    with atomic_write(final) as path:
        write(path, kind, "one")
        assert not final.exists()
    assert read(final, kind) == "one"
    assert list(final.parent.iterdir()) == [final]


@both
@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt(), OSError(28, "disk full")])
def test_nothing_stays_of_one_that_failed(tmp_path, kind, error):
    final = tmp_path / "new" / "model"
    expected = InputError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected), atomic_write(final) as path:
        write(path, kind, "half")
        raise error
    assert list(tmp_path.iterdir()) == []


@both
def test_what_stands_there_is_kept_unless_told_otherwise(tmp_path, kind):
    final = tmp_path / "model"
    write(final, kind, "old")
    with pytest.raises(InputError, match="--overwrite"), atomic_write(final):
        raise AssertionError
    with pytest.raises(ValueError), atomic_write(final, overwrite=True) as path:
        write(path, kind, "half")
        raise ValueError
    assert read(final, kind) == "old"
    with atomic_write(final, overwrite=True) as path:
        write(path, kind, "new")
    assert read(final, kind) == "new" and list(tmp_path.iterdir()) == [final]


def test_what_a_killed_export_left_is_cleared(tmp_path):
    write(tmp_path / "model.partial", "folder", "left")
    with atomic_write(tmp_path / "model") as path:
        write(path, "file", "whole")
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write there"), atomic_write(tmp_path / "file" / "model"):
        raise AssertionError


def test_a_file_never_takes_the_place_of_a_folder(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one").touch()
    with pytest.raises(InputError, match="--out .*photos: cannot write there, Is a directory"):
        with atomic_write(tmp_path / "photos", overwrite=True, flag="--out") as beside:
            beside.write_text("page")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["one", "photos"]

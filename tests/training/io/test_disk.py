import errno
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
import types
from pathlib import Path

import pytest

from kmha import input_files
from kmha.errors import InputError
from training.io.disk import (
    NOTE,
    atomic_write,
    named,
    open_lines,
    publishing,
    remove_left,
    require_disk_space,
    scratch_folder,
    to_json,
    unchanged,
    unpacked_bytes,
)


def write(path: Path, kind: str, word: str) -> None:
    if kind == "folder":
        path.mkdir()
        path = path / "part"
    path.write_text(word)


def read(path: Path, kind: str) -> str:
    return (path / "part" if kind == "folder" else path).read_text()


both = pytest.mark.parametrize("kind", ["file", "folder"])


@both
def test_the_artifact_appears_complete_and_without_temporary_files(tmp_path, kind):
    final = tmp_path / "new" / "deep" / "model"
    with atomic_write(final) as path:
        write(path, kind, "one")
        assert not final.exists()
    assert read(final, kind) == "one"
    assert list(final.parent.iterdir()) == [final]


@both
@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt(), OSError(28, "disk full")])
def test_a_failed_write_leaves_nothing(tmp_path, kind, error):
    final = tmp_path / "new" / "model"
    expected = InputError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected), atomic_write(final) as path:
        write(path, kind, "half")
        raise error
    assert list(tmp_path.iterdir()) == []


@both
def test_an_existing_artifact_is_retained_without_overwrite(tmp_path, kind):
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


KILLED = """
import os, sys
from pathlib import Path
from training.io.disk import atomic_write
with atomic_write(Path(sys.argv[1])) as path:
    path.write_text("half")
    os.kill(os.getpid(), 9)
"""


def test_temporary_files_of_a_killed_export_are_removed(tmp_path):
    process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "model")])
    assert process.returncode == -9 and len(list(tmp_path.iterdir())) == 1
    with atomic_write(tmp_path / "model", overwrite=True) as first:
        write(first, "file", "first")
        with atomic_write(tmp_path / "model") as path:
            write(path, "file", "whole")
        # Only the folder of the killed process is removed.
        assert first.exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "model"] and read(tmp_path / "model", "file") == "first"


# Writes files of its own number until the time is over; each group must stay together.
GROUPS = """
import sys, time
from pathlib import Path
from training.io.disk import atomic_write
folder, number = Path(sys.argv[1]), sys.argv[2]
end = time.monotonic() + 1.5
while time.monotonic() < end:
    with atomic_write(folder / "m.tflite", True, companions={folder / "m.json": number.encode()}) as path:
        path.write_text(number)
"""


def test_concurrent_writers_of_one_group_do_not_mix(tmp_path):
    processes = [subprocess.Popen([sys.executable, "-c", GROUPS, tmp_path, str(n)]) for n in range(2)]
    seen = set()
    while any(process.poll() is None for process in processes):
        if (tmp_path / "m.tflite").exists():
            with publishing(tmp_path):
                group = [(tmp_path / name).read_text() for name in ("m.tflite", "m.json")]
            assert group in (["0", "0"], ["1", "1"])
            seen.add(group[0])
    assert [process.returncode for process in processes] == [0, 0] and seen == {"0", "1"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.json", "m.tflite"]


def test_a_target_written_by_another_process_is_not_replaced(tmp_path):
    """Without --overwrite the second writer is refused when it publishes, and its files are removed."""
    final = tmp_path / "m.tflite"
    with pytest.raises(InputError, match="m.tflite: expected a new place"):
        with atomic_write(final) as slow:
            with atomic_write(final, companions={tmp_path / "m.json": b"fast"}) as fast:
                fast.write_text("fast")
            slow.write_text("slow")
    assert final.read_text() == "fast" and (tmp_path / "m.json").read_text() == "fast"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_companion_with_the_same_content_stays(tmp_path):
    (tmp_path / "m.json").write_bytes(b"same")
    before = (tmp_path / "m.json").stat()
    with atomic_write(tmp_path / "m.onnx", companions={tmp_path / "m.json": b"same"}) as path:
        path.touch()
    assert (tmp_path / "m.json").stat() == before
    with pytest.raises(InputError, match="m.json: expected a new place"):
        with atomic_write(tmp_path / "n.onnx", companions={tmp_path / "m.json": b"other"}):
            pytest.fail("entered")


def test_a_path_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write there"), atomic_write(tmp_path / "file" / "model"):
        raise AssertionError


def test_a_file_never_replaces_a_folder(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one").touch()
    with pytest.raises(InputError, match="--out .*photos: cannot write there, Is a directory"):
        with atomic_write(tmp_path / "photos", overwrite=True, flag="--out") as partial:
            partial.write_text("page")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["one", "photos"]


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory, monkeypatch) -> Path:
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_scratch_folder_is_recorded_while_it_exists(tmp_path, temporary):
    with pytest.raises(ZeroDivisionError), scratch_folder(tmp_path) as scratch:
        assert scratch.is_dir() and (tmp_path / NOTE).read_text() == str(scratch)
        raise ZeroDivisionError
    assert not (tmp_path / NOTE).exists() and not list(temporary.iterdir())


def test_the_scratch_folder_of_a_killed_process_is_removed(tmp_path, temporary):
    (temporary / "kmha-x" / "deep").mkdir(parents=True)
    (tmp_path / NOTE).write_text(str(temporary / "kmha-x"))
    remove_left(tmp_path)
    assert not list(temporary.iterdir()) and not (tmp_path / NOTE).exists()
    remove_left(tmp_path)


@pytest.mark.parametrize("kind", ["another name", "another place", "a way out", "a link"])
def test_no_other_folder_is_removed(tmp_path, temporary, kind):
    other_folder = tmp_path / "kmha-thesis"
    noted = {
        "another name": temporary / "thesis",
        "another place": other_folder,
        "a way out": temporary / "kmha-x" / ".." / ".." / "kmha-thesis",
        "a link": temporary / "kmha-link",
    }[kind]
    other_folder.mkdir()
    (temporary / "thesis").mkdir()
    (temporary / "kmha-x").mkdir()
    os.symlink(other_folder, temporary / "kmha-link")
    (tmp_path / NOTE).write_text(str(noted))
    remove_left(tmp_path)
    assert other_folder.is_dir() and len(list(temporary.iterdir())) == 3


@pytest.mark.parametrize(
    ("error", "filename"),
    [(OSError(errno.ENOSPC, "full"), "a"), (OSError(errno.ENOSPC, "full", "b"), "b"), (OSError("odd"), None)],
)
def test_errors_of_a_full_disk_get_a_file_name(error, filename):
    with pytest.raises(OSError) as caught, named(Path("a")):
        raise error
    assert (caught.value.filename, caught.value.errno) == (filename, error.errno)


def test_too_little_disk_space_is_one_line_with_a_hint(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=2_500_000_000))
    require_disk_space(tmp_path / "scratch", 2.5e9, "token ids")
    with pytest.raises(InputError) as caught:
        require_disk_space(tmp_path / "scratch", 4e9, "token ids")
    assert str(caught.value) == (
        f"{tmp_path}: expected 4,000.0 MB of free disk for token ids, got 2,500.0 MB; the environment variable TMPDIR"
        " names another folder"
    )


def test_sizes_of_gzip_files_are_estimated_from_their_beginning(tmp_path):
    text = b"".join(b"%d of the same words\n" % number for number in range(300_000))
    plain, packed = tmp_path / "a.csv", tmp_path / "a.csv.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text, 1))
    assert unpacked_bytes([plain]) == len(text)
    assert unpacked_bytes([packed]) == pytest.approx(len(text), rel=0.2)
    assert unpacked_bytes([plain, packed, tmp_path / "missing"]) > 1.8 * len(text)
    noise = tmp_path / "noise.gz"
    noise.write_bytes(os.urandom(100))
    assert unpacked_bytes([noise]) == 100


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


def test_a_changed_file_is_reported_instead_of_the_input_error(path):
    with pytest.raises(InputError, match=CHANGED), unchanged(path):
        longer(path)
        raise InputError("a.csv:7: expected two fields")
    with pytest.raises(InputError, match="expected two fields"), unchanged(path):
        raise InputError("a.csv:7: expected two fields")


def test_readers_of_lines_refuse_a_file_that_grows(path):
    with pytest.raises(InputError, match=CHANGED), open_lines(path) as lines:
        assert next(lines)
        longer(path)


def test_other_errors_are_unchanged(path):
    with pytest.raises(ZeroDivisionError), unchanged(path):
        longer(path)
        raise ZeroDivisionError


def test_an_unchanged_file_is_accepted(path):
    with unchanged(path, path.with_name("none")):
        path.read_text()


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\rtwo\r\nthree\x0c\n")
    with open_lines(path) as lines:
        assert list(lines) == ["one\rtwo\r\n", "three\x0c\n"]


def test_errors_of_the_reader_itself_pass_through(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x\n")
    with pytest.raises(KeyError), open_lines(path):
        raise KeyError("unchanged")


def test_a_path_through_a_file_is_an_input_error(tmp_path):
    (tmp_path / "a.txt").write_text("x\n")
    with (
        pytest.raises(InputError, match="expected a readable file"),
        open_lines(tmp_path / "a.txt" / "b.txt"),
    ):
        pass


def test_nan_and_infinity_become_null():
    values = {"a": float("nan"), "b": [1.5, (float("inf"), "NaN")], "c": {"d": -float("inf")}}
    assert json.loads(to_json(values, indent=1)) == {"a": None, "b": [1.5, [None, "NaN"]], "c": {"d": None}}


@pytest.mark.parametrize("suffix", ["txt", "txt.gz"])
def test_a_line_that_is_too_long_is_an_error_before_it_is_read(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(input_files, "MAX_LINE_BYTES", 100_000)
    path = tmp_path / f"rows.{suffix}"
    content = b"text\n\n" + b"a" * 60_000_000 + b"\nmore\n"
    path.write_bytes(gzip.compress(content, 1) if suffix.endswith("gz") else content)
    tracemalloc.start()
    with pytest.raises(
        InputError, match=rf"rows\.{suffix}:3: expected a line of at most 100,000 bytes, got more"
    ):
        with open_lines(path) as lines:
            list(lines)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


def test_lines_up_to_the_limit_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "MAX_LINE_BYTES", 20_000)
    path, content = tmp_path / "rows.txt", ("é" * 9_000 + "\n") * 50
    path.write_text(content, "utf-8")
    with open_lines(path) as lines:
        assert "".join(lines) == content
    with open(path, "rb") as stream:
        assert b"".join(input_files.bounded_lines(stream, path)).decode() == content
    with (
        open(path, "rb") as stream,
        pytest.raises(InputError, match="stdin:1: expected a line of at most 99 bytes"),
    ):
        monkeypatch.setattr(input_files, "MAX_LINE_BYTES", 99)
        list(input_files.bounded_lines(stream, "stdin"))

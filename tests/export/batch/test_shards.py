from pathlib import Path

import pytest

from export.batch.shards import atomic_shards, is_local, is_shard_of, shards_of, with_folder
from kmha.errors import InputError

FIRST, SECOND, ERRORS = (
    "out-00000-of-00002.jsonl",
    "out-00001-of-00002.jsonl",
    "out.errors-00000-of-00001.jsonl",
)


def write(prefix: Path, *names: str, text: str = "new") -> None:
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        prefix.with_name(name).write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("out-00000-of-00001.jsonl", True),
        ("out.errors-00000-of-00001.jsonl", True),
        ("./out-123456-of-200000.jsonl", True),
        ("a/out-00000-of-00001.jsonl", False),
        ("out-1-of-2.jsonl", False),
        ("out-00000-of-00001.jsonl.gz", False),
        ("about-00000-of-00001.jsonl", False),
        ("out.jsonl", False),
    ],
)
def test_shard_names_of_a_batch_are_recognized(place, expected):
    assert is_shard_of(place, "out") is expected


def test_shard_names_in_a_cloud_store_are_recognized():
    assert is_shard_of("gs://b/out-00000-of-00001.jsonl", "gs://b/out")
    assert not is_shard_of("gs://b/out-00000-of-00001.jsonl", "out")
    assert not is_local("gs://b/out") and is_local("/b/out")
    assert with_folder("gs://b/in-*") == "gs://b/in-*"
    assert with_folder("in-*") == str(Path.cwd() / "in-*")


def test_shards_appear_together(tmp_path):
    output = tmp_path / "new" / "below" / "out"
    with atomic_shards(output) as partial:
        write(partial, SECOND, FIRST, ERRORS)
        assert not shards_of(output)
    assert [path.name for path in shards_of(output)] == [FIRST, SECOND, ERRORS]
    assert names(output.parent) == [FIRST, SECOND, ERRORS]


@pytest.mark.parametrize("error", [OSError("disk full"), RuntimeError("stop"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_failed_batch(tmp_path, error):
    with pytest.raises(type(error)), atomic_shards(tmp_path / "new" / "out") as partial:
        write(partial, FIRST)
        raise error
    assert not names(tmp_path)


def test_nothing_is_left_when_the_second_file_cannot_be_moved(tmp_path, monkeypatch):
    replace = Path.replace

    def failing(path, target):
        if path.name == SECOND:
            raise OSError(28, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", failing)
    with (
        pytest.raises(InputError, match="cannot write there, No space left"),
        atomic_shards(tmp_path / "out") as partial,
    ):
        write(partial, FIRST, SECOND)
    assert not names(tmp_path)


def test_an_earlier_batch_is_replaced_only_with_overwrite(tmp_path):
    write(tmp_path / "out", FIRST, SECOND, ERRORS, text="old")
    with pytest.raises(InputError, match="--overwrite"), atomic_shards(tmp_path / "out"):
        pytest.fail("entered")
    with pytest.raises(RuntimeError), atomic_shards(tmp_path / "out", overwrite=True) as partial:
        write(partial, FIRST)
        raise RuntimeError
    assert {path.read_text() for path in shards_of(tmp_path / "out")} == {"old"}
    with atomic_shards(tmp_path / "out", overwrite=True) as partial:
        write(partial, "out-00000-of-00001.jsonl")
    assert names(tmp_path) == ["out-00000-of-00001.jsonl"]


def test_two_batches_at_once_do_not_mix(tmp_path):
    with atomic_shards(tmp_path / "out", overwrite=True) as slow:
        write(slow, FIRST, SECOND, text="slow")
        with atomic_shards(tmp_path / "out", overwrite=True) as fast:
            write(fast, "out-00000-of-00001.jsonl", text="fast")
        assert names(tmp_path)[1:] == ["out-00000-of-00001.jsonl"]
    assert names(tmp_path) == [FIRST, SECOND]
    with pytest.raises(InputError, match="--overwrite"):
        with atomic_shards(tmp_path / "new") as slow:
            write(slow, "new-00000-of-00002.jsonl")
            with atomic_shards(tmp_path / "new") as fast:
                write(fast, "new-00000-of-00001.jsonl")
    assert names(tmp_path)[0] == "new-00000-of-00001.jsonl" and len(names(tmp_path)) == 3


def test_a_folder_that_cannot_be_written_to_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match="cannot write there"),
        atomic_shards(tmp_path / "file" / "out"),
    ):
        pytest.fail("entered")

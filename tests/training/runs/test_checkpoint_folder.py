import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from kmha.errors import InputError
from training.runs.checkpoint_folder import (
    check_disk_space,
    find_damage,
    list_checkpoints,
    newest_valid_checkpoint,
    next_checkpoint_path,
    read_progress,
    remove_old_checkpoints,
    write_progress,
)

Disk = namedtuple("Disk", "total used free")


def make(folder: Path, *numbers: int) -> None:
    for number in numbers:
        place = folder / f"{number:08d}"
        place.mkdir(parents=True)
        (place / "state").write_bytes(b"12345")
        write_progress(place, {"number": number})


def names(folder: Path) -> list[str]:
    return [path.name for path in list_checkpoints(folder)]


def test_checkpoints_are_listed_newest_first(tmp_path):
    make(tmp_path, 2, 10, 100_000_000)
    (tmp_path / "00000011.partial").mkdir()
    (tmp_path / "00000012").touch()
    assert names(tmp_path) == ["100000000", "00000010", "00000002"]
    assert list_checkpoints(tmp_path / "none") == []
    assert [read_progress(path)["number"] for path in list_checkpoints(tmp_path)] == [100_000_000, 10, 2]


def test_damage_is_found(tmp_path):
    make(tmp_path, 1)
    place = tmp_path / "00000001"
    assert find_damage(place) == "" and newest_valid_checkpoint(tmp_path) == place
    (place / "state").write_bytes(b"12")
    assert find_damage(place) == "state has 2 of 5 bytes" and newest_valid_checkpoint(tmp_path) is None
    (place / "state").unlink()
    assert find_damage(place) == "state is missing"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"files": 3}', '{"files": {"a": 1}', '{"files": {}}', "\ud800"]
)
def test_malformed_progress_is_damage(tmp_path, content):
    make(tmp_path, 1)
    (tmp_path / "00000001" / "progress.json").write_text(content, "utf-8", errors="surrogatepass")
    assert find_damage(tmp_path / "00000001") == "progress.json is damaged"


def test_next_checkpoint_has_a_new_number_and_incomplete_ones_are_removed(tmp_path):
    assert next_checkpoint_path(tmp_path).name == "00000001"
    make(tmp_path, 1, 7)
    (tmp_path / "00000008.partial" / "state").mkdir(parents=True)
    assert next_checkpoint_path(tmp_path).name == "00000008"
    assert names(tmp_path) == ["00000007", "00000001"] and len(list(tmp_path.iterdir())) == 2


def test_newest_valid_checkpoints_are_retained(tmp_path):
    make(tmp_path, 1, 2, 3, 4)
    (tmp_path / "00000003" / "state").unlink()
    remove_old_checkpoints(tmp_path, 2)
    assert names(tmp_path) == ["00000004", "00000002"]


def test_disk_space_for_all_retained_checkpoints_and_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Disk(0, 0, 3_000_000))
    check_disk_space(tmp_path / "not" / "yet", 1_000_000, 2)
    with pytest.raises(InputError, match=r"expected 4.0 MB of free disk for 3 .*got 3.0 MB; --train.checkp"):
        check_disk_space(tmp_path, 1_000_000, 3)
    make(tmp_path, 1, 2, 3)
    # Existing checkpoints need no more space.
    check_disk_space(tmp_path, 3_000_000, 3)
    with pytest.raises(InputError, match="got 3.0 MB"):
        check_disk_space(tmp_path, 3_000_001, 3)

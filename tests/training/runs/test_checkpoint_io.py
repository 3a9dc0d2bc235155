import errno
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from kmha.errors import InputError
from training.cli.exceptions import CheckpointWriteError
from training.runs import checkpoint_io as checkpoint
from training.runs.checkpoint_folder import PROGRESS
from training.runs.checkpoint_io import read_checkpoint, state_size, write_checkpoint


class State(tf.Module):
    """Two variables, one of them inside a list."""

    def __init__(self, value: float, size: int = 3, more: bool = False):
        super().__init__()
        self.several = [tf.Variable(tf.fill([size], value))]
        self.count = tf.Variable(tf.constant(int(value), tf.int64))
        self.more = tf.Variable(tf.constant(1.0)) if more else None


def values(state: State) -> list:
    return [state.several[0].numpy().tolist(), int(state.count.numpy())]


def test_round_trip(tmp_path):
    progress = {"epoch": 2, "best": None, "history": [{"loss": 0.5}]}
    write_checkpoint(tmp_path / "c", State(4.0), progress)
    state = State(0.0)
    assert read_checkpoint(tmp_path / "c", state) == progress
    assert values(state) == [[4.0] * 3, 4]


@pytest.mark.parametrize("retained", [1, 3])
def test_newest_checkpoint_is_read_and_the_last_are_retained(tmp_path, retained):
    for value in range(4):
        write_checkpoint(tmp_path / "c", State(float(value)), {"value": value}, retained)
    state = State(9.0)
    assert read_checkpoint(tmp_path / "c", state) == {"value": 3}
    assert values(state) == [[3.0] * 3, 3]
    assert len(list((tmp_path / "c").iterdir())) == retained


class Killed(BaseException):
    """A BaseException, so that no error handler catches it."""


@pytest.mark.parametrize("moment", ["state", "progress", "rename"])
def test_kill_while_writing_leaves_the_previous_checkpoint(tmp_path, monkeypatch, moment):
    folder = tmp_path / "c"
    write_checkpoint(folder, State(1.0), {"value": 1})

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        # A killed process cannot clean up.
        patch.setattr(checkpoint.shutil, "rmtree", lambda *_, **__: None)
        if moment == "state":

            def half_written(self, path):
                Path(f"{path}.index").write_bytes(b"half")
                raise Killed

            patch.setattr(tf.train.Checkpoint, "write", half_written)
        elif moment == "progress":
            patch.setattr(checkpoint, "write_progress", killed)
        else:
            patch.setattr(Path, "rename", killed)
        with pytest.raises(Killed):
            write_checkpoint(folder, State(2.0), {"value": 2})
    assert len(list(folder.iterdir())) == 2
    state = State(0.0)
    assert read_checkpoint(folder, state) == {"value": 1}
    assert values(state) == [[1.0] * 3, 1]
    write_checkpoint(folder, State(3.0), {"value": 3})
    assert read_checkpoint(folder, state) == {"value": 3}
    assert values(state) == [[3.0] * 3, 3]
    assert sorted(path.name for path in folder.iterdir()) == ["00000001", "00000002"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "a/b; No space left"), "No space left on device"),
        (tf.errors.UnknownError(None, None, "{{node x}} a/b; File too large [Op:SaveV2]"), "File too large"),
        (OSError(errno.EROFS, "Read-only file system"), "Read-only file system"),
    ],
)
def test_full_disk_leaves_the_previous_checkpoint(tmp_path, monkeypatch, error, reason):
    folder = tmp_path / "c"
    write_checkpoint(folder, State(1.0), {"value": 1}, retained=1)

    def fail(self, path):
        Path(f"{path}.index").write_bytes(b"half")
        raise error

    monkeypatch.setattr(tf.train.Checkpoint, "write", fail)
    with pytest.raises(CheckpointWriteError, match=f"cannot write a checkpoint into .*, {reason}$"):
        write_checkpoint(folder, State(2.0), {"value": 2}, retained=1)
    assert [path.name for path in folder.iterdir()] == ["00000001"]
    assert read_checkpoint(folder, State(0.0)) == {"value": 1}


def test_state_size_is_that_of_the_files(tmp_path):
    state = State(1.0, size=1000)
    write_checkpoint(tmp_path, state, {})
    assert state_size(state) == 4008
    (data,) = tmp_path.glob("*/state.data*")
    # The file also has a table of names.
    assert 4008 <= data.stat().st_size < 6000


def test_no_checkpoint(tmp_path):
    with pytest.raises(InputError, match="--resume: expected a checkpoint in .*, got none"):
        read_checkpoint(tmp_path / "c", State(0.0))


def other_shape():
    return State(0.0, size=4)


def other_variables():
    return State(0.0, more=True)


@pytest.mark.parametrize("other", [other_shape, other_variables])
def test_another_model_is_refused(tmp_path, other):
    write_checkpoint(tmp_path / "c", State(1.0), {})
    with pytest.raises(
        InputError,
        match="expected a checkpoint of this model, got .*: .*00000001",
    ):
        read_checkpoint(tmp_path / "c", other())


def truncated_data(newest):
    (path,) = newest.glob("state.data*")
    path.write_bytes(path.read_bytes()[:5])
    return "state.data-00000-of-00001 has 5 of "


def no_data(newest):
    (path,) = newest.glob("state.data*")
    path.unlink()
    return "state.data-00000-of-00001 is missing"


def other_data(newest):
    """Damage by a disk that retained the size of the file, but not its content."""
    (path,) = newest.glob("state.data*")
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    return "hecksum does not match"


def no_json(newest):
    (newest / PROGRESS).write_text('{"files": {', "utf-8")
    return "progress.json is damaged"


def no_sizes(newest):
    (newest / PROGRESS).write_text(json.dumps({"progress": {}}), "utf-8")
    return "progress.json is damaged"


def no_progress(newest):
    (newest / PROGRESS).unlink()
    return "progress.json is missing"


@pytest.mark.parametrize("damage", [truncated_data, no_data, other_data, no_json, no_sizes, no_progress])
def test_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path, capsys, damage):
    for value in (1, 2):
        write_checkpoint(tmp_path / "c", State(float(value)), {"value": value})
    newest = tmp_path / "c" / "00000002"
    reason = damage(newest)
    state = State(0.0)
    assert read_checkpoint(tmp_path / "c", state) == {"value": 1}
    assert values(state) == [[1.0] * 3, 1]
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith(f"checkpoint {newest} is damaged: ") and reason in message
    assert message.endswith("; trying the one before it")
    damage(tmp_path / "c" / "00000001")
    with pytest.raises(InputError, match="--resume: expected a valid checkpoint in .*, all are damaged"):
        read_checkpoint(tmp_path / "c", state)


def test_damaged_checkpoint_does_not_replace_a_valid_one(tmp_path):
    folder = tmp_path / "c"
    for value in (1, 2):
        write_checkpoint(folder, State(float(value)), {"value": value}, retained=2)
    truncated_data(folder / "00000002")
    write_checkpoint(folder, State(3.0), {"value": 3}, retained=2)
    assert sorted(path.name for path in folder.iterdir()) == ["00000001", "00000003"]


def test_additional_values_in_the_file_are_ignored(tmp_path):
    write_checkpoint(tmp_path / "c", State(1.0, more=True), {})
    fresh = State(0.0)
    read_checkpoint(tmp_path / "c", fresh)
    np.testing.assert_array_equal(fresh.several[0].numpy(), [1.0] * 3)

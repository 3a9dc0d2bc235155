import json

import numpy as np
import pytest
import tensorflow as tf

from kmha.errors import InputError
from training import checkpoint
from training.checkpoint import read_checkpoint, write_checkpoint


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


def test_the_newest_of_several_counts_and_the_older_are_gone(tmp_path):
    sizes = []
    for value in range(4):
        write_checkpoint(tmp_path / "c", State(float(value)), {"value": value})
        sizes.append(len(list((tmp_path / "c").iterdir())))
    state = State(9.0)
    assert read_checkpoint(tmp_path / "c", state) == {"value": 3}
    assert values(state) == [[3.0] * 3, 3]
    assert set(sizes) == {3}


@pytest.mark.parametrize("moment", ["state", "progress", "rename"])
def test_a_kill_while_writing_leaves_the_one_before(tmp_path, monkeypatch, moment):
    folder = tmp_path / "c"
    write_checkpoint(folder, State(1.0), {"value": 1})

    class Killed(BaseException):
        pass

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        if moment == "state":

            def half_written(self, path):
                (folder / f"{path.rpartition('/')[2]}.index").write_bytes(b"half")
                (folder / f"{path.rpartition('/')[2]}_temp").mkdir()
                raise Killed

            patch.setattr(tf.train.Checkpoint, "write", half_written)
        elif moment == "progress":
            patch.setattr(checkpoint.json, "dumps", killed)
        else:
            patch.setattr(type(folder), "replace", killed)
        with pytest.raises(Killed):
            write_checkpoint(folder, State(2.0), {"value": 2})
    state = State(0.0)
    assert read_checkpoint(folder, state) == {"value": 1}
    assert values(state) == [[1.0] * 3, 1]
    write_checkpoint(folder, State(3.0), {"value": 3})
    assert read_checkpoint(folder, state) == {"value": 3}
    assert values(state) == [[3.0] * 3, 3]
    assert len(list(folder.iterdir())) == 3


def test_no_checkpoint(tmp_path):
    with pytest.raises(InputError, match="--resume: wanted a checkpoint in .*, given none"):
        read_checkpoint(tmp_path / "c", State(0.0))


def other_shape(folder):
    return State(0.0, size=4)


def other_variables(folder):
    return State(0.0, more=True)


def cut_data(folder):
    for path in folder.glob("state-*.data*"):
        path.write_bytes(path.read_bytes()[:5])
    return State(0.0)


def no_json(folder):
    (folder / checkpoint.PROGRESS).write_text("{", "utf-8")
    return State(0.0)


def no_state(folder):
    (folder / checkpoint.PROGRESS).write_text(json.dumps({"progress": {}}), "utf-8")
    return State(0.0)


@pytest.mark.parametrize("spoil", [other_shape, other_variables, cut_data, no_json, no_state])
def test_another_model_or_a_damaged_file_is_refused(tmp_path, spoil):
    write_checkpoint(tmp_path / "c", State(1.0), {})
    with pytest.raises(InputError, match="of another model or damaged"):
        read_checkpoint(tmp_path / "c", spoil(tmp_path / "c"))


def test_unrestored_values_of_the_file_do_not_matter(tmp_path):
    write_checkpoint(tmp_path / "c", State(1.0, more=True), {})
    fresh = State(0.0)
    read_checkpoint(tmp_path / "c", fresh)
    np.testing.assert_array_equal(fresh.several[0].numpy(), [1.0] * 3)

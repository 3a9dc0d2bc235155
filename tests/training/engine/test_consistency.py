import copy
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kmha.errors import InputError
from tests.command_runs import news_rows, write_csv
from training.config.config import DataSection, FitConfig, TextSection, TrainSection, task_section
from training.data.load import load_data
from training.distributed.coordinator import SINGLE_WORKER, Coordinator
from training.engine import consistency as facts
from training.engine.consistency import check_same_rows, check_same_settings, check_same_weights, row_digests
from training.tasks.create import make_task


class Two(Coordinator):
    """A coordinator of two workers; the values of the other worker are changed."""

    count = 2

    def __init__(self, change: Callable[[Any], Any]):
        self.change = change

    def all_gather(self, what, value):
        return [value, self.change(copy.deepcopy(value))]


def changed(path: str, value: object) -> Two:
    def change(found):
        *above, last = path.split("/")
        inner = found
        for name in above:
            inner = inner[name]
        inner[last] = value
        return found

    return Two(change)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("versions/tensorflow", "2.20.0", r"worker 1: expected tensorflow 2\.\S+ as on worker 0, got 2\.20\.0"),
        ("versions/source files of kmha", "0", "expected source files of kmha [0-9a-f]{12} as on worker 0, got 0"),
        ("settings/train/seed", 3, "expected --train.seed 0 as on worker 0, got 3"),
        ("settings/encoder/num_heads", 8, "expected --encoder.num-heads unset as on worker 0, got 8"),
        ("devices", 4, "expected 1 devices as on worker 0, got 4"),
    ],
)  # fmt: skip
def test_message_names_the_difference(path, value, message):
    with pytest.raises(InputError, match=message):
        check_same_settings(changed(path, value), FitConfig(), 1)


def test_paths_may_differ_and_files_are_compared_by_content(tmp_path):
    one, two, third = (tmp_path / name for name in ("one.txt", "two.txt", "third.txt"))
    for path, text in ((one, "a"), (two, "a"), (third, "b")):
        path.write_text(text)

    def config(train, vocabulary):
        data, text = DataSection(train=train, sample="reviews"), TextSection(vocabulary=vocabulary)
        return FitConfig(out=tmp_path / vocabulary.name, resume=vocabulary == two, data=data, text=text)

    assert facts.shared_settings(config(one, one)) == facts.shared_settings(config(two, two))
    assert facts.shared_settings(config(one, one)) != facts.shared_settings(config(one, third))
    check_same_settings(Two(lambda found: found), config(one, one), 1)


def test_rows_are_compared_by_part(tmp_path):
    def data(name, train, test, seed=0):
        folder = tmp_path / name
        folder.mkdir()
        paths = [write_csv(folder / f"{part}.csv", rows) for part, rows in (("train", train), ("test", test))]
        config = FitConfig(data=DataSection(*paths[:1], test=paths[1]), train=TrainSection(seed=seed))
        return load_data(config, make_task(config.task, task_section(config)), folder)

    train, test = news_rows(30, 1), news_rows(6, 2)
    own = data("own", train, test)
    others: list[tuple[str, Any, str]] = [
        ("same", (train, test), ""),
        ("text", (train, news_rows(6, 3)), "expected the test rows of .*own/test.csv as on worker 0, got different"),
        ("label", ([*train[:-1], (train[-1][0], "food")], test), "expected the train rows of .*own/train.csv"),
        ("split", (train, test, 5), "expected the train rows of "),
    ]  # fmt: skip
    for name, other, message in others:
        found = row_digests(data(name, *other))
        coordinator = Two(lambda _, found=found: found)
        if not message:
            check_same_rows(coordinator, own)
            continue
        with pytest.raises(InputError, match=message):
            check_same_rows(coordinator, own)


def test_weights_are_compared_one_by_one():
    variables = [types.SimpleNamespace(path=f"layer/{i}", value=np.full(3, i, np.float32)) for i in range(3)]

    def other(found):
        found[1][1] = "another"
        return found

    check_same_weights(Two(lambda found: found), variables)
    check_same_weights(SINGLE_WORKER, variables)
    with pytest.raises(
        InputError, match="worker 1: expected the weights of layer/1 as on worker 0, got different weights"
    ):
        check_same_weights(Two(other), variables)

import mmap
import sys

import numpy as np
import pytest

from export.benchmark.loaders import LoadedModel
from export.benchmark.worker import CALLS_TO_WAKE, Stopwatch, peak_bytes, reset_peak, resident_bytes

linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report it exactly")
SIZE = 64_000_000
TEXTS = [b"a", b"b", b"c", b"d", b"e"]


def test_the_peak_is_at_least_the_resident_memory():
    assert peak_bytes() >= resident_bytes() > 1_000_000


@linux
def test_the_peak_includes_freed_memory_until_it_is_reset():
    before = resident_bytes()
    # mmap allocates from the system; malloc may reuse memory or retain it.
    with mmap.mmap(-1, SIZE) as block:
        np.frombuffer(block, np.uint8)[:] = 1
        assert resident_bytes() > before + 0.9 * SIZE
    assert peak_bytes() > before + 0.9 * SIZE
    reset_peak()
    assert peak_bytes() < before + 0.9 * SIZE


class Recorder:
    """A model that records its inputs."""

    def __init__(self):
        self.texts, self.ids = [], []
        self.timed = LoadedModel(self.from_ids, self.from_texts)

    def from_texts(self, texts):
        self.texts.append(list(texts))
        return np.zeros((len(texts), 1))

    def from_ids(self, token_ids, mask):
        self.ids.append((token_ids.tolist(), mask.tolist()))
        return np.zeros((len(token_ids), 1))


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def stopwatch(recorder):
    stopwatch = Stopwatch(recorder.timed)
    token_ids = np.arange(10, dtype=np.int32).reshape(5, 2)
    stopwatch.set_rows(TEXTS, token_ids, (token_ids > 2).astype(np.int32))
    return stopwatch


def test_a_round_takes_rows_in_turn_and_starts_over_at_the_end(recorder, stopwatch):
    stopwatch.round("texts", batch=2, first=3, calls=3)
    assert recorder.texts[CALLS_TO_WAKE:] == [[b"d", b"e"], [b"a", b"b"], [b"c", b"d"]]


def test_a_call_may_take_more_rows_than_there_are(recorder, stopwatch):
    stopwatch.round("texts", batch=7, first=4, calls=1)
    assert recorder.texts[-1] == [b"e", *TEXTS, b"a"]


def test_ids_and_masks_are_those_of_the_same_rows(recorder, stopwatch):
    stopwatch.round("ids", batch=2, first=0, calls=1)
    assert recorder.ids[-1] == ([[0, 1], [2, 3]], [[0, 0], [0, 1]])


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_only_the_requested_calls_are_timed(recorder, stopwatch, calls):
    found = stopwatch.round("texts", batch=1, first=0, calls=calls)
    assert len(found["seconds"]) == calls
    assert len(recorder.texts) == calls + CALLS_TO_WAKE
    assert min(found["seconds"]) >= 0 and found["cpu_seconds"] >= 0


def test_warming_up_runs_every_row_if_there_is_time(recorder, stopwatch):
    stopwatch.warm_up("texts", batch=1, seconds=60)
    assert [text for (text,) in recorder.texts] == TEXTS


def test_warming_up_without_time_is_three_calls(recorder, stopwatch):
    found = stopwatch.warm_up("ids", batch=1, seconds=0)
    assert len(recorder.ids) == 3
    assert set(found) == {"first_seconds", "least_seconds"}

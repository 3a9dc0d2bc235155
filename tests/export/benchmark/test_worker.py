import dataclasses
import importlib.util
import mmap
import sys

import numpy as np
import pytest

from export.benchmark.worker import (
    CALLS_TO_WAKE,
    LoadedModel,
    Stopwatch,
    loader,
    peak_bytes,
    reset_peak,
    resident_bytes,
)
from kmha.config import EncoderConfig
from kmha.errors import InputError

linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report it exactly")
SIZE = 64_000_000
TEXTS = [b"a", b"b", b"c", b"d", b"e"]
SIZES = {
    **dataclasses.asdict(EncoderConfig(50, 16, 2, 2, intermediate_dim=24, max_length=12)),
    "window": 0,
    "labels": 3,
}
peers = pytest.mark.parametrize("kind", ["keras_hub", "torch"])


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


def load(kind, **sizes):
    if importlib.util.find_spec(kind) is None:
        pytest.skip(f"{kind} is not installed")
    return loader(kind, kind)(kind, 1, {**SIZES, **sizes})


@peers
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_padding_does_not_change_the_probabilities_of_peers(kind, norm):
    model = load(kind, norm=norm)
    token_ids = np.array([[2, 7, 9, 3, 0, 0], [2, 8, 8, 8, 8, 3]], np.int32)
    mask = (token_ids > 0).astype(np.int32)
    both = model.from_ids(token_ids, mask)
    assert both.shape == (2, 3)
    assert both.sum(1) == pytest.approx(1, abs=1e-5)
    assert model.from_ids(token_ids[:1, :4], mask[:1, :4])[0] == pytest.approx(both[0], abs=1e-5)
    assert model.from_texts is None


@peers
def test_heads_that_do_not_fill_the_hidden_size_are_rejected(kind):
    with pytest.raises(InputError, match=f"^{kind}: expected heads that fill .* got 2 of 5 in 16$"):
        load(kind, head_dim=5)


@peers
def test_pruned_encoders_have_no_peers(kind):
    with pytest.raises(InputError, match=f"^{kind}: expected blocks of equal sizes, got those of a pruned"):
        load(kind, layer_sizes=((1, 24), (2, 9)))


@peers
def test_a_run_that_reads_windows_has_no_peers(kind):
    with pytest.raises(
        InputError, match=f"{kind}: expected a run that reads whole texts, got .* windows of 8 tokens"
    ):
        load(kind, window=8)

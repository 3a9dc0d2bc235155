import numpy as np
import pytest

from training.data.stratify import held_out, rarest_label


def one_label(labels: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(labels, np.int32), np.ones(len(labels), np.int32)


def distinct(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(count), np.arange(count)


def test_the_rarest_label_of_a_row():
    ids = np.array([0, 1, 0, 2, 0, 1], np.int32)
    counts = np.array([2, 0, 2, 1, 1], np.int32)
    assert rarest_label(ids, counts).tolist() == [1, -1, 2, 0, 1]


def test_rows_without_any_label():
    nothing = np.zeros(0, np.int32), np.zeros(10, np.int32)
    assert rarest_label(*nothing).tolist() == [-1] * 10
    assert held_out(*nothing, *distinct(10), 0.3, 0).sum() == 3


def test_a_small_share_of_many_small_labels_is_not_lost_to_rounding():
    labels = np.repeat(np.arange(50), 4).tolist()
    assert held_out(*one_label(labels), *distinct(200), 0.1, 0).sum() == 20


@pytest.mark.parametrize("fraction", [0.0, 1e-9, 0.5, 0.999999])
def test_each_label_keeps_a_row_and_one_row_is_held_out(fraction):
    labels = [0] * 3 + [1] * 30
    chosen = held_out(*one_label(labels), *distinct(33), fraction, 5)
    assert set(np.array(labels)[~chosen].tolist()) == {0, 1}
    assert chosen.any() == (fraction > 0)


def test_a_text_that_stands_very_often_does_not_use_up_the_share():
    sizes = np.array([500, *[1] * 500])
    starts = np.cumsum(sizes) - sizes
    for seed in range(10):
        chosen = held_out(*one_label([0] * 1000), np.arange(1000), starts, 0.1, seed)
        assert chosen.sum() == 100 and not chosen[:500].any()


def test_every_seed_reaches_every_row_now_and_then():
    labels = [0, 1] * 10
    times = sum(held_out(*one_label(labels), *distinct(20), 0.3, seed).astype(int) for seed in range(200))
    assert (np.asarray(times) > 30).all() and (np.asarray(times) < 90).all()


def test_a_label_that_would_be_held_out_whole_comes_back():
    # Label 2 stands with other labels only, on texts that count for label 0 or 1.
    ids = np.array([0, 2, 0, 2] + [0, 1] * 20, np.int32)
    counts = np.array([2, 2] + [1] * 40, np.int32)
    ids, counts = np.concatenate([ids, [0] * 3]).astype(np.int32), np.concatenate([counts, [1] * 3])
    for seed in range(50):
        chosen = held_out(ids, counts, *distinct(len(counts)), 0.5, seed)
        row_of = np.repeat(np.arange(len(counts)), counts)
        assert set(ids[~chosen[row_of]].tolist()) == {0, 1, 2}

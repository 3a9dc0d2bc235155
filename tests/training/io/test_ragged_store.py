import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from training.io.ragged_store import RaggedStore, RaggedStoreWriter

ROWS = [[3, 1, 4], [], [1], [5, 9, 2, 6], [], []]


def ragged_store_of(path: Path, rows: list[list[int]], dtype: DTypeLike = np.int32) -> RaggedStore:
    with RaggedStoreWriter(path, dtype) as writer:
        for row in rows:
            writer.append(np.array(row, dtype))
    return writer.close()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float64])
def test_rows_are_read_by_number(tmp_path, dtype):
    ragged_store = ragged_store_of(tmp_path / "s", ROWS, dtype)
    assert len(ragged_store) == len(ROWS)
    assert ragged_store.lengths.dtype == np.int32 and ragged_store.lengths.tolist() == [
        len(row) for row in ROWS
    ]
    for number, row in enumerate(ROWS):
        stored_row = ragged_store.read(number)
        assert stored_row.dtype == dtype and stored_row.tolist() == row


rows_of_numbers = st.lists(st.lists(st.integers(-100, 100), max_size=5), min_size=1, max_size=20)


@given(rows=rows_of_numbers, data=st.data())
def test_gather_returns_rows_in_the_requested_order(tmp_path_factory, rows, data):
    ragged_store = ragged_store_of(tmp_path_factory.mktemp("spool") / "s", rows)
    requested = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    flat, lengths = ragged_store.gather(np.array(requested, np.int64))
    assert lengths.dtype == np.int32 and lengths.tolist() == [len(rows[number]) for number in requested]
    assert flat.dtype == np.int32 and flat.tolist() == [each for number in requested for each in rows[number]]


def test_extend_and_append_write_the_same_files(tmp_path):
    ragged_store_of(tmp_path / "one", ROWS)
    with RaggedStoreWriter(tmp_path / "two", np.int32) as writer:
        writer.append(np.array(ROWS[0]))
        flat = np.array([each for row in ROWS[1:] for each in row])
        writer.extend(flat, np.array([len(row) for row in ROWS[1:]], np.int64))
    for suffix in ("", ".lengths.npy", ".offsets.npy", ".json"):
        assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()


@pytest.mark.parametrize("rows", [[], [[]], [[], []]])
def test_stores_without_elements(tmp_path, rows):
    ragged_store = ragged_store_of(tmp_path / "s", rows)
    flat, lengths = ragged_store.gather(np.arange(len(rows)))
    assert len(ragged_store) == len(lengths) == len(rows) and flat.shape == (0,)


def test_gather_without_rows(tmp_path):
    flat, lengths = ragged_store_of(tmp_path / "s", ROWS).gather(np.zeros(0, np.int64))
    assert flat.shape == lengths.shape == (0,) and flat.dtype == lengths.dtype == np.int32


@pytest.mark.parametrize("row", [-1, 6])
def test_a_row_out_of_range_raises(tmp_path, row):
    with pytest.raises(IndexError):
        ragged_store_of(tmp_path / "s", ROWS).read(row)


def test_a_closed_store_can_be_opened_again(tmp_path):
    ragged_store_of(tmp_path / "s", ROWS)
    again = RaggedStore.open(tmp_path / "s")
    assert [again.read(number).tolist() for number in range(len(again))] == ROWS


def test_many_threads_read_the_same_rows(tmp_path):
    random = np.random.default_rng(0)
    rows = [random.integers(0, 255, size).tolist() for size in random.integers(0, 50, 300)]
    ragged_store = ragged_store_of(tmp_path / "s", rows, np.uint8)
    orders = [random.permutation(300) for _ in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for order, (flat, _) in zip(orders, pool.map(ragged_store.gather, orders), strict=True):
            assert flat.tolist() == [each for number in order for each in rows[number]]


def test_an_error_while_writing_leaves_nothing(tmp_path):
    ragged_store_of(tmp_path / "s", ROWS)
    with pytest.raises(KeyError), RaggedStoreWriter(tmp_path / "s", np.int32) as writer:
        writer.append(np.array([1]))
        raise KeyError("stop")
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_store_cannot_be_opened(tmp_path):
    writer = RaggedStoreWriter(tmp_path / "s", np.int32)
    with pytest.raises(FileNotFoundError):
        RaggedStore.open(tmp_path / "s")
    assert len(writer.close()) == 0


def test_a_data_file_of_another_size_is_refused(tmp_path):
    ragged_store_of(tmp_path / "s", ROWS)
    (tmp_path / "s").write_bytes(b"\0" * 7)
    with pytest.raises(ValueError, match="expected 32 bytes, got 7"):
        RaggedStore.open(tmp_path / "s")
    assert json.loads((tmp_path / "s.json").read_text())["elements"] == 8


@pytest.mark.parametrize("lengths", [[1, 1], [4], [4, -1]])
def test_lengths_that_do_not_fit_the_elements_are_refused(tmp_path, lengths):
    with pytest.raises(ValueError), RaggedStoreWriter(tmp_path / "s", np.int32) as writer:
        writer.extend(np.array([1, 2, 3]), np.array(lengths))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("elements", [1, 10**6])
def test_a_disk_that_is_full_is_named(tmp_path, elements):
    path = tmp_path / "tokens"
    path.symlink_to("/dev/full")
    with (
        pytest.raises(OSError, match="No space left on device: '.*/tokens'"),
        RaggedStoreWriter(path, np.int32) as writer,
    ):
        writer.append(np.zeros(elements, np.int32))

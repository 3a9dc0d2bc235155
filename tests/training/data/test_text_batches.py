import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from kmha.features import PADDING_MASK, POSITION_IDS, SEGMENT_IDS, TOKEN_IDS
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary_training import train_vocabulary
from training.data.length_buckets import BatchPlan, plan_batches
from training.data.text_batches import BatchSource, pad, token_chunks, tokenize_examples
from training.io.examples import Example, write_examples
from training.io.ragged_store import RaggedStoreWriter

TEXTS = ["red green blue", "", "red red", "green blue red green blue red", "mauve blue"]


@pytest.fixture(scope="module")
def preprocessor() -> Preprocessor:
    vocabulary = train_vocabulary(["red green blue"] * 3, "word", 50, 1, True)
    return Preprocessor(vocabulary, "word", True, max_length=6)


def expected_ids(preprocessor: Preprocessor, text: str) -> list[int]:
    known = {word: preprocessor.vocabulary.id_of(word) for word in ("red", "green", "blue", "[CLS]", "[SEP]")}
    words = ["[CLS]", *text.split()[:4], "[SEP]"]
    return [known.get(word, preprocessor.unknown_id) for word in words]


def test_every_text_is_tokenized_once_in_order(tmp_path, preprocessor, monkeypatch):
    monkeypatch.setattr("training.data.text_batches.CHUNK_ROWS", 2)
    examples = write_examples((Example((t,), ("a",), "x:1") for t in TEXTS), tmp_path / "examples")
    ragged_store, counts = tokenize_examples(examples, preprocessor, tmp_path / "tokens")
    expected = [expected_ids(preprocessor, text) for text in TEXTS]
    assert [ragged_store.read(row).tolist() for row in range(len(ragged_store))] == expected
    assert ragged_store.dtype == np.int32
    assert (counts.rows, counts.tokens) == (5, sum(map(len, expected)))
    assert (counts.truncated_rows, counts.empty_rows, counts.unknown_tokens) == (1, 1, 1)


def test_a_text_truncated_by_bytes_counts_as_truncated(preprocessor):
    long = "x" * (preprocessor.max_bytes + 1)
    _, lengths, before = next(token_chunks(iter([[long, "red"]]), preprocessor).as_numpy_iterator())
    assert before.tolist() == [-1, 1]
    assert lengths.tolist() == [3, 3]


def test_pad():
    features = pad(np.array([5, 6, 7, 8], np.int32), np.array([1, 3]), rows=3, length=4, padding_id=9)
    assert features[TOKEN_IDS].tolist() == [[5, 9, 9, 9], [6, 7, 8, 9], [9, 9, 9, 9]]
    assert features[PADDING_MASK].tolist() == [[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert not features[SEGMENT_IDS].any()
    assert {value.dtype for value in features.values()} == {np.dtype(np.int32)}


ROWS = [[1], [2, 2], [3, 3, 3], [4], [5, 5]]


@pytest.fixture(scope="module")
def ragged_store(tmp_path_factory):
    with RaggedStoreWriter(tmp_path_factory.mktemp("spool") / "tokens", np.int32) as writer:
        for row in ROWS:
            writer.append(np.array(row))
        return writer.close()


def make_source(ragged_store, **options) -> BatchSource:
    rows = np.array([4, 2, 0, 1])
    targets = np.array([40, 20, 0, 10], np.int32)
    return BatchSource(ragged_store, rows, targets, np.array([0.4, 0.2, 0.1, 0.3], np.float32), 0, **options)


def test_a_batch_has_the_rows_of_its_plan(ragged_store):
    batch = make_source(ragged_store).batch(BatchPlan(np.array([3, 0]), length=4, capacity=3))
    assert batch["features"][TOKEN_IDS].tolist() == [[2, 2, 0, 0], [5, 5, 0, 0]]
    assert batch["targets"].tolist() == [10, 40]
    np.testing.assert_allclose(batch["weights"], [0.3, 0.4])


@pytest.mark.parametrize(
    ("options", "rows"),
    [({}, 3), ({"divisor": 2}, 4), ({"full_shapes": True}, 5), ({"full_shapes": True, "divisor": 2}, 6)],
)
def test_filler_rows_have_no_weight(ragged_store, options, rows):
    batch = make_source(ragged_store, **options).batch(BatchPlan(np.array([0, 1, 2]), length=3, capacity=5))
    assert {len(value) for value in (*batch["features"].values(), batch["targets"], batch["weights"])} == {
        rows
    }
    assert not batch["weights"][3:].any()
    assert not batch["features"][PADDING_MASK][3:].any()
    assert batch["weights"].dtype == np.float32


def test_several_labels_are_filled_too(ragged_store):
    source = BatchSource(
        ragged_store, np.array([0]), np.ones((1, 3), np.int32), np.ones(1, np.float32), 0, divisor=2
    )
    assert source.batch(BatchPlan(np.array([0]), 1, 1))["targets"].tolist() == [[1, 1, 1], [0, 0, 0]]


def test_the_dataset_is_the_batches_in_order(ragged_store):
    source = make_source(ragged_store, divisor=2)
    plans = plan_batches(source.lengths, [2, 3], 4, 2, np.random.default_rng(0))
    batches = list(source.dataset(plans).as_numpy_iterator())
    assert len(batches) == len(plans)
    for batch, plan in zip(batches, plans, strict=True):
        expected = source.batch(plan)
        np.testing.assert_array_equal(batch["features"][TOKEN_IDS], expected["features"][TOKEN_IDS])
        np.testing.assert_array_equal(batch["targets"], expected["targets"])
        np.testing.assert_array_equal(batch["weights"], expected["weights"])


def test_a_dataset_is_not_silently_empty_the_second_time(ragged_store):
    source = make_source(ragged_store)
    dataset = source.dataset(plan_batches(source.lengths, [3], 6, 2, None))
    assert len(list(dataset)) > 1
    with pytest.raises(tf.errors.UnknownError, match="not gone through before"):
        list(dataset)


def test_a_source_is_released_after_its_batches(ragged_store):
    """Each part of an epoch of large data is a source with its own open files."""
    references = []
    for _ in range(3):
        source = make_source(ragged_store)
        for _ in source.dataset(plan_batches(source.lengths, [3], 6, 2, None)):
            pass
        references.append(weakref.ref(source))
    del source
    gc.collect()
    assert [each() for each in references] == [None, None, None]


# The position of a token is its id modulo 100.
NUMBERED = [np.arange(length) + 100 * row for row, length in enumerate((2, 3, 12, 8))]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory) -> BatchSource:
    with RaggedStoreWriter(tmp_path_factory.mktemp("spool") / "tokens", np.int32) as writer:
        for row in NUMBERED:
            writer.append(row)
        rows = np.array([3, 2, 1, 0])
        return BatchSource(writer.close(), rows, np.arange(4), np.ones(4, np.float32), padding_id=9)


def remaining(source: BatchSource, rows: list[int]) -> list[list[int]]:
    """The tokens of each row of one batch; checks positions and padding."""
    length = int(source.lengths[rows].max())
    features = source.batch(BatchPlan(np.array(rows), length, len(rows)))["features"]
    found = []
    for each, ids, positions, mask in zip(
        rows, *(features[name] for name in (TOKEN_IDS, POSITION_IDS, PADDING_MASK)), strict=True
    ):
        count = int(source.lengths[each])
        assert mask.tolist() == [1] * count + [0] * (length - count)
        assert (ids[count:] == 9).all() and not positions[count:].any()
        assert (ids[:count] % 100 == positions[:count]).all()
        found.append(ids[:count].tolist())
    return found


def test_batches_leave_out_a_share_of_the_tokens_of_each_text(numbered):
    source = numbered.without_tokens(0.4, [0, 1])
    assert source.lengths.tolist() == [8 - 2, 12 - 4, 3, 2]
    for own, row in zip(remaining(source, [0, 1, 2, 3]), source.rows, strict=True):
        whole = NUMBERED[row].tolist()
        assert (own[0], own[-1]) == (whole[0], whole[-1])
        assert own == sorted(set(own)) and set(own) <= set(whole)


def test_the_remaining_tokens_depend_on_row_and_seed_only(numbered):
    first = numbered.without_tokens(0.4, [0, 1])
    together = remaining(first, [0, 1, 2])
    assert [remaining(first, [row])[0] for row in (0, 1, 2)] == together
    assert remaining(numbered.without_tokens(0.4, [0, 1]), [0, 1, 2]) == together
    others = [remaining(numbered.without_tokens(0.4, [0, epoch]), [0, 1]) for epoch in range(2, 30)]
    assert all(other != together[:2] for other in others)
    # Each of the ten inner tokens of the longest row remains about equally often.
    counts = np.bincount([token % 100 for other in others for token in other[1]], minlength=12)
    assert counts[[0, 11]].tolist() == [28, 28] and counts[1:11].min() > 8 and counts[1:11].max() < 26


def test_a_share_of_zero_leaves_out_no_token(numbered):
    assert numbered.without_tokens(0.0, [0]) is numbered

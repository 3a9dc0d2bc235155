from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pair_rows import paraphrase_rows
from training.config.config import TextSection
from training.data.inputs import Inputs, make_inputs
from training.data.length_buckets import computed_share
from training.data.pair_batches import FILLER_QUERY, PairPlan, PairSource, length_cells
from training.io.examples import Example, Subset, TrainingSet, write_examples
from training.io.ragged_store import RaggedStoreWriter
from training.tasks.match.task import MatchTask

TOKENS, ROWS = 96, 8


def ragged_store_of(path: Path, lengths: Sequence[int]):
    with RaggedStoreWriter(path, np.int32) as writer:
        for number, length in enumerate(lengths):
            writer.append(np.full(length, 10 + number))
        return writer.close()


def make_source(folder: Path, lengths, lists=None, **options) -> PairSource:
    """Pairs of texts of given lengths [R, inputs]; every token of a row is 10 plus its number."""
    lengths = np.asarray(lengths)
    inputs: list[Any] = [
        SimpleNamespace(ids=f"ids{i}", mask=f"mask{i}", text=i % 2, part=SimpleNamespace(padding_id=0))
        for i in range(lengths.shape[1])
    ]
    ragged_stores = [
        ragged_store_of(folder / f"tokens{i}", column) for i, column in enumerate(lengths.T.tolist())
    ]
    count = len(lengths)
    queries = np.zeros(count) if lists is None else np.asarray(lists)
    targets = np.stack([np.arange(count), queries], axis=1).astype(np.float32)
    rows = np.stack([np.arange(count)] * 2, axis=1)
    lists = None if lists is None else np.asarray(lists)
    return PairSource(inputs, ragged_stores, rows, targets, np.ones(count, np.float32), lists, **options)


def random_lengths(rng: np.random.Generator, rows: int, inputs: int = 2) -> np.ndarray:
    return rng.integers(2, [12, 40, 30, 90][:inputs], (rows, inputs))


def plans_of(source: PairSource, seed: int | None = 0, buckets=None) -> list[PairPlan]:
    rng = None if seed is None else np.random.default_rng(seed)
    return source.plans(buckets or source.buckets([], 8), TOKENS, ROWS, rng)


sizes = st.lists(st.integers(1, 12), min_size=1, max_size=20)


@given(sizes=sizes, inputs=st.sampled_from([2, 4]), seed=st.integers(0, 99), full=st.booleans())
def test_every_row_is_in_one_batch_that_holds_it(tmp_path_factory, sizes, inputs, seed, full):
    rng = np.random.default_rng(seed)
    source = make_source(
        tmp_path_factory.mktemp("pairs"), random_lengths(rng, sum(sizes), inputs), full_shapes=full
    )
    buckets = source.buckets([], 8)
    for plans in (plans_of(source, seed), plans_of(source, None)):
        assert sorted(np.concatenate([plan.rows for plan in plans])) == list(range(sum(sizes)))
        for plan in plans:
            assert np.all(source.input_lengths[plan.rows] <= plan.lengths)
            assert len(plan.rows) <= plan.capacity <= ROWS
            assert len(plan.rows) == 1 or len(plan.rows) * plan.row_tokens <= TOKENS
            # XLA compiles once per shape: there must not be more shapes than buckets.
            assert not full or plan.lengths in buckets


@given(sizes=sizes, seed=st.integers(0, 99), full=st.booleans(), divisor=st.integers(1, 3))
def test_lists_stay_whole_on_one_replica(tmp_path_factory, sizes, seed, full, divisor):
    rng = np.random.default_rng(seed)
    lists = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    source = make_source(
        tmp_path_factory.mktemp("lists"),
        random_lengths(rng, len(lists)),
        lists,
        full_shapes=full,
        divisor=divisor,
    )
    plans = plans_of(source, seed)
    assert sorted(np.concatenate([plan.rows for plan in plans])) == list(range(len(lists)))
    seen: list[int] = []
    for plan in plans:
        batch = source.batch(plan)
        count = len(batch["weights"])
        assert count % divisor == 0
        assert {len(value) for value in (*batch["features"].values(), batch["targets"])} == {count}
        places = np.flatnonzero(batch["weights"])
        assert sorted(batch["targets"][places, 0]) == sorted(plan.rows)
        # Rows have their own tokens at every position of the batch.
        np.testing.assert_array_equal(batch["features"]["ids0"][places, 0], 10 + batch["targets"][places, 0])
        numbers = lists[batch["targets"][places, 0].astype(int)]
        homes = {(number, place // (count // divisor)) for number, place in zip(numbers, places, strict=True)}
        assert len(homes) == len(set(numbers))
        seen += sorted(set(numbers))
        fillers = np.setdiff1d(np.arange(count), places)
        assert np.all(batch["targets"][fillers] == [0, FILLER_QUERY])
        assert not any(batch["features"][name][fillers].any() for name in ("ids0", "mask0", "ids1", "mask1"))
    assert sorted(seen) == list(range(len(sizes)))


def test_large_lists_are_distributed_evenly(tmp_path):
    source = make_source(tmp_path, np.full((8, 2), 3), [0, 0, 0, 0, 1, 1, 2, 2], divisor=2)
    batch = source.batch(PairPlan(np.arange(8), (3, 3), 8))
    assert len(batch["weights"]) == 8 and batch["weights"].all()
    assert batch["targets"][:, 1].tolist() == [0, 0, 0, 0, 1, 1, 2, 2]


def test_the_seed_determines_the_batches(tmp_path):
    source = make_source(tmp_path, random_lengths(np.random.default_rng(0), 60))
    first, same, other = (
        [(plan.rows.tolist(), plan.lengths) for plan in plans_of(source, seed)] for seed in (1, 1, 2)
    )
    assert first == same != other
    assert len(first) == len(other)


def test_without_a_seed_rows_keep_their_order(tmp_path):
    source = make_source(tmp_path, np.full((20, 2), 5))
    assert np.concatenate([plan.rows for plan in plans_of(source, None)]).tolist() == list(range(20))


@pytest.mark.parametrize("full", [False, True])
def test_rows_longer_than_any_bucket_get_a_length_of_their_own(tmp_path, full):
    source = make_source(tmp_path, [[3, 4], [30, 4], [4, 50], [3, 3]], full_shapes=full)
    plans = source.plans([(4, 4), (6, 8)], 40, 8, None)
    assert sorted(np.concatenate([plan.rows for plan in plans])) == [0, 1, 2, 3]
    for plan in plans:
        assert np.all(source.input_lengths[plan.rows] <= plan.lengths)
        # Two such long rows would be more tokens than a batch may have.
        assert len(plan.rows) == 1 or plan.row_tokens <= 20


@pytest.mark.parametrize(("buckets", "most"), [(8, 1.25), (16, 1.2)])
def test_pairs_of_short_and_long_texts_have_little_padding(tmp_path, buckets, most):
    rng = np.random.default_rng(0)
    lengths = np.stack([rng.integers(5, 16, 4000), rng.integers(10, 43, 4000)], axis=1)
    source = make_source(tmp_path, lengths)
    plans = source.plans(source.buckets([], buckets), 2048, 64, rng)
    assert computed_share(plans, source.lengths) < most
    compiled = make_source(tmp_path, lengths, full_shapes=True)
    cells = compiled.buckets([], buckets)
    assert len(cells) <= buckets
    plans = compiled.plans(cells, 2048, 64, rng)
    assert computed_share(plans, source.lengths) < 1.4
    assert len({(plan.lengths, plan.capacity) for plan in plans}) <= buckets


@given(
    rows=st.integers(1, 60), inputs=st.sampled_from([2, 4]), most=st.integers(1, 20), seed=st.integers(0, 99)
)
def test_cells_hold_all_rows(rows, inputs, most, seed):
    lengths = random_lengths(np.random.default_rng(seed), rows, inputs)
    cells = length_cells(lengths, most)
    assert len(cells) <= most and cells == sorted(cells)
    assert all(any(np.all(row <= cell) for cell in cells) for row in lengths)


def test_the_buckets_of_several_sources_hold_the_rows_of_all(tmp_path):
    short = make_source(tmp_path, [[3, 4], [4, 4]])
    long = make_source(tmp_path, [[9, 60]])
    cells = short.buckets([long], 8)
    assert all(any(np.all(np.less_equal(row, cell)) for cell in cells) for row in [(3, 4), (4, 4), (9, 60)])


@pytest.mark.parametrize(
    ("options", "count"),
    [({}, 3), ({"divisor": 2}, 4), ({"full_shapes": True}, 5), ({"full_shapes": True, "divisor": 2}, 6)],
)
def test_filler_rows_have_no_weight_and_no_query(tmp_path, options, count):
    source = make_source(tmp_path, [[3, 4]] * 5, **options)
    batch = source.batch(PairPlan(np.array([4, 0, 2]), (3, 4), 5))
    assert batch["targets"][:, 0].tolist() == [4, 0, 2, *[0] * (count - 3)]
    assert batch["targets"][3:, 1].tolist() == [FILLER_QUERY] * (count - 3)
    assert batch["weights"].tolist() == [1, 1, 1, *[0] * (count - 3)]
    assert batch["features"]["mask1"].sum() == 3 * 4 and batch["features"]["mask1"].shape == (count, 4)


def test_the_texts_of_a_pair_may_be_of_different_rows(tmp_path):
    source = make_source(tmp_path, [[2, 3], [4, 5]])
    source = PairSource(
        source.inputs, source.tokens, np.array([[0, 1], [1, 1]]), source.targets, source.weights
    )
    assert source.input_lengths.tolist() == [[2, 5], [4, 5]]
    (plan,) = plans_of(source, None)
    features = source.batch(plan)["features"]
    assert features["ids0"][:, 0].tolist() == [10, 11] and features["ids1"][:, 0].tolist() == [11, 11]


def test_the_dataset_is_the_batches_in_order(tmp_path):
    source = make_source(
        tmp_path, random_lengths(np.random.default_rng(0), 30), np.arange(30) // 3, divisor=2
    )
    plans = plans_of(source)
    batches = list(source.dataset(plans).as_numpy_iterator())
    assert len(batches) == len(plans)
    for batch, plan in zip(batches, plans, strict=True):
        expected = source.batch(plan)
        for name, value in (expected["features"] | {"targets": expected["targets"]}).items():
            np.testing.assert_array_equal((batch["features"] | {"targets": batch["targets"]})[name], value)


def tokenized(folder: Path, pairs, granularities=("wordpiece",)) -> Inputs:
    examples = write_examples((Example(pair, ("1",), "a:1") for pair in pairs), folder / "rows", num_texts=2)
    part = Subset(examples, np.arange(len(pairs)))
    text = TextSection(max_length=12, vocabulary_size=300, min_frequency=1)
    return make_inputs(text, {"train": part}, folder, MatchTask(granularities=granularities))


TEXTS = [
    "old bread",
    "",
    " ",
    "the ferry leaves the harbour at seven",
    "渡轮七点离开",
    "ＦＵＬＬ ﬁ",
    "x" * 200,
]


@pytest.fixture(scope="module", params=[("wordpiece",), ("char", "word")], ids="-".join)
def edge_case_inputs(request, tmp_path_factory) -> Inputs:
    return tokenized(
        tmp_path_factory.mktemp("edge_cases"), list(zip(TEXTS, TEXTS, strict=True)), request.param
    )


@given(rows=st.lists(st.tuples(*[st.integers(0, len(TEXTS) - 1)] * 2), min_size=1, max_size=9))
def test_features_are_those_of_the_preprocessor(edge_case_inputs, rows):
    training_set = TrainingSet(
        np.array(rows), np.zeros((len(rows), 2), np.float32), np.ones(len(rows), np.float32)
    )
    source: Any = edge_case_inputs.source("train", training_set)
    for plan in plans_of(source, None):
        expected = edge_case_inputs.preprocessor(
            *([TEXTS[rows[row][side]] for row in plan.rows] for side in (0, 1))
        )
        features = source.batch(plan)["features"]
        assert list(features) == list(expected) and len(features) == 4 * len(
            edge_case_inputs.preprocessor.parts
        )
        for name, value in expected.items():
            np.testing.assert_array_equal(features[name], value.numpy())


def test_different_ids_have_each_text_once(tmp_path):
    rows = [(a, b) for a, b, _ in paraphrase_rows(6, seed=0)]
    pairs = [*rows, rows[0], (rows[1][1], rows[0][0])]
    inputs = tokenized(tmp_path, pairs, ("char", "word"))
    source = inputs.evaluated("train", np.zeros((len(pairs), 2), np.float32))
    for granularity, part in enumerate(inputs.preprocessor.parts):
        shown = [tuple(row[row > 0]) for ids in source.different_ids(granularity) for row in ids]
        texts = {text for pair in rows for text in pair}
        rows_of_ids = part.add_special_tokens(part.tokenize(sorted(texts)))
        assert len(shown) == len(texts) and set(shown) == {tuple(row.numpy()) for row in rows_of_ids}

import dataclasses
import itertools
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis import strategies as st

from kmha.document_windows import WindowShape
from tests.training.tiny_runs import SETTINGS, make_source
from training.data.length_buckets import (
    GRANULE,
    BatchPlan,
    bucket_lengths,
    computed_share,
    plan_batches,
    shares,
)
from training.data.pair_batches import PairPlan
from training.engine.loop import epoch_plans

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=50).map(np.array)


def padded_tokens(lengths, buckets) -> int:
    return int(np.asarray(buckets)[np.searchsorted(buckets, lengths)].sum())


@given(LENGTHS, st.integers(1, 5))
def test_no_other_buckets_have_less_padding(lengths, most):
    buckets = bucket_lengths(lengths, most)
    longest = int(lengths.max())
    candidates = range(GRANULE, longest, GRANULE)
    best = min(
        padded_tokens(lengths, [*chosen, longest])
        for count in range(most)
        for chosen in itertools.combinations(candidates, min(count, len(candidates)))
    )
    assert padded_tokens(lengths, buckets) == best
    assert len(buckets) <= most
    assert buckets == sorted(set(buckets))
    assert buckets[-1] == longest
    assert all(length % GRANULE == 0 for length in buckets[:-1])


def test_buckets_by_hand():
    assert bucket_lengths(np.array([3, 3, 3, 30]), 2) == [4, 30]
    assert bucket_lengths(np.array([3, 3, 3, 30]), 1) == [30]
    assert bucket_lengths(np.array([16, 16]), 4) == [16]


PLANS = st.tuples(LENGTHS, st.integers(1, 4), st.integers(1, 200), st.integers(1, 9), st.integers(0, 9))


@given(PLANS)
def test_every_row_is_in_one_batch_that_holds_it_within_the_budget(drawn):
    lengths, most, batch_tokens, most_rows, seed = drawn
    buckets = bucket_lengths(lengths, most)
    plans = plan_batches(lengths, buckets, batch_tokens, most_rows, np.random.default_rng(seed))
    assert sorted(np.concatenate([plan.rows for plan in plans]).tolist()) == list(range(len(lengths)))
    for plan in plans:
        assert lengths[plan.rows].max() <= plan.length
        assert plan.length in buckets
        assert 1 <= len(plan.rows) <= plan.capacity <= most_rows
        assert plan.capacity * plan.length <= max(batch_tokens, plan.length)
    assert sum(len(plan.rows) < plan.capacity for plan in plans) <= 1
    assert len({(plan.length, plan.capacity) for plan in plans}) <= len(buckets)


@given(PLANS)
def test_every_epoch_has_as_many_batches_of_a_length(drawn):
    lengths, most, batch_tokens, most_rows, seed = drawn
    buckets = bucket_lengths(lengths, most)
    shapes = [
        sorted(
            (plan.length, len(plan.rows))
            for plan in plan_batches(lengths, buckets, batch_tokens, most_rows, rng)
        )
        for rng in (np.random.default_rng(seed), np.random.default_rng(seed + 1), None)
    ]
    assert shapes[0] == shapes[1] == shapes[2]


def plain(plans) -> list:
    return [(plan.rows.tolist(), plan.length, plan.capacity) for plan in plans]


def test_the_seed_determines_the_batches():
    lengths = np.random.default_rng(0).integers(1, 60, 100)
    buckets = bucket_lengths(lengths, 3)
    one, again, other = (
        plain(plan_batches(lengths, buckets, 128, 8, np.random.default_rng([seed, 4]))) for seed in (1, 1, 2)
    )
    assert one == again != other


def test_shuffling_mixes_rows_and_lengths():
    lengths = np.repeat([8, 16], 200)
    plans = plan_batches(lengths, [8, 16], 64, 8, np.random.default_rng(0))
    first_half = {plan.length for plan in plans[: len(plans) // 2]}
    assert first_half == {8, 16}
    assert any(np.diff(plan.rows).max() > 8 for plan in plans)


def test_without_a_generator_rows_keep_their_order():
    plans = plan_batches(np.array([3, 30, 4, 5, 31]), [8, 32], 16, 2, None)
    assert [plan.rows.tolist() for plan in plans] == [[0, 2], [3], [1], [4]]


def test_a_row_longer_than_every_bucket_is_refused():
    with pytest.raises(ValueError, match="expected rows of at most 8 tokens, got 9"):
        plan_batches(np.array([3, 9]), [8], 64, 8, None)


def test_computed_share():
    plans = plan_batches(np.array([4, 8, 8]), [8], 16, 2, None)
    assert computed_share(plans, np.array([4, 8, 8])) == pytest.approx(24 / 20)


SHAPES = st.integers(3, 20).flatmap(
    lambda length: st.builds(WindowShape, st.just(length), st.integers(0, length - 3))
)


@given(LENGTHS, st.integers(1, 3), SHAPES)
def test_no_other_buckets_of_rows_in_windows_compute_fewer_tokens(lengths, most, windows):
    buckets = bucket_lengths(lengths, most, windows)

    def computed(chosen) -> int:
        return int(windows.computed_tokens(np.asarray(chosen)[np.searchsorted(chosen, lengths)]).sum())

    longest = int(lengths.max())
    full = [
        length
        for length in range(windows.length, longest)
        if windows.count(length + 1) > windows.count(length)
    ]
    candidates = sorted({*range(GRANULE, min(longest, windows.length), GRANULE), *full} - {longest})
    best = min(
        computed([*chosen, longest])
        for count in range(most)
        for chosen in itertools.combinations(candidates, min(count, len(candidates)))
    )
    assert computed(buckets) == best
    assert len(buckets) <= most and buckets == sorted(set(buckets)) and buckets[-1] == longest


@given(PLANS, SHAPES)
def test_batches_of_rows_in_windows_stay_within_the_token_budget(drawn, windows):
    lengths, most, batch_tokens, most_rows, seed = drawn
    buckets = bucket_lengths(lengths, most, windows)
    plans = plan_batches(lengths, buckets, batch_tokens, most_rows, np.random.default_rng(seed), windows)
    assert sorted(np.concatenate([plan.rows for plan in plans]).tolist()) == list(range(len(lengths)))
    for plan in plans:
        assert lengths[plan.rows].max() <= plan.length
        assert plan.row_tokens == windows.count(plan.length) * min(plan.length, windows.length)
        assert plan.capacity * plan.row_tokens <= max(batch_tokens, plan.row_tokens)
    total = sum(len(plan.rows) * windows.computed_tokens(plan.length) for plan in plans)
    assert computed_share(plans, lengths) == pytest.approx(total / lengths.sum())


def weighty(batch: dict) -> int:
    return int((batch["weights"] > 0).sum())


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("full_shapes", [False, True])
def test_workers_read_every_row_once_an_epoch_and_only_their_own(tmp_path, count, full_shapes):
    """Rows come from disk; a worker without a row of a batch gets one of weight 0."""
    source = make_source(tmp_path)
    source.full_shapes = full_shapes
    lengths = source.buckets([], 2)
    for epoch in range(2):
        plans = epoch_plans(source, lengths, SETTINGS, epoch)
        own = [shares(source, plans, index, count) for index in range(count)]
        rows = [np.concatenate([plan.rows for plan in mine]) for mine in own]
        assert sorted(np.concatenate(rows)) == list(range(len(source.rows)))
        # All workers take part in each batch; together they have the rows of the whole batch.
        assert {len(mine) for mine in own} == {len(plans)}
        for plan, *parts in zip(plans, *own, strict=True):
            assert sorted(np.concatenate([part.rows for part in parts])) == sorted(plan.rows)
            batches = [source.batch(part) for part in parts]
            assert sum(map(weighty, batches)) == len(plan.rows)
            assert all(len(batch["weights"]) for batch in batches)
            if full_shapes:
                assert len({len(batch["weights"]) for batch in batches}) == 1


def test_a_worker_reads_only_its_share_from_disk(tmp_path, monkeypatch):
    source = make_source(tmp_path)
    plans = epoch_plans(source, source.buckets([], 2), SETTINGS, 0)
    read, gather = [], source.tokens.gather
    monkeypatch.setattr(source.tokens, "gather", lambda rows: read.extend(rows) or gather(rows))
    for plan in shares(source, plans, 1, 3):
        source.batch(plan)
    assert len(read) == len(set(read)) <= len(source.rows) // 3 + len(plans)


@given(
    sizes=some.lists(some.integers(1, 9), min_size=1, max_size=12), count=some.integers(1, 5), seed=some.integers(0, 9)
)  # fmt: skip
def test_lists_of_candidates_stay_whole(sizes, count, seed):
    lists = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    plan = PairPlan(np.arange(len(lists)), (8, 8), len(lists))
    source = types.SimpleNamespace(lists=lists)
    own = [shares(source, [plan], index, count)[0] for index in range(count)]
    assert sorted(np.concatenate([part.rows for part in own])) == list(range(len(lists)))
    homes = [set(lists[part.rows]) for part in own]
    assert sum(map(len, homes)) == len(sizes)
    assert all(part.capacity >= len(part.rows) for part in own)


def test_a_single_worker_has_all_rows():
    plan = BatchPlan(np.arange(5), 8, 6)
    (same,) = shares(types.SimpleNamespace(), [plan], 0, 1)
    assert dataclasses.asdict(same)["capacity"] == 6 and list(same.rows) == [0, 1, 2, 3, 4]

import dataclasses
import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.training.tiny_runs import SETTINGS, make_source
from training.data.length_buckets import BatchPlan
from training.data.pair_batches import PairPlan
from training.data.worker_shards import shares
from training.engine.loop import epoch_plans


def weighty(batch: dict) -> int:
    return int((batch["weights"] > 0).sum())


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("full_shapes", [False, True])
def test_workers_read_every_row_once_an_epoch_and_only_their_own(tmp_path, count, full_shapes):
    """Each from disk; a worker without a row of a batch gets one that weighs nothing."""
    source = make_source(tmp_path)
    source.full_shapes = full_shapes
    lengths = source.buckets([], 2)
    for epoch in range(2):
        plans = epoch_plans(source, lengths, SETTINGS, epoch)
        own = [shares(source, plans, index, count) for index in range(count)]
        rows = [np.concatenate([plan.rows for plan in mine]) for mine in own]
        assert sorted(np.concatenate(rows)) == list(range(len(source.rows)))
        # All take part in each batch, and of a batch each has rows that the whole batch has.
        assert {len(mine) for mine in own} == {len(plans)}
        for plan, *parts in zip(plans, *own, strict=True):
            assert sorted(np.concatenate([part.rows for part in parts])) == sorted(plan.rows)
            batches = [source.batch(part) for part in parts]
            assert sum(map(weighty, batches)) == len(plan.rows)
            assert all(len(batch["weights"]) for batch in batches)
            if full_shapes:
                assert len({len(batch["weights"]) for batch in batches}) == 1


def test_what_a_worker_reads_from_disk_is_its_share(tmp_path, monkeypatch):
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


def test_a_worker_alone_has_all():
    plan = BatchPlan(np.arange(5), 8, 6)
    (same,) = shares(types.SimpleNamespace(), [plan], 0, 1)
    assert dataclasses.asdict(same)["capacity"] == 6 and list(same.rows) == [0, 1, 2, 3, 4]

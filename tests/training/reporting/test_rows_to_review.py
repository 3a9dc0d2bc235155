import numpy as np

from training.reporting import rows_to_review


def test_large_data_is_sampled_from_all_splits(monkeypatch):
    parts = [np.arange(0, 3000, 3), np.arange(500)]
    assert all(one is other for one, other in zip(rows_to_review._sample(parts, 4), parts, strict=True))
    monkeypatch.setattr(rows_to_review, "MAX_PROBABILITIES", 1200)
    pool = rows_to_review._sample(parts, 4)
    assert sum(map(len, pool)) == 300
    for drawn, part in zip(pool, parts, strict=True):
        assert 0 < len(drawn) == len(set(drawn.tolist())) and set(drawn.tolist()) <= set(part.tolist())
    everywhere = np.arange(300)
    found = rows_to_review._in_splits(pool, everywhere)
    assert [number for number, _ in found] == [0] * len(pool[0]) + [1] * len(pool[1])
    assert [place for _, place in found] == np.concatenate(pool).tolist()

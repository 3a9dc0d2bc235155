import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.losses.pairs import in_batch_contrastive, listwise_softmax, triplet
from training.tasks.match.hard_negatives import teaching_rows

# Query 4: mixed; 7: one right; 2: one wrong; 5: two right; 9: two wrong; -1: fills the batch up.
VALUES = np.array([1.0, 0, 1, 0, 2, 1, 0, 0, 0], np.float32)
QUERIES = np.array([4, 4, 7, 2, 5, 5, 9, 9, -1])


@pytest.mark.parametrize(
    ("loss", "taught", "skipped"),
    [("triplet", {4}, 4), ("listwise", {4, 5}, 3), ("contrastive", {4, 5, 7}, 2)],
)
def test_by_hand(loss, taught, skipped):
    rows, skipped_queries = teaching_rows(VALUES, QUERIES, loss)
    assert set(QUERIES[rows]) == taught and set(QUERIES[~rows]).isdisjoint(taught)
    assert skipped_queries == skipped


def test_no_rows():
    rows, skipped = teaching_rows(np.zeros(0), np.zeros(0, int), "listwise")
    assert rows.shape == (0,) and rows.dtype == bool and skipped == 0


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 12), seed=st.integers(0, 999))
def test_the_losses_are_0_exactly_where_nothing_is_taught(rows, seed):
    generator = np.random.default_rng(seed)
    values = generator.integers(3, size=rows).astype(np.float32)
    queries = generator.integers(-1, 4, size=rows)
    values[queries < 0] = 0
    targets = np.stack([values, queries], axis=1).astype(np.float32)
    scores = generator.normal(size=(rows, 1)).astype(np.float32)
    losses = {
        "triplet": triplet(targets, scores, 20.0),
        "listwise": listwise_softmax(targets, scores),
        # Another real row makes every right one choose between two.
        "contrastive": in_batch_contrastive(
            np.concatenate([targets, [[0, 99]]]).astype(np.float32),
            np.zeros((rows + 1, rows + 1), np.float32),
        ),
    }
    for name, loss in losses.items():
        right_and_taught = teaching_rows(values, queries, name).rows & (values > 0)
        assert ((np.asarray(loss)[:rows] > 1e-6) == right_and_taught).all(), name


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="got 'hinge'"):
        teaching_rows(VALUES, QUERIES, "hinge")
    with pytest.raises(ValueError, match=r"\(9,\), \(2,\)"):
        teaching_rows(VALUES, QUERIES[:2], "triplet")

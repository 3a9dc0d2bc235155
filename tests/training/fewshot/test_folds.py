import numpy as np
import pytest

from training.fewshot.folds import averaged_folds, make_folds


def test_folds_are_stratified_and_keep_copies_of_a_text_together():
    labels = np.repeat([0, 1, 2], [30, 12, 2])
    texts = np.arange(44)
    texts[:3] = 0  # three copies of one text
    folds = make_folds(labels, texts, 3, seed=0)
    assert len(set(folds[:3])) == 1
    for label, least in ((0, 8), (1, 4)):
        assert np.bincount(folds[labels == label], minlength=3).min() >= least
    assert len(set(folds[labels == 2])) == 2
    assert np.array_equal(folds, make_folds(labels, texts, 3, seed=0))
    assert not np.array_equal(folds, make_folds(labels, texts, 3, seed=1))


def test_queries_with_a_right_candidate_are_in_each_fold():
    queries = np.repeat(np.arange(12), 4)
    # Right: the last candidate of the queries 0 to 2. A row without a label has the highest stratum.
    strata = np.ones(48, int)
    strata[[3, 7, 11]] = 0
    folds = make_folds(strata, queries, 3, seed=0)
    assert all(len(set(folds[queries == query])) == 1 for query in range(12))
    assert sorted(folds[[3, 7, 11]].tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [([0, 1, 0, 1, 0, 1], [0, 1, 2]), ([0, 0, 0, 0, 1, 0], [0, 2]), ([0, 0, 0, 1, 1, 1], [0, 1, 2])],
)
def test_folds_without_which_one_label_is_left_are_not_averaged(targets, expected):
    folds = np.array([0, 0, 2, 2, 1, 1])
    assert averaged_folds(np.array(targets), folds).tolist() == expected
    assert averaged_folds(np.eye(2, dtype=int)[targets], folds).tolist() == expected
    assert averaged_folds(np.array([0, 0, 1]), np.array([0, 0, 1])).tolist() == [0, 1]

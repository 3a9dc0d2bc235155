import numpy as np

from training.fewshot.contrastive import sample_batches
from training.fewshot.train import Candidate, best_candidate, make_folds


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


def test_batches_have_pairs_of_each_label_and_no_row_twice():
    memberships = np.eye(5, dtype=int)[np.repeat(np.arange(5), [1, 2, 8, 30, 9])]
    seen = set()
    for rows in sample_batches(memberships, 12, 40, np.random.default_rng(0)):
        assert len(rows) == len(set(rows)) <= 12
        counts = memberships[rows].sum(axis=0)
        assert all(count != 1 for count in counts[1:])
        seen.update(rows.tolist())
    assert seen == set(range(50))


def test_rows_of_several_labels_and_of_none_are_sampled():
    memberships = np.array([[1, 1], [0, 1], [0, 0], [1, 0], [0, 0]])
    seen = {
        row for rows in sample_batches(memberships, 4, 30, np.random.default_rng(0)) for row in rows.tolist()
    }
    assert seen == set(range(5))


def test_the_contrastive_stage_is_chosen_unless_the_probe_is_clearly_better():
    losses = np.array([1.0, 0.2, 0.7, 0.1, 0.9])
    probe = Candidate("probe", 1.0, np.zeros((5, 2)), losses)
    for difference, expected in ((0.3, "probe"), (-0.3, "contrastive")):
        other = Candidate("contrastive", 1.0, np.zeros((5, 2)), losses + difference)
        assert best_candidate([probe, other]).name == expected
    noisy = Candidate("contrastive", 1.0, np.zeros((5, 2)), losses + np.array([1.0, -0.9, 0.5, -0.6, 0.1]))
    assert noisy.loss > probe.loss and best_candidate([probe, noisy]).name == "contrastive"

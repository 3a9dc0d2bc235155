from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from training.fewshot.contrastive import sample_batches
from training.fewshot.train import (
    LAST_PASSES,
    Candidate,
    FewLabelTrainer,
    best_candidate,
    confident_texts,
    predicted_targets,
)


def test_a_head_that_reads_a_few_functions_of_the_vectors():
    random = np.random.default_rng(0)
    vectors = (5 + random.normal(size=(60, 4))).astype(np.float32)
    targets = (vectors[:, 0] > vectors[:, 1]).astype(np.int32)[:, None]
    trainer: Any = FewLabelTrainer.__new__(FewLabelTrainer)
    trainer.model, trainer.targets, trainer.weights = SimpleNamespace(num_labels=1), targets, np.ones(60)
    difference = np.array([[1], [-1], [0], [0]], np.float32)
    trainer.bases = [difference, np.eye(4, dtype=np.float32)]
    for basis in (0, 1):
        kernel, bias = trainer._head(vectors, np.arange(60), basis, 100.0)
        assert kernel.shape == (4, 1) and bias.shape == (1,)
        assert ((vectors @ kernel + bias > 0) == targets).mean() > 0.9
    assert trainer._head(vectors, np.arange(60), 0, 1.0)[0][2:].tolist() == [[0.0], [0.0]]


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


@pytest.mark.parametrize(("copies", "expected"), [(1, 10.0), (1000, 0.1)])
def test_few_rows_do_not_decide_on_an_extreme_strength(copies, expected):
    trainer: Any = FewLabelTrainer.__new__(FewLabelTrainer)
    trainer.bases, trainer._heads = [None], [(0, 0.1), (0, 10.0), (0, 100.0)]
    trainer.targets = np.tile(np.array([0, 1], np.int32), copies)
    trainer.predictable = np.ones(len(trainer.targets), bool)
    # The lowest strength has the lowest loss, by .02 a row.
    rows = np.array(
        [[[0.55, 0.0], [0.0, 0.55]], [[0.5, 0.0], [0.0, 0.5]], [[0.0, 2.0], [2.0, 0.0]]], np.float32
    )
    logits = np.tile(rows, (1, copies, 1))
    candidate = trainer._candidate("contrastive", logits, np.array([0.3, 0.2, 0.1]))
    assert candidate.strength == expected
    assert candidate.training_loss == {0.1: 0.3, 10.0: 0.2}[expected]
    # The strengths of centered vectors, which heads of pairs read, have no prior.
    trainer.bases = [np.eye(2)]
    assert trainer._candidate("contrastive", logits, np.zeros(3)).strength == 0.1


@pytest.mark.parametrize("name", ["probe", "contrastive"])
@pytest.mark.parametrize("times", [1.0, 3.0, 1e-4])
def test_the_head_of_a_trained_encoder_has_the_training_loss_of_the_folds(name, times):
    random = np.random.default_rng(0)
    targets = np.arange(40, dtype=np.int32) % 3
    vectors = (np.eye(8)[targets] + random.normal(size=(40, 8))).astype(np.float32)
    trainer: Any = FewLabelTrainer.__new__(FewLabelTrainer)
    trainer.targets, trainer.weights, trainer.bases = targets, random.uniform(0.5, 2, 40), [None]
    trainer._heads = [(0, strength) for strength in (0.1, 1.0, 10.0, 100.0)]
    variables = SimpleNamespace(kernel=tf.Variable(tf.zeros((8, 3))), bias=tf.Variable(tf.zeros(3)))
    trainer.model = SimpleNamespace(num_labels=3, head=variables)
    rows = np.arange(40)
    loss = times * trainer._training_loss(trainer._head(vectors, rows, 0, 10.0), vectors, rows)
    candidate = Candidate(name, 10.0, np.zeros((40, 3)), np.zeros(40), loss)
    trainer.assign_head(candidate, vectors)
    found = trainer._training_loss((variables.kernel.numpy(), variables.bias.numpy()), vectors, rows)
    if name == "probe" or times == 1:
        assert candidate.strength == pytest.approx(10.0, rel=0.06)
    elif times == 3:
        assert 0.1 < candidate.strength < 10 and found == pytest.approx(loss, rel=0.05)
    else:
        # No strength has a loss that is as low.
        assert candidate.strength == 100.0 and found > loss


def test_the_contrastive_stage_is_chosen_unless_the_probe_is_clearly_better():
    losses = np.array([1.0, 0.2, 0.7, 0.1, 0.9])
    probe = Candidate("probe", 1.0, np.zeros((5, 2)), losses)
    for difference, expected in ((0.3, "probe"), (-0.3, "contrastive")):
        other = Candidate("contrastive", 1.0, np.zeros((5, 2)), losses + difference)
        assert best_candidate([probe, other]).name == expected
    noisy = Candidate("contrastive", 1.0, np.zeros((5, 2)), losses + np.array([1.0, -0.9, 0.5, -0.6, 0.1]))
    assert noisy.loss > probe.loss and best_candidate([probe, noisy]).name == "contrastive"


def test_pseudo_labels_are_chosen_unless_they_raise_the_loss():
    losses = np.array([1.0, 0.2, 0.7, 0.1, 0.9])
    probe, contrastive = (
        Candidate(name, 1.0, np.zeros((5, 2)), losses + more)
        for name, more in (("probe", 0.5), ("contrastive", 0.0))
    )
    for difference, expected in ((-1e-3, "pseudo-labels"), (0.0, "pseudo-labels"), (1e-3, "contrastive")):
        texts = Candidate("pseudo-labels", 1.0, np.zeros((5, 2)), losses + difference)
        assert best_candidate([probe, contrastive, texts]).name == expected
        assert best_candidate([contrastive, texts]).name == expected


def test_the_confident_half_of_each_predicted_label_is_selected():
    logits = np.array([[4, 0], [3, 0], [1, 0], [2, 0], [0, 0.1], [0, 0.3], [0, 0.2]], np.float32)
    targets = predicted_targets(logits, several=False)
    assert targets.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert confident_texts(logits, targets).tolist() == [0, 1, 5, 6]


def test_confident_texts_of_several_labels():
    logits = np.array([[-9, -9, -9], [3, 3, -3], [3, 2, -2], [-5, -5, 0.1]], np.float32)
    targets = predicted_targets(logits, several=True)
    # The first has no label; of the two of the same labels the more confident one is selected.
    rows = confident_texts(logits, targets)
    assert rows.tolist() == [1, 3] and targets[rows].tolist() == [[1, 1, 0], [0, 0, 1]]
    assert confident_texts(logits[:1], targets[:1]).tolist() == []


def trained_with_texts(trainer_targets, rows, without_fold, is_averaged=True, agreed=None):
    """A training with pseudo-labels: rows, their targets, recorded predictions, start, and whether it joins the mean.

    The texts are 5, 6 and 7. The label of row 4 would decide on text 7.
    """
    vectors = np.array(
        [[1, 0], [0.9, 0], [0, 1], [0, 0.9], [0.6, 0.3], [0, 0.8], [0.1, 1], [0.6, 0.3]], np.float32
    )
    trainer: Any = FewLabelTrainer.__new__(FewLabelTrainer)
    trainer.model, trainer.bases = SimpleNamespace(num_labels=2), [None]
    trainer.targets, trainer.weights = np.array(trainer_targets, np.int32), np.ones(5, np.float32)
    texts = np.zeros((3, *trainer.targets.shape[1:]), np.int32)
    trainer.joined = SimpleNamespace(targets=np.concatenate([trainer.targets, texts]))
    trainer.source, trainer.vectors = None, lambda *_: vectors
    joined, selected, recorded, found = [], [], [], []
    trainer.stage = SimpleNamespace(
        fold_steps=lambda rows: 1,
        fold_rate_factor=lambda rows: 1.0,
        num_steps=lambda rows, passes: 1,
        train=lambda rows, steps, rate_factor, done, start: (
            joined.extend(rows.tolist()) or found.append(start)
        ),
    )

    def run(steps, train, encode, joins_mean):
        train(0)
        found.append(joins_mean)

    def record_predictions(targets):
        recorded.append(targets.tolist())
        return agreed

    trainings: Any = SimpleNamespace(
        run=run,
        record_selected_texts=selected.extend,
        selected_texts=lambda: selected,
        record_predictions=record_predictions,
        mean_weights=lambda: "mean of the folds",
    )
    trainer.train_encoder("pseudo-labels", np.arange(rows), trainings, without_fold, is_averaged)
    return joined, trainer.joined.targets[joined].tolist(), recorded, *found


@pytest.mark.parametrize("held_out_label", [0, 1])
def test_held_out_labels_decide_no_pseudo_label(held_out_label):
    # Of the texts 5, 6 and 7, the confident half of each label joins the rows of the other folds.
    targets = [0, 0, 1, 1, held_out_label]
    expected = [0, 1, 2, 3, 6, 7], [0, 0, 1, 1, 1, 0]
    assert trained_with_texts(targets, 4, without_fold=True) == (*expected, [[1, 1, 0]], None, False)
    assert trained_with_texts(targets, 4, without_fold=True, is_averaged=False) == (
        *expected,
        [],
        None,
        False,
    )


def test_texts_join_all_rows_if_all_models_predict_the_same_label():
    agreed = np.array([False, True, True])
    found = trained_with_texts([0, 0, 1, 1, 0], 5, without_fold=False, agreed=agreed)
    expected = [0, 1, 2, 3, 4, 6, 7], [0, 0, 1, 1, 0, 1, 0]
    assert found == (*expected, [[1, 1, 0]], "mean of the folds", False)
    # Without such texts the encoder is not trained again.
    found = trained_with_texts([0, 0, 1, 1, 0], 5, without_fold=False, agreed=np.zeros(3, bool))
    assert found == ([], [], [[1, 1, 0]], False)
    # With several labels, texts without a label are left out.
    several = [[0, 0], [0, 0], [0, 1], [0, 1], [0, 0]]
    joined, targets, recorded, *_ = trained_with_texts(several, 5, without_fold=False, agreed=agreed)
    assert joined == [0, 1, 2, 3, 4, 6] and targets[-1] == [0, 1] and recorded == [[[0, 1], [0, 1], [0, 0]]]


def _trained(name, without_fold, is_averaged):
    """Steps, factor of the learning rate and start of a training, and whether it joins the mean."""
    trainer: Any = FewLabelTrainer.__new__(FewLabelTrainer)
    found = []
    trainer.stage = SimpleNamespace(
        num_steps=lambda rows, passes: passes,
        fold_steps=lambda rows: 5,
        fold_rate_factor=lambda rows: 2.0,
        train=lambda rows, steps, rate_factor, done, weights: found.extend([steps, rate_factor, weights]),
    )

    def run(steps, train, encode, joins_mean):
        train(0)
        found.append(joins_mean)

    trainings = SimpleNamespace(run=run, mean_weights=lambda: "mean of the folds")
    trainer.train_encoder(name, np.arange(4), trainings, without_fold, is_averaged)
    return tuple(found)


def test_the_training_on_all_rows_starts_from_the_mean_of_those_without_a_fold():
    assert _trained("contrastive", True, True) == (5, 2.0, None, True)
    assert _trained("contrastive", True, False) == (5, 2.0, None, False)
    assert _trained("contrastive", False, True) == (LAST_PASSES, 1.0, "mean of the folds", False)


@pytest.mark.parametrize(
    ("targets", "labels", "loss", "expected"),
    [
        ([0, 1, 2, 3] * 2, 4, 0.25 * np.log(4), 0.5),
        ([0, 1, 2, 3] * 2, 4, 0.5 * np.log(4), 0.0),
        ([0, 1, 2, 3] * 2, 4, 0.9 * np.log(4), 0.0),
        ([0, 1, 2, 3] * 25, 4, 0.9 * np.log(4), 0.5),
        ([0, 0, 0, 0], 2, 0.1, 0.0),
        ([[1, 0, 1], [0, 0, 1]], 3, 0.25 * np.log(2) / 3, 0.5),
        ([0, 1, 2, 3] * 2, 9, 0.9 * np.log(4), 0.5),
        ([[1, 0, 1] + 9 * [0], [0, 0, 1] + 9 * [0]], 12, 0.9 * np.log(2) / 12, 0.0),
    ],
)
def test_many_rows_or_labels_and_those_that_are_easy_to_predict_give_the_folds_a_share(
    targets, labels, loss, expected
):
    trainer: Any = FewLabelTrainer.__new__(FewLabelTrainer)
    trainer.targets = np.array(targets)
    trainer.predictable = np.ones(len(targets), bool)
    trainer.model = SimpleNamespace(num_labels=labels)
    candidate: Any = SimpleNamespace(loss=loss)
    assert trainer.share_of_folds(candidate) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("share", "expected"), [(0.25, [2.0, 6.0]), (0.0, None)])
def test_the_encoder_is_averaged_with_those_of_the_folds_by_their_share(share, expected):
    trainer: Any = FewLabelTrainer.__new__(FewLabelTrainer)
    weights = []
    trainer.stage = SimpleNamespace(variables=[np.array([1.0, 5.0])], reset=weights.extend)
    trainer.share_of_folds = lambda candidate: share
    trainer.source, trainer.vectors = None, lambda source: "new vectors"
    trainings: Any = SimpleNamespace(mean_weights=lambda: [np.array([5.0, 9.0])])
    candidate: Any = SimpleNamespace(name="contrastive")
    found = trainer.average_with_folds(candidate, "old vectors", trainings)
    assert found == ("old vectors" if expected is None else "new vectors")
    assert [each.tolist() for each in weights] == ([] if expected is None else [expected])

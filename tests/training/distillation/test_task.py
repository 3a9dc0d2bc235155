import numpy as np
import pytest

from training.distillation.task import DistillationTargets

ANSWERS = np.arange(15, dtype=np.float32).reshape(5, 3)
ORDER = np.array([2, 0, 1])


def test_targets_have_labels_and_teacher_outputs():
    targets = DistillationTargets(np.array([7, 8, 9], np.int32), ANSWERS, ORDER)
    assert targets.shape == (5, 5) and len(targets) == 5 and targets.dtype == np.float32
    assert targets[np.array([4, 1])].tolist() == [[0, 0, 14, 12, 13], [8, 1, 5, 3, 4]]
    assert targets[2:4].tolist() == [[9, 1, 8, 6, 7], [0, 0, 11, 9, 10]]
    assert targets[np.array([], int)].shape == (0, 5)


def test_rows_without_labels_have_the_filler():
    labels = np.array([[1, 4]], np.float32)
    targets = DistillationTargets(labels, ANSWERS[:2], ORDER, np.array([0, -1], np.float32))
    assert targets[:2].tolist() == [[1, 4, 1, 2, 0, 1], [0, -1, 0, 5, 3, 4]]


@pytest.mark.parametrize("axes", [(), (2,)], ids=["rows", "words"])
@pytest.mark.parametrize(
    "labels",
    [np.array([0, 2, 1], np.int32), np.array([[0, 1], [1, 1], [1, 0]], np.int32)],
    ids=["one", "several"],
)
def test_batch_is_split_into_its_parts(labels, axes):
    targets = DistillationTargets(labels, ANSWERS[:3], ORDER)
    batch = targets[np.arange(3)]
    batch = np.stack([batch, batch], axis=1) if axes else batch
    found, labelled, answers = targets.parts(batch)
    assert found.dtype == "int32"
    if axes:
        found, labelled, answers = found[:, 1], labelled[:, 1], answers[:, 1]
    np.testing.assert_array_equal(found, labels)
    np.testing.assert_array_equal(labelled, [1, 1, 1])
    np.testing.assert_array_equal(answers, ANSWERS[:3][:, ORDER])

"""Losses between the predictions of student and teacher, one value per row, float32 [B]; 0 if they are equal.

All but `squared_distance` are Kullback-Leibler divergences of the softened predictions, times the temperature squared,
so that their gradients are as large as those of the labels.

Source: Hinton et al. 2015, section 2, arXiv:1503.02531.
"""

import keras
from keras import ops

from kmha.layers.crf import FORBIDDEN, Potentials, expected_counts, fold_boundaries, log_partition


def softmax_divergence(teacher, student, temperature: float):
    """Divergence for one label per row, from logits float32 [B, C]."""
    teacher = ops.log_softmax(teacher / temperature, axis=-1)
    student = ops.log_softmax(student / temperature, axis=-1)
    return temperature**2 * ops.sum(ops.exp(teacher) * (teacher - student), axis=-1)


def sigmoid_divergence(teacher, student, temperature: float):
    """Divergence for several labels per row, summed over the labels, from logits float32 [B, C]."""
    teacher, student = teacher / temperature, student / temperature
    softplus = keras.activations.softplus
    each = softplus(student) - softplus(teacher) + ops.sigmoid(teacher) * (teacher - student)
    return temperature**2 * ops.sum(each, axis=-1)


def squared_distance(teacher, student, temperature: float = 1.0):
    """Squared distance of scores float32 [B, 1] that are not logits; the temperature has no effect."""
    return ops.sum(ops.square(student - teacher), axis=-1)


def chain_divergence(teacher: Potentials, student: Potentials, temperature: float):
    """Divergence of the tag sequences, exact over all paths, divided by the words; 0 for a sentence without words.

    Both have the same forbidden tags. The cost is similar to that of the label loss.
    """
    teacher, student = (softened(each, temperature) for each in (teacher, student))
    total, tags, pairs = map(ops.stop_gradient, expected_counts(teacher))
    teacher_scores, mask = fold_boundaries(teacher)
    student_scores, _ = fold_boundaries(student)
    # The teacher's expectation of the difference between both scores of a path.
    lead = ops.sum(tags * (teacher_scores - student_scores), axis=(1, 2))
    lead += ops.sum(pairs * (teacher.transitions - student.transitions), axis=(1, 2))
    words = ops.maximum(ops.sum(mask, axis=1), 1.0)
    return temperature**2 * (lead - total + log_partition(student)) / words


def softened(potentials: Potentials, temperature: float) -> Potentials:
    """The potentials divided by the temperature, except forbidden ones."""

    def divided(values):
        return ops.where(values <= FORBIDDEN / 2, FORBIDDEN, values / temperature)

    return potentials._replace(
        emissions=potentials.emissions / temperature,
        transitions=divided(potentials.transitions),
        start=divided(potentials.start),
        end=divided(potentials.end),
    )

"""How far a model's answers are from its teacher's: one number a row, 0 where they are the same.

All but `squared_distance` are Kullback-Leibler divergences of the student's answers from the teacher's, both softened
by a temperature, times the temperature squared, so that their gradients stay as large as those of the labels.

Source: Hinton et al. 2015, §2, arXiv:1503.02531.
"""

import keras
from keras import ops

from kmha.layers.crf import FORBIDDEN, Potentials, fold_boundaries
from kmha.layers.crf_likelihood import expected_counts, log_partition


def softmax_divergence(teacher, student, temperature: float):
    """Of one answer out of several.

    Args:
        teacher: Logits float32 [B, C].
        student: Logits float32 [B, C].
        temperature: Divides both, above 0.

    Returns:
        float32 [B], in nats.
    """
    wanted = ops.log_softmax(teacher / temperature, axis=-1)
    given = ops.log_softmax(student / temperature, axis=-1)
    return temperature**2 * ops.sum(ops.exp(wanted) * (wanted - given), axis=-1)


def sigmoid_divergence(teacher, student, temperature: float):
    """Of several answers of yes or no, summed over them.

    Args:
        teacher: Logits float32 [B, C].
        student: Logits float32 [B, C].
        temperature: Divides both, above 0.

    Returns:
        float32 [B], in nats.
    """
    wanted, given = teacher / temperature, student / temperature
    softplus = keras.activations.softplus
    each = softplus(given) - softplus(wanted) + ops.sigmoid(wanted) * (wanted - given)
    return temperature**2 * ops.sum(each, axis=-1)


def squared_distance(teacher, student, temperature: float = 1.0):
    """Of scores that are no logits; the temperature does nothing.

    Args:
        teacher: Scores float32 [B, 1].
        student: Scores float32 [B, 1].
        temperature: Any.

    Returns:
        float32 [B], in the unit of the scores squared.
    """
    return ops.sum(ops.square(student - teacher), axis=-1)


def chain_divergence(teacher: Potentials, student: Potentials, temperature: float):
    """Of the tags of a whole sentence, exact over all paths, a word.

    Only sums over the teacher's paths are needed, and they carry no gradient: it costs about what the loss of the
    labels does.

    Args:
        teacher: Of B sentences.
        student: Of the same sentences, with the same words and the same forbidden tags.
        temperature: Divides both, above 0.

    Returns:
        float32 [B], in nats a word; 0 for a sentence of no words.
    """
    teacher, student = (softened(each, temperature) for each in (teacher, student))
    total, tags, pairs = map(ops.stop_gradient, expected_counts(teacher))
    wanted, mask = fold_boundaries(teacher)
    given, _ = fold_boundaries(student)
    # What the teacher expects of the difference between both scores of a path.
    lead = ops.sum(tags * (wanted - given), axis=(1, 2))
    lead += ops.sum(pairs * (teacher.transitions - student.transitions), axis=(1, 2))
    words = ops.maximum(ops.sum(mask, axis=1), 1.0)
    return temperature**2 * (lead - total + log_partition(student)) / words


def softened(potentials: Potentials, temperature: float) -> Potentials:
    """The potentials divided by the temperature; what is forbidden stays so."""

    def divided(values):
        return ops.where(values <= FORBIDDEN / 2, FORBIDDEN, values / temperature)

    return potentials._replace(
        emissions=potentials.emissions / temperature,
        transitions=divided(potentials.transitions),
        start=divided(potentials.start),
        end=divided(potentials.end),
    )

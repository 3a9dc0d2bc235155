"""Losses of vectors of a batch that compare all of its rows, so that each encoded text serves in many pairs."""

from keras import ops

from kmha.layers.attention_parts import MASKED_SCORE
from kmha.layers.comparison import unit_vectors

# See docs/decisions/016-few-labels.md.
MAX_COSINE_LABELS = 8
TEMPERATURE = 0.1


def contrastive_loss(targets, vectors, num_labels: int):
    """`supervised_contrastive_loss` if a text has one label of more than eight, else `cosine_loss`.

    Args:
        targets: Label ids int [B], or with several labels of a row 0 or 1, [B, C].
        vectors: float [B, D].
        num_labels: Labels of the model.

    Returns:
        float32 [B].
    """
    loss = supervised_contrastive_loss if has_many_exclusive_labels(targets, num_labels) else cosine_loss
    return loss(targets, vectors)


def has_many_exclusive_labels(targets, num_labels: int) -> bool:
    """Whether a text has one label of more than eight; targets as in `contrastive_loss`."""
    return len(targets.shape) == 1 and num_labels > MAX_COSINE_LABELS


def label_overlap(targets):
    """Similarity of the labels of every two rows, float32 [B, B]: 1 for the same labels (or none), 0 for no common one.

    Args:
        targets: Label ids int [B], or with several labels 0 or 1, [B, C]; then the overlap is the Jaccard index.
    """
    if len(targets.shape) == 1:
        return ops.cast(ops.equal(targets[:, None], targets[None, :]), "float32")
    targets = ops.cast(targets, "float32")
    both = ops.matmul(targets, ops.transpose(targets))
    counts = ops.sum(targets, axis=1)
    either = counts[:, None] + counts[None, :] - both
    return ops.where(either > 0, both / ops.maximum(either, 1.0), 1.0)


def cosine_loss(targets, vectors):
    """Mean squared difference between the cosine of two vectors and the overlap of their labels.

    Pairs with a common label and pairs without have half of the weight each, as if the rarer kind were oversampled.

    Args:
        targets: As in `label_overlap`.
        vectors: float [B, D].

    Returns:
        float32 [B], each row's part of the loss; their mean is the loss of the batch.

    Source: SetFit, Tunstall et al. 2022, section 3.1, arXiv:2209.11055.
    """
    cosines, others = _compared_rows(vectors)
    overlap = label_overlap(targets)
    errors = ops.square(cosines - overlap)
    near = ops.cast(overlap > 0, "float32") * others
    far = ops.cast(overlap == 0, "float32")
    parts = [0.5 * ops.sum(errors * kind, axis=1) / ops.maximum(ops.sum(kind), 1.0) for kind in (near, far)]
    return ops.cast(ops.shape(vectors)[0], "float32") * (parts[0] + parts[1])


def supervised_contrastive_loss(targets, vectors):
    """Cross-entropy of finding the rows of the same label among all other rows, by the cosine of their vectors.

    Args:
        targets: Label ids, int [B].
        vectors: float [B, D].

    Returns:
        float32 [B]; 0 for a row whose label no other row has.

    Source: Khosla et al. 2020, equation 2, arXiv:2004.11362.
    """
    cosines, others = _compared_rows(vectors)
    # A finite number: a batch of one row has no other rows.
    logits = ops.where(others > 0, cosines / TEMPERATURE, MASKED_SCORE)
    log_shares = logits - ops.logsumexp(logits, axis=1, keepdims=True)
    near = label_overlap(targets) * others
    return -ops.sum(near * log_shares, axis=1) / ops.maximum(ops.sum(near, axis=1), 1.0)


def _compared_rows(vectors):
    """Cosines of every two rows, float32 [B, B], and 1 for two different rows, 0 for a row and itself."""
    unit = ops.cast(unit_vectors([vectors]), "float32")
    others = 1.0 - ops.eye(ops.shape(vectors)[0], dtype="float32")
    return ops.matmul(unit, ops.transpose(unit)), others

"""Losses of vectors of a batch that compare all of its rows.

Source: pairs of labeled texts with a cosine target: SetFit, Tunstall et al. 2022, section 3.1, arXiv:2209.11055. Here
all pairs of a batch are compared, so that each encoded text serves in many pairs.
"""

from keras import ops

from kmha.layers.comparison import unit_vectors


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
    """
    unit = ops.cast(unit_vectors([vectors]), "float32")
    overlap = label_overlap(targets)
    errors = ops.square(ops.matmul(unit, ops.transpose(unit)) - overlap)
    others = 1.0 - ops.eye(ops.shape(vectors)[0], dtype="float32")
    near = ops.cast(overlap > 0, "float32") * others
    far = ops.cast(overlap == 0, "float32")
    parts = [0.5 * ops.sum(errors * kind, axis=1) / ops.maximum(ops.sum(kind), 1.0) for kind in (near, far)]
    return ops.cast(ops.shape(vectors)[0], "float32") * (parts[0] + parts[1])

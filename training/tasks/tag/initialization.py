"""Where a tagger starts: at how often tags stand, and stand side by side, in the training rows."""

from typing import Any

import numpy as np

# Added to every count, so that what the rows lack stays possible.
ADDED = 0.5


def start_from_counts(model: Any, tag_ids: np.ndarray, lengths: np.ndarray) -> None:
    """Sets the head's bias to the shares of the tags, and a CRF's weights to how much more often tags are neighbours.

    Adam moves a weight by little more than the learning rate a step: from zero, what never stands side by side would
    not be known within a training of some hundred steps.

    Args:
        model: A built `SequenceTagger`.
        tag_ids: int32 [N], of all words, one sentence after another.
        lengths: Words of each sentence, integers [R], 1 or more each; their sum is N.
    """
    count = model.num_labels
    words = np.bincount(tag_ids, minlength=count) + ADDED
    shares = words / words.sum()
    model.head.bias.assign(np.log(shares).astype(np.float32))
    if not model.crf.trainable:
        return
    ends = np.cumsum(lengths)
    inside = np.ones(len(tag_ids), bool)
    inside[ends - 1] = False
    pairs = np.bincount(tag_ids[:-1][inside[:-1]] * count + tag_ids[1:][inside[:-1]], minlength=count**2)
    pairs = pairs.reshape(count, count) + ADDED
    firsts = np.bincount(tag_ids[ends - lengths], minlength=count) + ADDED
    lasts = np.bincount(tag_ids[ends - 1], minlength=count) + ADDED
    # Against what the shares alone would say, which the head already does.
    model.crf.transitions.assign(np.log(pairs / pairs.sum(axis=1, keepdims=True) / shares).astype(np.float32))
    model.crf.start.assign(np.log(firsts / firsts.sum() / shares).astype(np.float32))
    model.crf.end.assign(np.log(lasts / lasts.sum() / shares).astype(np.float32))

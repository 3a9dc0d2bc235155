"""Initializes a tagger from the counts of tags and of neighboring tags in the training rows."""

from typing import Any

import numpy as np

# Added to every count, so that unseen tags and transitions stay possible.
ADDED = 0.5


def initialize_from_counts(model: Any, tag_ids: np.ndarray, lengths: np.ndarray) -> None:
    """Sets the bias of the head to the log frequencies of tags, and the CRF weights to relative transition frequencies.

    Adam moves a weight by about the learning rate per step. From zero, the weights of unseen transitions would need
    more steps than a training has.

    Args:
        model: A built `SequenceTagger`.
        tag_ids: Of all words, int32 [N], one sentence after another.
        lengths: Words of each sentence, integers [R], at least 1; their sum is N.
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
    # Relative to the frequencies, which the head already has.
    model.crf.transitions.assign(np.log(pairs / pairs.sum(axis=1, keepdims=True) / shares).astype(np.float32))
    model.crf.start.assign(np.log(firsts / firsts.sum() / shares).astype(np.float32))
    model.crf.end.assign(np.log(lasts / lasts.sum() / shares).astype(np.float32))

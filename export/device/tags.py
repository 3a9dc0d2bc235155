"""Decodes the tags of a sentence of several windows from the scores of its words, with NumPy only.

A model decodes each window as if it were a sentence. For a sentence of several windows, concatenate the `scores` of the
words to tag, and decode the whole sentence here as the model decodes a window.
"""

import numpy as np


class TagDecoder:
    """Finds the most probable tags of a sentence from scores of words and transitions between tags.

    Transitions [K, K] are from the tag of the row to the tag of the column, -1e4 where it is forbidden. Start and end
    [K] are scores of the first and the last tag.
    """

    def __init__(self, transitions, start, end):
        self.transitions, self.start, self.end = (
            np.asarray(x, np.float32) for x in (transitions, start, end)
        )

    def __call__(self, scores):
        """Decodes a sentence from scores float32 [W, K].

        Returns float32 [W, K], the probability of each tag over all paths; int32 [W], the tags of the best path;
        float32 [W], the probability of each of these given the one before.
        """
        words = np.array(scores, np.float32)
        if not len(words):
            return words, np.zeros(0, np.int32), np.zeros(0, np.float32)
        words[0] += self.start
        words[-1] += self.end
        best = _chain(words, self.transitions, _highest)
        after = _chain(words, self.transitions, _log_sum)
        before = _chain(words[::-1], self.transitions.T, _log_sum)[::-1]
        tag_ids, path = np.zeros(len(words), np.int32), np.zeros(len(words), np.float32)
        row = np.zeros_like(self.start)
        for place in range(len(words)):
            tag = int(np.argmax(row + best[place]))
            tag_ids[place], path[place] = tag, _probabilities(row + after[place])[tag]
            row = self.transitions[tag]
        return _probabilities(after + before - words), tag_ids, path


def _chain(words, transitions, reduce):
    """Backward scores [W, K]: the best or the sum of all continuations of each tag, with a maximum of 0."""
    found = np.zeros_like(words)
    state = None
    for place in range(len(words) - 1, -1, -1):
        reached = 0.0 if state is None else reduce(transitions + state)
        state = words[place] + reached
        state = found[place] = state - state.max()
    return found


def _highest(scores):
    return scores.max(axis=-1)


def _log_sum(scores):
    top = scores.max(axis=-1, keepdims=True)
    return np.log(np.exp(scores - top).sum(axis=-1)) + top[..., 0]


def _probabilities(scores):
    return np.exp(scores - _log_sum(scores)[..., None])

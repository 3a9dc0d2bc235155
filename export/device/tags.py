"""Tags of whole sentences from the scores of their words, with NumPy alone: for sentences of several windows.

A model answers each window as if it were a sentence. Of a sentence of several windows lay the `scores` of the words to
tag end to end; what is most probable over the whole sentence is found here, as the model does it within a window.
"""

import numpy as np


class TagDecoder:
    """Weighs what each word says of its tag with which tag follows which.

    Args:
        transitions: [K, K], from the tag of the row to that of the column, -1e4 where it must not follow.
        start: [K], of the first tag.
        end: [K], of the last.
    """

    def __init__(self, transitions, start, end):
        self.transitions, self.start, self.end = (
            np.asarray(x, np.float32) for x in (transitions, start, end)
        )

    def __call__(self, scores):
        """The tags of a sentence.

        Args:
            scores: float32 [W, K].

        Returns:
            float32 [W, K], the probability of each tag over all paths; int32 [W], the tags of the best path; float32
            [W], the probability of each of these given the one before.
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
    """From the last word to the first, of each tag [W, K] the best or the sum of all that follows; the highest is 0."""
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

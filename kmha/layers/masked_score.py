"""The score of what may not be attended to."""

import contextlib
import contextvars
from collections.abc import Iterator

from keras import ops

# Finite, so that the softmax of a row with nothing to attend to is finite too; such rows are zeroed after.
# Softmax is computed in float32, where exp(-1e9) is exactly 0.
MASKED_SCORE = -1e9
_score_of_masked = contextvars.ContextVar("score_of_masked", default=MASKED_SCORE)


@contextlib.contextmanager
def masked_score(score: float) -> Iterator[None]:
    """Within the block, attention is traced with another score in masked places.

    For exports to 8-bit integers: they share 256 steps between the masked score and the real ones, which -1e9
    would all push into one.

    Args:
        score: Far enough below real scores that its softmax is nearly 0.
    """
    token = _score_of_masked.set(score)
    try:
        yield
    finally:
        _score_of_masked.reset(token)


def added_to_scores(mask):
    """What is added to scores under a mask of any shape, 1 = attend: 0 where it is 1, the masked score where it is 0.

    Added, not selected: the same softmax, in an op that runtimes for devices compute with its neighbours.
    """
    return (1.0 - ops.cast(mask, "float32")) * _score_of_masked.get()

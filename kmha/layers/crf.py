"""Linear-chain conditional random field: potentials, the layer with their weights, and the score of a path.

The sum over all paths is in `crf_likelihood`, the best path in `crf_decoding`. All computations are in float32,
whatever the dtype policy.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

# Finite, so that no difference of two is NaN. Its exponential is exactly 0, the sum over thousands of words is in the
# range of float32, and it is in the range of float16.
FORBIDDEN = -1e4


class Potentials(NamedTuple):
    """Unnormalized log-potentials of tags and of transitions; `FORBIDDEN` where the scheme forbids a transition.

    Attributes:
        emissions: float32 [B, W, K], of each tag at each word.
        word_mask: int32 [B, W]; 1 = a word. Words are a prefix of the row.
        transitions: float32 [K, K], from the row's tag to the column's tag.
        start: float32 [K] or [B, K], of the first tag of a sentence.
        end: float32 [K] or [B, K], of the last tag.
    """

    emissions: Any
    word_mask: Any
    transitions: Any
    start: Any
    end: Any


def fold_boundaries(potentials: Potentials):
    """Adds the start to the emissions of the first word and the end to those of the last; padding is zero.

    The score of a path is then a sum over words and adjacent words only.

    Args:
        potentials: Potentials of B sentences.

    Returns:
        Emissions float32 [B, W, K] and the mask float32 [B, W].
    """
    mask = ops.cast(potentials.word_mask, "float32")
    positions = ops.cast(ops.arange(ops.shape(mask)[1]), "float32")
    first = mask * ops.cast(ops.equal(positions, 0.0), "float32")
    last = ops.cast(ops.equal(positions, ops.sum(mask, axis=1, keepdims=True) - 1.0), "float32")
    start, end = (ops.expand_dims(ops.cast(x, "float32"), -2) for x in (potentials.start, potentials.end))
    # Selected, not multiplied: this removes NaN at padding too.
    words = ops.where(ops.expand_dims(mask, -1) > 0, ops.cast(potentials.emissions, "float32"), 0.0)
    return words + ops.expand_dims(first, -1) * start + ops.expand_dims(last, -1) * end, mask


def path_score(potentials: Potentials, tag_ids):
    """The sum of the potentials of a path.

    Args:
        potentials: Potentials of B sentences.
        tag_ids: int32 [B, W]; any value at padding.

    Returns:
        float32 [B]; 0 for a sentence without words.
    """
    emissions, mask = fold_boundaries(potentials)
    num_tags = emissions.shape[-1]
    tag_ids = ops.cast(tag_ids, "int32") * ops.cast(mask, "int32")
    at_words = ops.sum(ops.one_hot(tag_ids, num_tags, dtype="float32") * emissions, axis=(1, 2))
    pairs = tag_ids[:, :-1] * num_tags + tag_ids[:, 1:]
    between = ops.take(ops.reshape(ops.cast(potentials.transitions, "float32"), (-1,)), pairs, axis=0)
    return at_words + ops.sum(between * mask[:, 1:], axis=1)


@keras.saving.register_keras_serializable(package="kmha")
class CRF(keras.layers.Layer):
    """Adds trained transition scores and a scheme's forbidden transitions to the emissions.

    Args:
        num_tags: K.
        allowed: [K, K] of 0 and 1: whether the row's tag may be followed by the column's tag; None: all.
        allowed_start: [K] of 0 and 1: whether a sentence may start with the tag; None: all.
        allowed_end: [K] of 0 and 1: whether a sentence may end with the tag; None: all.

    Call:
        emissions: float [B, W, K].
        word_mask: int32 or bool [B, W]; 1 = a word. Words are a prefix of the row.
        Returns `Potentials`, all float32, for the loss in `crf_likelihood` and the tags in `crf_decoding`.

    Raises:
        ValueError: A shape does not fit K, or a number is neither 0 nor 1.
    Source: Lafferty et al. 2001; with start and end: Lample et al. 2016, §3.1, arXiv:1603.01360.
    """

    def __init__(
        self,
        num_tags: int,
        allowed: Sequence[Sequence[int]] | None = None,
        allowed_start: Sequence[int] | None = None,
        allowed_end: Sequence[int] | None = None,
        **kwargs,
    ):
        # No autocast: a 16-bit policy would round the emissions.
        super().__init__(autocast=False, **kwargs)
        if num_tags < 1:
            raise ValueError(f"num_tags must be at least 1, got {num_tags}")
        self.num_tags = num_tags
        self.allowed = _checked("allowed", allowed, (num_tags, num_tags))
        self.allowed_start = _checked("allowed_start", allowed_start, (num_tags,))
        self.allowed_end = _checked("allowed_end", allowed_end, (num_tags,))

    def build(self, emissions_shape=None, word_mask_shape=None):
        """Creates the weights as zeros: the score of an allowed path is initially that of its emissions."""
        if emissions_shape is not None and (
            len(emissions_shape) != 3 or emissions_shape[-1] != self.num_tags
        ):
            raise ValueError(
                f"emissions must be [B, W, {self.num_tags}], a score for each of the {self.num_tags} tags,"
                f" got shape {tuple(emissions_shape)}"
            )
        if word_mask_shape is not None and len(word_mask_shape) != 2:
            raise ValueError(f"word_mask must be [B, W], got shape {tuple(word_mask_shape)}")
        self.transitions = self._weight("transitions", (self.num_tags, self.num_tags))
        self.start = self._weight("start", (self.num_tags,))
        self.end = self._weight("end", (self.num_tags,))

    def _weight(self, name: str, shape: tuple[int, ...]):
        return self.add_weight(name=name, shape=shape, initializer="zeros", dtype="float32")

    def call(self, emissions, word_mask):
        """See the class."""
        return Potentials(
            ops.cast(emissions, "float32"),
            ops.cast(word_mask, "int32"),
            _where_allowed(self.transitions, self.allowed),
            _where_allowed(self.start, self.allowed_start),
            _where_allowed(self.end, self.allowed_end),
        )

    def get_config(self):
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "num_tags": self.num_tags,
            "allowed": self.allowed,
            "allowed_start": self.allowed_start,
            "allowed_end": self.allowed_end,
        }


def _checked(name: str, given, shape: tuple[int, ...]):
    """The argument as nested lists of 0 and 1, which JSON can represent."""
    if given is None:
        return None
    try:
        array = np.asarray(given)
    except ValueError:
        raise ValueError(f"{name} must have shape {shape}, got rows of different lengths") from None
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    others = sorted({str(value) for value in array.ravel().tolist() if value not in (0, 1)})
    if others:
        raise ValueError(f"{name} must contain 0 and 1 only, got {', '.join(others)}")
    return array.astype(int).tolist()


def _where_allowed(weight, allowed):
    """The weight, with `FORBIDDEN` and no gradient where a transition is not allowed."""
    weight = ops.convert_to_tensor(weight)
    if allowed is None:
        return weight
    mask = np.asarray(allowed, "float32")
    return weight * mask + FORBIDDEN * (1 - mask)

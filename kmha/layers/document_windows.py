"""Splits long documents into overlapping windows in the graph, and pools the windows' vectors."""

from typing import Any, Literal, NamedTuple

import keras
from keras import ops

from kmha.document_windows import WindowShape
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS
from kmha.layers.configurable_layer import ConfigurableLayer

MODES = ("mean", "max", "attention")
WindowMode = Literal["mean", "max", "attention"]


class SplitDocuments(NamedTuple):
    """Features of all windows int32 [B · W, L], ordered by document, and the tokens each represents, float32 [B, W]."""

    features: dict[str, Any]
    votes: Any


def split_documents(features: dict[str, Any], shape: WindowShape) -> SplitDocuments:
    """Splits documents into overlapping windows, each with its own [CLS], [SEP] and positions.

    [CLS] and [SEP] are the document's first and last token, so a text that fits in one window is unchanged. Every token
    has one vote, divided among the windows that contain it; [CLS] votes for the first window, [SEP] for the last. Votes
    add up to the document's tokens: a short last window has a small weight, and no token counts twice.

    Windows of padding have no votes. There are W = 1 + ceil((T - length) / stride) windows, at least 1, of
    L = min(T, length) tokens. The features are token_ids, padding_mask and optionally segment_ids, int32 [B, T] each;
    padding is on the right.
    """
    features = {name: ops.cast(each, "int32") for name, each in features.items()}
    ids, mask = features[TOKEN_IDS], features[PADDING_MASK]
    rows, total = ops.shape(ids)
    length, count = _window_sizes(total, shape)
    places = ops.expand_dims(ops.arange(length, dtype="int32"), 0)  # [1, L]
    firsts = ops.expand_dims(ops.arange(count, dtype="int32") * shape.stride, -1)  # [W, 1]
    # Position in the document of each place of each window, [W, L]. The first place is always the document's [CLS].
    source = ops.where(places == 0, 0, ops.minimum(firsts + places, total - 1))
    of_text, numbers = ops.arange(total, dtype="int32"), ops.arange(count, dtype="int32")
    # [B]: position of the last real token, -1 if there is none; number of windows after the first.
    last = ops.max(ops.where(mask > 0, of_text, -1), axis=1)
    others = _steps(last + 1 - shape.length, shape.stride)
    # [B, W]: place of [SEP] in each window, -1 for windows of padding.
    end = ops.minimum(ops.expand_dims(last, -1) - firsts[:, 0], shape.length - 1)
    end = ops.where(numbers <= ops.expand_dims(others, -1), end, -1)
    is_end = ops.equal(places, ops.expand_dims(end, -1))  # [B, W, L]
    inside = ops.cast(places <= ops.expand_dims(end, -1), "int32")
    at_last = ops.cast(ops.equal(of_text, ops.expand_dims(last, -1)), "int32")

    def windowed(values):
        """A feature of documents [B, T] in windows, int32 [B, W, L]; 0 for windows of padding."""
        found = ops.reshape(ops.take(values, ops.reshape(source, (-1,)), axis=1), (rows, count, length))
        final = ops.reshape(ops.sum(values * at_last, axis=1), (-1, 1, 1))
        return ops.where(is_end, final, found) * inside

    names = [name for name in (TOKEN_IDS, SEGMENT_IDS, PADDING_MASK) if name in features]
    read = {name: windowed(features[name]) for name in names}
    votes = _votes(read[PADDING_MASK], source, is_end, others, shape)
    folded = {name: ops.reshape(each, (rows * count, length)) for name, each in read.items()}
    return SplitDocuments(folded, votes)


def _votes(mask, source, is_end, others, shape: WindowShape):
    """Votes float32 [B, W] of windows; mask, source, is_end and others as in `split_documents`."""
    # The first window with a token, and the last one, not limited by the number of windows.
    first, final = _steps(source - shape.room, shape.stride), ops.maximum(source - 1, 0) // shape.stride
    holding = ops.minimum(final, ops.reshape(others, (-1, 1, 1))) - first + 1
    text = ops.logical_and(ops.logical_not(is_end), source > 0)
    shares = ops.where(text, 1.0 / ops.cast(ops.maximum(holding, 1), "float32"), 0.0)
    numbers = ops.reshape(ops.arange(ops.shape(source)[0], dtype="int32"), (1, -1, 1))
    own_start = ops.logical_and(numbers == 0, ops.logical_and(source == 0, ops.logical_not(is_end)))
    own_end = ops.logical_and(is_end, ops.equal(numbers, ops.reshape(others, (-1, 1, 1))))
    shares = shares + ops.cast(ops.logical_or(own_start, own_end), "float32")
    return ops.sum(shares * ops.cast(mask, "float32"), axis=-1)


def _window_sizes(total, shape: WindowShape):
    """L and W of documents of `total` tokens, as ints if `total` is an int."""
    if isinstance(total, int):
        return min(total, shape.length), int(shape.count(total))
    return ops.minimum(total, shape.length), 1 + _steps(total - shape.length, shape.stride)


def _steps(tokens, stride: int):
    """Number of strides that cover the tokens, int32 of the same shape; 0 for negative numbers."""
    return (ops.maximum(tokens, 0) + stride - 1) // stride


def _fill_empty(values, votes):
    """Values float [B, W, D] with those of the first window for windows without votes.

    A document's first window has votes if any window has. A very low number instead would waste the range of 8-bit
    exports.
    """
    return ops.where(ops.expand_dims(votes > 0, -1), values, values[:, :1])


@keras.saving.register_keras_serializable(package="kmha")
class WindowPooling(ConfigurableLayer):
    """Pools the vectors of a document's windows.

    The vector of a single window is unchanged in all modes, and windows without votes have no influence.

    Args:
        mode: "mean", weighted by votes; "max" of each feature; or "attention": a window's votes are multiplied by the
            exponential of a trained score. Scores are initially 0, which is the mean.

    Call:
        inputs: float [B, W, D].
        votes: float32 [B, W], at least 0.
        Returns float [B, D]; zeros for a document without votes. Computed in float32.

    Raises:
        ValueError: The mode is not one of the three.
    Source: attention over parts of a document: Yang et al. 2016, doi:10.18653/v1/N16-1174, without their hidden layer.
    """

    def __init__(self, mode: WindowMode = "mean", **kwargs):
        # Votes stay float32: the 8-bit significand of bfloat16 cannot represent numbers of tokens.
        super().__init__(**kwargs, autocast=False)
        if mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}, got {mode!r}")
        self.mode = mode
        self.score = None
        if mode == "attention":
            self.score = keras.layers.Dense(
                1, use_bias=False, kernel_initializer="zeros", name="score", dtype="float32"
            )

    def build(self, inputs_shape):
        """Creates the scores' kernel [D, 1] in attention mode."""
        if self.score is not None:
            self.score.build(inputs_shape)

    def call(self, inputs, votes):
        """See the class."""
        x = ops.cast(inputs, "float32")
        if self.mode == "max":
            found = ops.max(_fill_empty(x, votes), axis=1)
        else:
            found = ops.sum(x * ops.expand_dims(self._weights(x, votes), -1), axis=1)
        return ops.cast(found, self.compute_dtype)

    def shares(self, inputs, votes):
        """Share of each window in its document's vector, float32 [B, W]; for "max" the share of features."""
        x = ops.cast(inputs, "float32")
        if self.mode != "max":
            return self._weights(x, votes)
        best = ops.one_hot(
            ops.argmax(_fill_empty(x, votes), axis=1), ops.shape(x)[1], dtype="float32"
        )  # [B, D, W]
        return ops.mean(best, axis=1)

    def _weights(self, x, votes):
        """Weights float32 [B, W] with sum 1 for documents with votes."""
        if self.score is not None:
            scores = _fill_empty(self.score(x), votes)[:, :, 0]
            votes = votes * ops.exp(scores - ops.max(scores, axis=1, keepdims=True))
        total = ops.sum(votes, axis=1, keepdims=True)
        return votes / ops.where(total > 0, total, 1.0)

"""The feature contract between text processing and models: names, dtypes, shapes."""

from typing import Any, NamedTuple

import numpy as np

from kmha.errors import InputError

TOKEN_IDS = "token_ids"
SEGMENT_IDS = "segment_ids"
PADDING_MASK = "padding_mask"
# Of sentences: where each word's first token is (0 = no word), which words to tag, and how words are spelt.
WORD_STARTS = "word_starts"
WORD_MASK = "word_mask"
CHARACTER_IDS = "character_ids"
# Where the tokens to find are, filled up with 0.
MASK_POSITIONS = "mask_positions"
# int32 throughout: a bool feature crashes under MirroredStrategy, whose AddN has no bool kernel.
DTYPE = "int32"
TEXT_FEATURES = (TOKEN_IDS, SEGMENT_IDS, PADDING_MASK)

# The two texts of a pair.
SIDES = ("a", "b")

Features = dict[str, object]


def input_names(side: str, granularity: str = "") -> tuple[str, str]:
    """Names of the token ids and of the padding mask of one text of a pair.

    Args:
        side: "a" or "b".
        granularity: How the text is cut, where it is cut in several ways; then it stands first.
    """
    ids, mask = ("_".join(filter(None, (granularity, name, side))) for name in (TOKEN_IDS, PADDING_MASK))
    return ids, mask


def swap_sides(features: dict[str, Any]) -> dict[str, Any]:
    """The features of a pair with A as B and B as A."""
    return {f"{name[:-1]}{'b' if name.endswith('a') else 'a'}": value for name, value in features.items()}


class TextInputs(NamedTuple):
    """The two features that a model reads of one text cut in one way.

    Attributes:
        ids: Name of the token ids.
        mask: Name of the padding mask.
        text: Which text of an example, from 0.
        part: The preprocessor that cuts it.
    """

    ids: str
    mask: str
    text: int
    part: Any


def text_shapes(
    batch: int | None = None, length: int | None = None
) -> dict[str, tuple[int | None, int | None]]:
    """Shape [B, T] of each feature of one text, with None where it may vary."""
    return dict.fromkeys(TEXT_FEATURES, (batch, length))


def tensor_specs(batch: int | None = None, length: int | None = None) -> dict:
    """A `tf.TensorSpec` int32 [B, T] for each feature of one text."""
    import tensorflow as tf

    return {
        name: tf.TensorSpec(shape, DTYPE, name=name) for name, shape in text_shapes(batch, length).items()
    }


def validate_token_ids(token_ids, vocabulary_size: int, max_length: int) -> np.ndarray:
    """Token ids from outside, as int32 [B, T], or a refusal.

    A negative id would wrap around silently in a lookup, and one past the end fails deep inside the model.

    Args:
        token_ids: Integers [B, T].
        vocabulary_size: Ids must be in [0, vocabulary_size).
        max_length: T must be at most this.

    Raises:
        InputError: Wrong rank or dtype, an id out of range, or too long.
    """
    try:
        ids = np.asarray(token_ids)
    except ValueError:
        raise InputError(f"{TOKEN_IDS} must be integers [B, T], got rows of different lengths") from None
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"{TOKEN_IDS} must be integers [B, T], got {ids.dtype} of shape {ids.shape}")
    if ids.shape[1] > max_length:
        raise InputError(f"{TOKEN_IDS} must be at most {max_length} long, got length {ids.shape[1]}")
    if ids.size and (ids.min() < 0 or ids.max() >= vocabulary_size):
        wrong = ids[(ids < 0) | (ids >= vocabulary_size)][0]
        raise InputError(f"{TOKEN_IDS} must be in [0, {vocabulary_size}), got {wrong}")
    return ids.astype(DTYPE)


# Words of a sentence; its best path is found in one piece.
MAX_WORDS = 2048
# Tokens of a window at the least.
MIN_WINDOW_LENGTH = 8
# Of a longer word the first and the last half of as many characters are read.
SPELLING_LENGTH = 20
# Rows of the table of characters: Latin, Greek, Cyrillic and more have one of their own, others share.
NUM_CHARACTERS = 4096

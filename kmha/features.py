"""The interface between text processing and models: names, dtypes, shapes and limits of features."""

from typing import Any, NamedTuple

import numpy as np

from kmha.errors import InputError

TOKEN_IDS = "token_ids"
SEGMENT_IDS = "segment_ids"
# In training, if a batch leaves out tokens: their positions in the text.
POSITION_IDS = "position_ids"
PADDING_MASK = "padding_mask"
# For sentences: position of each word's first token (0 = no word), words to tag, and character ids of words.
WORD_STARTS = "word_starts"
WORD_MASK = "word_mask"
CHARACTER_IDS = "character_ids"
# Positions of the masked tokens, padded with 0.
MASK_POSITIONS = "mask_positions"
# int32 for all features: a bool feature crashes under MirroredStrategy, whose AddN has no bool kernel.
DTYPE = "int32"
TEXT_FEATURES = (TOKEN_IDS, SEGMENT_IDS, PADDING_MASK)

# The two texts of a pair.
SIDES = ("a", "b")

# Maximum words of a sentence; its best path is computed as a whole.
MAX_WORDS = 2048
# Minimum tokens of a window of a sentence.
MIN_WINDOW_LENGTH = 8
# Characters read of a word; a longer word is represented by its first and last ten characters.
SPELLING_LENGTH = 20
# Rows of the character table: Latin, Greek, Cyrillic and more have their own rows, others share them.
NUM_CHARACTERS = 4096


def input_names(side: str, granularity: str = "") -> tuple[str, str]:
    """Names of the token ids and the padding mask of one text of a pair; the granularity is a prefix."""
    ids, mask = ("_".join(filter(None, (granularity, name, side))) for name in (TOKEN_IDS, PADDING_MASK))
    return ids, mask


def swap_sides(features: dict[str, Any]) -> dict[str, Any]:
    """The features of a pair with A and B exchanged."""
    return {f"{name[:-1]}{'b' if name.endswith('a') else 'a'}": value for name, value in features.items()}


class TextInputs(NamedTuple):
    """The two model inputs of one text in one tokenization."""

    ids: str  # names of the features
    mask: str
    text: int  # index of the text in an example
    part: Any  # its preprocessor


def text_shapes(
    batch: int | None = None, length: int | None = None
) -> dict[str, tuple[int | None, int | None]]:
    """Shape [B, T] of each feature of one text; None for variable sizes."""
    return dict.fromkeys(TEXT_FEATURES, (batch, length))


def validate_token_ids(token_ids, vocabulary_size: int, max_length: int) -> np.ndarray:
    """Returns token ids from outside as int32 [B, T]; raises InputError for a wrong rank, dtype, id or length.

    Without validation a negative id would silently index from the end, and a too large id would fail inside the model.
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

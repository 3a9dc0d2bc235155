"""Small configurations and random rows for the tests of models."""

from typing import Any

import numpy as np

from kmha.config import EncoderConfig
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS

V, MAX_LENGTH = 24, 12
SIZES: dict[str, Any] = {"hidden_dim": 8, "num_heads": 2, "intermediate_dim": 12, "max_length": MAX_LENGTH}
CONFIGS = {
    "BERT's form": EncoderConfig(V, **SIZES, norm="post", num_segments=2, num_layers=2),
    "from scratch": EncoderConfig(
        V, **SIZES, num_layers=1, ngram_buckets=31, ngram_dim=4, token_dropout=0.1, num_segments=2
    ),
    "rotary": EncoderConfig(V, **SIZES, num_layers=1, positions="rotary", head_dim=6),
    "sinusoidal": EncoderConfig(V, **SIZES, num_layers=1, positions="sinusoidal", norm="post"),
}


def features(rows, length=None, segment_ids=None):
    """The features of rows of token ids, padded on the right to the longest or to a length: int32 [B, T] each."""
    length = max(map(len, rows), default=0) if length is None else length
    padded = np.array([[*row, *[0] * (length - len(row))] for row in rows], "int32").reshape(
        len(rows), length
    )
    mask = np.array([[t < len(row) for t in range(length)] for row in rows], "int32").reshape(padded.shape)
    segments = np.zeros_like(padded) if segment_ids is None else np.asarray(segment_ids, "int32")
    return {TOKEN_IDS: padded, SEGMENT_IDS: segments, PADDING_MASK: mask}


def random_features(batch=3, length=6, seed=0):
    """Random rows: the first is full, the second shorter, the last only padding."""
    generator = np.random.default_rng(seed)
    lengths = [length, *generator.integers(1, length, batch - 2), 0]
    return features([generator.integers(1, V, n).tolist() for n in lengths], length)

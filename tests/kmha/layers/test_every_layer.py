"""Every layer through the shared checks."""

import importlib
import os
import pkgutil

import keras
import numpy as np
import pytest

import kmha.layers
from kmha.layers.attention import MultiHeadAttention
from kmha.layers.comparison import MARKS, SHARES, Standardise, TokenOverlap
from kmha.layers.crf import CRF
from kmha.layers.document_windows import WindowPooling
from kmha.layers.dropout import Dropout
from kmha.layers.embedding import NgramEmbedding, Table, TextEmbedding, TokenDropout
from kmha.layers.encoder_block import CrossAttentionBlock, EncoderBlock, FeedForward
from kmha.layers.linear_ngrams import LinearNgrams
from kmha.layers.linear_pairs import LinearPairs
from kmha.layers.linear_words import LinearWords
from kmha.layers.normalization import LayerNormalization
from kmha.layers.overlap_network import OverlapNetwork
from kmha.layers.pooling import Pooling
from kmha.layers.positions import PositionEmbedding
from kmha.layers.trigrams import BUCKETS, Trigrams
from kmha.layers.words import LocalContext, SpellingEncoder
from tests.layer_checks import BACKEND, CHECKS, LayerCase

B, T, S, D, E, V = 3, 5, 4, 8, 6, 20
GENERATOR = np.random.default_rng(0)
HIDDEN = GENERATOR.normal(size=(B, T, D)).astype("float32")
OTHER = GENERATOR.normal(size=(B, S, E)).astype("float32")
SAME_SIZE_OTHER = GENERATOR.normal(size=(B, S, D)).astype("float32")
TOKEN_IDS = GENERATOR.integers(1, V, (B, T)).astype("int32")
SEGMENT_IDS = GENERATOR.integers(0, 2, (B, T)).astype("int32")
# A full row, a padded row, and a row of padding.
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], "int32")
OTHER_IDS = GENERATOR.integers(1, 8, (B, S)).astype("int32")
OTHER_MASK = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]], "int32")
# Few different tokens, so that texts share some.
PAIR = {
    "ids_a": GENERATOR.integers(1, 8, (B, T)).astype("int32"),
    "ids_b": OTHER_IDS,
    "mask_a": MASK,
    "mask_b": OTHER_MASK,
}
# Votes of a document, a shorter document and an empty one.
VOTES = (MASK * GENERATOR.uniform(0.5, 9.0, (B, T))).astype("float32")
FIRST = np.array([0, 2, 1], "int32")
SPELLINGS = GENERATOR.integers(0, V, (B, T, 7)).astype("int32")
PAD_TO_20 = ((0, 0), (0, 0), (0, 13))
# Words to tag come first; others are before and after them.
WORD_STARTS = np.array([[2, 3, 1, 4, 0], [1, 2, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")
CAUSAL = np.tril(np.ones((B, T, T), "int32"))
CAUSAL_TAGS = np.tril(np.ones((D, D), int)).tolist()


def _layer(cls, *args, **fixed):
    return lambda **given: cls(*args, **fixed, **given)


def _mha(*args, **fixed):
    return _layer(MultiHeadAttention, *args, dropout=0.1, **fixed)


def _block(norm, cls=EncoderBlock, **fixed):
    return _layer(cls, 2, 12, norm=norm, dropout=0.1, attention_dropout=0.1, **fixed)


CASES = {
    "attention self": LayerCase(
        _mha(2), {"query": HIDDEN, "attention_mask": MASK}, (B, T, D), mask="attention_mask"
    ),
    "attention single head, causal": LayerCase(
        _mha(1), {"query": HIDDEN, "attention_mask": CAUSAL}, (B, T, D)
    ),
    "attention rotary, free head size, no bias": LayerCase(
        _mha(3, key_dim=4, rotary=True, use_bias=False), {"query": HIDDEN}, (B, T, D)
    ),
    "attention cross, other inner size": LayerCase(
        _mha(2),
        {"query": HIDDEN, "value": OTHER, "attention_mask": MASK[:, :S]},
        (B, T, D),
    ),
    "attention cross, same inner size": LayerCase(
        _mha(2), {"query": HIDDEN, "value": SAME_SIZE_OTHER}, (B, T, D)
    ),
    "attention with keys, values and masks of their own": LayerCase(
        _mha(2, 4, 3, output_shape=(2, 3)),
        {
            "query": HIDDEN,
            "value": OTHER,
            "key": SAME_SIZE_OTHER,
            "query_mask": MASK,
            "value_mask": OTHER_MASK,
            "key_mask": OTHER_MASK[::-1].copy(),
        },
        (B, T, 2, 3),
        mask="value_mask",
        hides=("value", "key"),
    ),
    "block post": LayerCase(
        _block("post"), {"inputs": HIDDEN, "attention_mask": MASK}, (B, T, D), mask="attention_mask"
    ),
    "block pre": LayerCase(
        _block("pre", head_dim=6, rotary=True, activation="gelu_tanh", norm_epsilon=1e-6),
        {"inputs": HIDDEN, "attention_mask": MASK},
        (B, T, D),
        mask="attention_mask",
    ),
    "cross block post": LayerCase(
        _block("post", CrossAttentionBlock),
        {"inputs": HIDDEN, "context": SAME_SIZE_OTHER, "attention_mask": OTHER_MASK},
        (B, T, D),
        mask="attention_mask",
        hides=("context",),
    ),
    "cross block pre": LayerCase(
        _block("pre", CrossAttentionBlock, head_dim=6, rotary=True, activation="relu", norm_epsilon=1e-6),
        {"inputs": HIDDEN, "context": SAME_SIZE_OTHER, "attention_mask": OTHER_MASK},
        (B, T, D),
        mask="attention_mask",
        hides=("context",),
    ),
    "feed-forward": LayerCase(_layer(FeedForward, 12), {"inputs": HIDDEN}, (B, T, D)),
    "feed-forward relu": LayerCase(
        _layer(FeedForward, 12, "relu", "he_normal"), {"inputs": HIDDEN}, (B, T, D)
    ),
    "learned positions": LayerCase(_layer(PositionEmbedding, 7), {"inputs": HIDDEN}, (B, T, D)),
    "sinusoidal positions": LayerCase(
        _layer(PositionEmbedding, 7, learned=False), {"inputs": HIDDEN}, (B, T, D)
    ),
    "learned positions from any": LayerCase(
        _layer(PositionEmbedding, 7), {"inputs": HIDDEN, "first": FIRST}, (B, T, D)
    ),
    "sinusoidal positions from any": LayerCase(
        _layer(PositionEmbedding, 7, learned=False), {"inputs": HIDDEN, "first": FIRST}, (B, T, D)
    ),
    "overlap network": LayerCase(
        _layer(OverlapNetwork, 2, E + 3 * 2, 5),
        {"overlap": OTHER[:, 0], "parts": HIDDEN[:, :3, :2]},
        (B, 2),
        output_dtype="float32",
    ),
    "table": LayerCase(_layer(Table, V, D), {"inputs": TOKEN_IDS}, (B, T, D)),
    "n-grams": LayerCase(
        _layer(NgramEmbedding, D, 16, 4, (2, 3), dropout=0.1), {"token_ids": TOKEN_IDS}, (B, T, D)
    ),
    "linear n-grams": LayerCase(
        _layer(LinearNgrams, 3, 9, (V, 31)), {"token_ids": TOKEN_IDS, "padding_mask": MASK}, (B, 3)
    ),
    "linear pairs": LayerCase(
        _layer(LinearPairs, 3, V, 3, 2, 31), PAIR, (B, 3), mask="mask_b", hides=("ids_b",)
    ),
    "linear pairs with trigrams": LayerCase(
        _layer(LinearPairs, 3, V, 3, 2, 31, trigrams=2), PAIR, (B, 3), mask="mask_b", hides=("ids_b",)
    ),
    "trigrams": LayerCase(
        _layer(Trigrams, V, 2), {"token_ids": TOKEN_IDS, "is_token": MASK, "continues": MASK}, (B, BUCKETS)
    ),
    "linear words": LayerCase(
        _layer(LinearWords, 3, 9, 31),
        {"token_ids": TOKEN_IDS, "word_starts": WORD_STARTS, "character_ids": np.pad(SPELLINGS, PAD_TO_20)},
        (B, T, 3),
    ),
    "linear words without spelling": LayerCase(
        _layer(LinearWords, 3, 9, 31), {"token_ids": TOKEN_IDS, "word_starts": WORD_STARTS}, (B, T, 3)
    ),
    "token dropout": LayerCase(
        _layer(TokenDropout, 0.5, 1, 5), {"token_ids": TOKEN_IDS}, (B, T), output_dtype="int32"
    ),
    "embedding with all parts": LayerCase(
        _layer(TextEmbedding, V, D, 7, num_segments=2, ngram_buckets=16, ngram_dim=4, ngram_dropout=0.1),
        {"token_ids": TOKEN_IDS, "segment_ids": SEGMENT_IDS},
        (B, T, D),
    ),
    "embedding from any position": LayerCase(
        _layer(TextEmbedding, V, D, 7, ngram_buckets=16, ngram_dim=4),
        {"token_ids": TOKEN_IDS, "first_position": FIRST},
        (B, T, D),
    ),
    "embedding of tokens only": LayerCase(
        _layer(TextEmbedding, V, D, 7, positions="none", mask_zero=True), {"token_ids": TOKEN_IDS}, (B, T, D)
    ),
    **{
        f"overlap, {name}": LayerCase(
            _layer(TokenOverlap, V, 3),
            PAIR,
            shape,
            mask="mask_b",
            output_dtype="float32",
            output=output,
            hides=("ids_b",),
        )
        for name, output, shape in (("marks of a", 0, (B, T, MARKS)), ("shares of b", 3, (B, SHARES)))
    },
    "crf, emissions": LayerCase(
        _layer(CRF, D),
        {"emissions": HIDDEN, "word_mask": MASK},
        (B, T, D),
        mask="word_mask",
        output_dtype="float32",
        output=0,
    ),
    "crf, transitions of a scheme": LayerCase(
        _layer(CRF, D, CAUSAL_TAGS, CAUSAL_TAGS[0], CAUSAL_TAGS[-1]),
        {"emissions": HIDDEN, "word_mask": MASK},
        (D, D),
        mask="word_mask",
        output_dtype="float32",
        output=2,
        hides=("emissions",),
    ),
    "local context": LayerCase(
        _layer(LocalContext, 3),
        {"inputs": HIDDEN, "padding_mask": MASK},
        (B, T, D),
        mask="padding_mask",
    ),
    "spelling": LayerCase(_layer(SpellingEncoder, V, D), {"character_ids": SPELLINGS}, (B, T, D)),
    "layer normalization": LayerCase(_layer(LayerNormalization), {"inputs": HIDDEN}, (B, T, D)),
    "dropout": LayerCase(_layer(Dropout, 0.1), {"inputs": HIDDEN}, (B, T, D)),
    "standardise": LayerCase(_layer(Standardise), {"inputs": HIDDEN[:, 0]}, (B, D)),
    **{
        f"pooling {mode}": LayerCase(
            _layer(Pooling, mode), {"inputs": HIDDEN, "padding_mask": MASK}, (B, D), mask="padding_mask"
        )
        for mode in ("cls", "mean", "max")
    },
    **{
        f"window pooling {mode}": LayerCase(
            _layer(WindowPooling, mode), {"inputs": HIDDEN, "votes": VOTES}, (B, D)
        )
        for mode in ("mean", "max", "attention")
    },
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CASES)
def test_all_layers_meet_the_common_requirements(name, check, tmp_path):
    check(CASES[name], tmp_path)


def test_no_layer_is_left_out():
    modules = [
        importlib.import_module(f"kmha.layers.{m.name}") for m in pkgutil.iter_modules(kmha.layers.__path__)
    ]
    layers = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, keras.Layer)
        and value.__module__ == module.__name__
        # Abstract otherwise.
        and value.call is not keras.Layer.call
    }
    checked = {type(case.make()) for case in CASES.values()}
    assert layers <= checked, layers - checked


def test_layers_run_on_the_requested_backend():
    # `make test-jax` would say nothing of JAX otherwise.
    assert os.environ.get("KERAS_BACKEND", "tensorflow") == BACKEND

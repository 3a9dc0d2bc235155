"""Small matchers and rows of pairs for the tests of models."""

import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.config import EncoderConfig
from kmha.features import SIDES, input_names
from kmha.models.matcher import COSINE_SCALE, TextMatcher
from tests.kmha.models.tiny_features import SIZES, V
from tests.layer_checks import fill_weights

START, END, FIRST_WORD = 2, 3, 5
# Length of a text with [CLS] and [SEP], and positions for both texts.
LENGTH = 9
BOTH = 2 * LENGTH - 1
WORDPIECE = EncoderConfig(
    V, **{**SIZES, "max_length": BOTH}, num_layers=1, ngram_buckets=31, ngram_dim=4, token_dropout=0.1
)
# BERT's form.
CHAR = EncoderConfig(V, **{**SIZES, "max_length": BOTH}, num_layers=1, norm="post", positions="sinusoidal")
ONE = {"wordpiece": WORDPIECE}
# Not in alphabetical order: the order of the model is used.
TWO = {"wordpiece": WORDPIECE, "char": CHAR}

# Options of matchers: each form with several options.
MATCHERS: dict[str, dict[str, Any]] = {
    "cross": {"rounds": 2},
    "cross, two granularities": {"encoders": TWO, "target": "classes", "num_labels": 3, "pooling": "max"},
    "cross, symmetric": {"encoders": {"char": CHAR}, "symmetric": True},
    "cross, symmetric, no overlap": {"symmetric": True, "overlap": False, "target": "graded"},
    "cross, no rounds": {"rounds": 0},
    "cross, own weights": {"share_weights": False, "overlap": False, "pooling": "cls"},
    "cross, linear": {"rounds": 1, "linear_rows": 2, "linear_slots": 31, "linear_trigrams": 3},
    "cross, network": {"linear_rows": 2, "linear_slots": 31, "linear_trigrams": 3, "overlap_units": 6},
    "bi": {"form": "bi", "overlap": False, "pooling": "max"},
    "bi, two granularities": {"form": "bi", "encoders": TWO, "overlap": False, "symmetric": True},
    "bi, own weights": {
        "form": "bi",
        "encoders": {"char": CHAR},
        "overlap": False,
        "share_weights": False,
        "target": "graded",
        "pooling": "cls",
    },
    "joint": {"form": "joint", "target": "graded"},
    "joint, two granularities": {"form": "joint", "encoders": TWO, "symmetric": True, "pooling": "max"},
    "joint, symmetric, linear": {
        "form": "joint",
        "target": "classes",
        "num_labels": 3,
        "symmetric": True,
        "linear_rows": 0,
        "overlap_units": 3,
    },
    "joint, no overlap": {
        "form": "joint",
        "encoders": {"char": CHAR},
        "overlap": False,
        "target": "classes",
        "num_labels": 3,
        "pooling": "cls",
    },
}
# What others test too, and takes the most time, is in the second stage.
SECOND = ("cross, two granularities", "cross, symmetric", "cross, no rounds", "joint, two granularities")
FIRST = [name for name in MATCHERS if name not in SECOND]
SYMMETRIC = [name for name, options in MATCHERS.items() if options.get("symmetric")]
JOINT = [name for name, options in MATCHERS.items() if options.get("form") == "joint"]
BI = [name for name, options in MATCHERS.items() if options.get("form") == "bi"]


def new_matcher(name: str = "cross", **changes) -> TextMatcher:
    """A matcher as training would start it."""
    options = {"encoders": ONE, **MATCHERS[name], **changes}
    encoders = options.pop("encoders")
    if options.get("form") == "joint":
        encoders = {key: dataclasses.replace(config, num_segments=2) for key, config in encoders.items()}
    return TextMatcher(encoders, **options)


@functools.cache
def matcher(name: str = "cross", dtype: str = "float32") -> TextMatcher:
    """A built matcher with random weights. Do not change what it returns: all tests share it."""
    model = new_matcher(name, dtype=dtype)
    model.build()
    fill_weights(model)
    if model.head is None:
        model.cosine_scale.assign(COSINE_SCALE)
    for index, pair in enumerate(model.pairs):
        if pair.overlap:
            pair.token_overlap.rarity.assign(np.random.default_rng(index).uniform(0.1, 1, V))
    if model.linear is not None:
        generator = np.random.default_rng(8)
        for weight in model.linear.weights:
            if weight.dtype == "float32":
                weight.assign(generator.uniform(0.0, 0.3, weight.shape))
            elif weight.dtype == "int16":
                weight.assign(generator.integers(0, 2, weight.shape))
        # Row 0, of unknown pairs, is zero.
        table = model.linear.pairs.embeddings
        table.assign(np.concatenate([np.zeros((1, table.shape[1])), np.asarray(table)[1:]]))
    if model.network is not None:
        generator = np.random.default_rng(10)
        for weight in model.network.weights:
            weight.assign(generator.uniform(0.1, 0.6, weight.shape))
    if model.share_scale is not None:
        generator, width = np.random.default_rng(9), model.share_scale.mean.shape[0]
        model.share_scale.assign(generator.uniform(0, 1, width), generator.uniform(0.5, 2, width))
    return model


@functools.cache
def in_graph(name: str = "cross"):
    """The matcher's call as a graph that takes any length, in milliseconds."""
    model = matcher(name)
    specs = {each: tf.TensorSpec((None, None), "int32") for each in model.input_names}
    return tf.function(lambda features: model(features), input_signature=[specs], autograph=False)


def text(*words: int) -> list[int]:
    """A text's ids: its words between [CLS] and [SEP]."""
    return [START, *words, END]


def side_features(model: TextMatcher, side: str, rows, length: int | None = None) -> dict[str, np.ndarray]:
    """One side's features, int32 [B, T] each, padded on the right; other granularities have reversed words."""
    length = max(map(len, rows)) if length is None else length
    mask = np.array([[int(t < len(row)) for t in range(length)] for row in rows], "int32")
    features = {}
    for index, granularity in enumerate(model.granularities):
        ordered = [row if index == 0 else [*row[:1], *row[-2:0:-1], *row[-1:]][: len(row)] for row in rows]
        ids = np.array([[*row, *[0] * (length - len(row))] for row in ordered], "int32")
        names = input_names(side, granularity if len(model.granularities) > 1 else "")
        features |= dict(zip(names, (ids, mask), strict=True))
    return features


def pair_features(model: TextMatcher, a, b, length_a: int | None = None, length_b: int | None = None):
    """The features of rows of pairs."""
    lengths = (length_a, length_b)
    sides = [
        side_features(model, side, rows, n) for side, rows, n in zip(SIDES, (a, b), lengths, strict=True)
    ]
    return sides[0] | sides[1]


# A long and a short text, words in common, an identical pair, an empty side, and both empty.
A = [text(5, 6, 7, 8, 9, 10), text(11, 12), text(7, 8, 9), text(), text()]
B = [text(6, 7, 13), text(14, 11, 12, 15, 16), text(7, 8, 9), text(17, 18), text()]

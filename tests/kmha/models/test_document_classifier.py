"""A classifier with windows: for a text of one window it equals the classifier without windows, in any batch."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kmha.config import EncoderConfig
from kmha.document_windows import WindowShape
from kmha.errors import InputError
from kmha.models.classifier import TextClassifier
from tests.layer_checks import fill_weights, to_numpy

CONFIG = EncoderConfig(
    60, 16, 1, 2, intermediate_dim=24, max_length=12, num_segments=2, ngram_buckets=31, ngram_dim=4
)
SHAPE = WindowShape(8, 2)
CONFIGS = {
    "from scratch": CONFIG,
    "BERT": dataclasses.replace(CONFIG, norm="post", ngram_buckets=0),
    "rotary": dataclasses.replace(CONFIG, positions="rotary"),
}


@functools.cache
def models(config="from scratch", pooling="mean", window_pooling="mean"):
    """A classifier with windows and one without, with the same weights but for the score of windows."""
    windows = {"window": SHAPE.length, "window_overlap": SHAPE.overlap, "window_pooling": window_pooling}
    windowed = TextClassifier(CONFIGS[config], 3, pooling=pooling, **windows)
    plain = TextClassifier(CONFIGS[config], 3, pooling=pooling)
    for model in (windowed, plain):
        model.build()
    fill_weights(windowed)
    shared = [weight for weight in windowed.weights if "score" not in weight.path]
    plain.set_weights([to_numpy(weight.value) for weight in shared])
    return windowed, plain


def texts(lengths, width=None, seed=0):
    """Features of random texts; a text of a number has the same tokens at any width and in any batch."""
    width = width or max(lengths)
    features = {
        name: np.zeros((len(lengths), width), np.int32)
        for name in ("token_ids", "segment_ids", "padding_mask")
    }
    for row, length in enumerate(lengths):
        drawn = np.random.default_rng([seed, length]).integers(5, 60, length)
        features["token_ids"][row, :length] = drawn
        features["segment_ids"][row, :length] = drawn % 2
        features["padding_mask"][row, :length] = 1
    return features


@functools.cache
def traced(model):
    """The model as one graph for texts of any number and length."""
    specs = {name: tf.TensorSpec([None, None], tf.int32) for name in texts([1])}
    return tf.function(
        lambda features: model(features, training=False), input_signature=[specs], autograph=False
    )


def logits(model, features):
    return traced(model)(features).numpy()


@pytest.mark.parametrize(
    ("config", "pooling", "window_pooling"),
    [
        *(("from scratch", "mean", each) for each in ("mean", "max", "attention")),
        ("BERT", "cls", "mean"),
        ("rotary", "max", "attention"),
    ],
)
def test_a_text_of_one_window_has_the_prediction_of_a_classifier_without_windows(
    config, pooling, window_pooling
):
    windowed, plain = models(config, pooling, window_pooling)
    short = texts([8, 5, 2, 1])
    np.testing.assert_allclose(logits(windowed, short), logits(plain, short), atol=1e-6)
    # In a batch with a long text it has windows of padding.
    mixed = texts([8, 30, 5, 2])
    expected = logits(plain, {name: each[[0, 2, 3], :8] for name, each in mixed.items()})
    np.testing.assert_allclose(logits(windowed, mixed)[[0, 2, 3]], expected, atol=1e-6)


def test_the_mean_of_windows_is_weighted_by_votes():
    windowed, plain = models()
    features, length = texts([23]), 23
    places, ids = SHAPE.positions(length), features["token_ids"][0]
    readers = np.zeros(length)
    for window in places:
        readers[window[1:-1]] += 1
    read = {name: np.zeros((len(places), 8), np.int32) for name in features}
    votes = []
    for index, window in enumerate(places):
        read["token_ids"][index, : len(window)] = ids[window]
        read["segment_ids"][index, : len(window)] = features["segment_ids"][0][window]
        read["padding_mask"][index, : len(window)] = 1
        votes.append((1 / readers[window[1:-1]]).sum() + (index == 0) + (index == len(places) - 1))
    pooled = to_numpy(plain.pooling(plain.encoder(read), padding_mask=read["padding_mask"]))
    vector = plain.normalize((votes @ pooled / np.sum(votes))[None].astype(np.float32))
    np.testing.assert_allclose(logits(windowed, features), to_numpy(plain.head(vector)), atol=1e-5)
    shares = to_numpy(windowed.window_shares(features))[0]
    np.testing.assert_allclose(shares, np.array(votes) / length, rtol=1e-5)


@pytest.mark.parametrize("window_pooling", ["mean", "max", "attention"])
@settings(max_examples=10)
@given(data=st.data(), length=st.integers(1, 30), padding=st.integers(0, 20))
def test_padding_never_changes_a_prediction(window_pooling, data, length, padding):
    windowed, _ = models(window_pooling=window_pooling)
    features = texts([length])
    expected = logits(windowed, features)
    width = length + padding
    padded = texts([length], width)
    np.testing.assert_allclose(logits(windowed, padded), expected, atol=1e-5)
    # Values at padding have no influence either.
    noise = data.draw(st.lists(st.integers(0, 59), min_size=width, max_size=width))
    padded["token_ids"] = np.where(padded["padding_mask"], padded["token_ids"], noise).astype(np.int32)
    np.testing.assert_allclose(logits(windowed, padded), expected, atol=1e-5)


@settings(max_examples=10)
@given(lengths=st.lists(st.integers(0, 30), min_size=2, max_size=6), data=st.data())
def test_neither_the_batch_nor_its_replicas_change_a_prediction(lengths, data):
    windowed, _ = models(window_pooling="attention")
    features = texts(lengths, 30)
    together = logits(windowed, features)
    middle = data.draw(st.integers(1, len(lengths) - 1))
    halves = [
        {name: each[part] for name, each in features.items()} for part in (slice(middle), slice(middle, None))
    ]
    np.testing.assert_allclose(
        np.concatenate([logits(windowed, half) for half in halves]), together, atol=1e-5
    )
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(
            logits(windowed, texts([length], max(length, 1)))[0], together[row], atol=1e-5
        )


def test_every_token_of_a_long_text_influences_the_prediction():
    windowed, _ = models()
    features = texts([27])
    expected = logits(windowed, features)
    for place in range(27):
        changed = dict(features, token_ids=features["token_ids"].copy())
        changed["token_ids"][0, place] = changed["token_ids"][0, place] % 50 + 6
        assert np.abs(logits(windowed, changed) - expected).max() > 1e-6, place


def test_document_vectors_are_the_input_of_the_head():
    windowed, _ = models()
    vectors = to_numpy(windowed.vectors(texts([27, 4])))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(vectors[1], to_numpy(models()[1].vectors(texts([4])))[0], atol=1e-6)


def test_attention_weights_are_those_of_the_windows():
    windowed, _ = models()
    _, (weights,) = windowed(texts([27, 4]), return_attention_weights=True, training=False)
    assert tuple(weights.shape) == (2 * SHAPE.count(27), 2, 8, 8)


def test_the_maximum_sequence_length_is_the_window():
    windowed, plain = models()
    assert (windowed.max_sequence_length(500), windowed.max_sequence_length(5)) == (8, 5)
    assert plain.max_sequence_length(500) == 500
    with pytest.raises(InputError, match="at most the encoder's max_length 12, got 13"):
        TextClassifier(CONFIG, 3, window=13)

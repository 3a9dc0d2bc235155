"""Windows of documents compared with Python, row by row; pooling of windows compared with NumPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from kmha.document_windows import WindowShape
from kmha.layers.document_windows import MODES, WindowPooling, split_documents
from tests.layer_checks import BACKEND, fill_weights, gradients, to_numpy

SHAPES = [WindowShape(8, 2), WindowShape(8), WindowShape(9, 5), WindowShape(3)]


def documents(lengths, width, seed=0):
    """Random features of documents; values at padding are random too."""
    mask = (np.arange(width) < np.reshape(lengths, (-1, 1))).astype("int32")
    ids, segments = np.random.default_rng(seed).integers(1, 99, (2, *mask.shape)).astype("int32")
    return {"token_ids": ids, "segment_ids": segments % 2, "padding_mask": mask}


def by_hand(row, shape):
    """The windows of a row of real tokens, and their votes."""
    first, *text, last = row
    windows, spans = [], []
    for start in range(0, max(len(text), 1), shape.stride):
        windows.append([first, *text[start : start + shape.room], last])
        spans.append(range(start, min(start + shape.room, len(text))))
        if start + shape.room >= len(text):
            break
    readers = np.zeros(len(text))
    for span in spans:
        readers[list(span)] += 1
    votes = [float(sum(1 / readers[list(span)])) if len(span) else 0.0 for span in spans]
    votes[0] += 1
    votes[-1] += 1
    return windows, votes


def check_row(features, votes, given, row, length, shape):
    windows, expected = by_hand(given["token_ids"][row, :length].tolist(), shape)
    segments, _ = by_hand(given["segment_ids"][row, :length].tolist(), shape)
    for index, mask in enumerate(features["padding_mask"][row]):
        known = windows[index] if index < len(windows) else []
        assert mask.tolist() == [1] * len(known) + [0] * (len(mask) - len(known))
        assert features["token_ids"][row, index][mask > 0].tolist() == known
        assert features["segment_ids"][row, index][mask > 0].tolist() == (segments[index] if known else [])
    np.testing.assert_allclose(votes[row], expected + [0] * (votes.shape[1] - len(expected)), rtol=1e-5)
    assert votes[row].sum() == pytest.approx(length, rel=1e-5)


def windows_and_votes(given, shape):
    found = split_documents(given, shape)
    votes = to_numpy(found.votes)
    return {name: to_numpy(each).reshape(*votes.shape, -1) for name, each in found.features.items()}, votes


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.length}-{shape.overlap}")
@pytest.mark.parametrize("width", [2, 8, 9, 14, 15, 31])
def test_windows_and_votes_equal_a_manual_example(shape, width):
    lengths = [width, 2, min(width, 8), max(2, width - 3)]
    given = documents(lengths, width)
    features, votes = windows_and_votes(given, shape)
    assert votes.shape == (4, shape.count(width))
    assert features["token_ids"].shape[2] == min(width, shape.length)
    for row, length in enumerate(lengths):
        check_row(features, votes, given, row, length, shape)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="only TensorFlow has lengths that are not known")
def test_an_unknown_length_gives_the_same_output():
    import tensorflow as tf

    shape, names = SHAPES[0], ("token_ids", "segment_ids", "padding_mask")
    specs = {name: tf.TensorSpec([None, None], tf.int32) for name in names}
    function = tf.function(lambda features: split_documents(features, shape), input_signature=[specs])
    for width in (2, 8, 9, 15):
        given = documents([width, 2], width)
        known, found = split_documents(given, shape), function(given)
        for name in names:
            np.testing.assert_array_equal(to_numpy(found.features[name]), to_numpy(known.features[name]))
        np.testing.assert_allclose(to_numpy(found.votes), to_numpy(known.votes), rtol=1e-6)


def test_a_text_of_one_window_is_unchanged():
    given = documents([6, 1, 0], 8)
    features, votes = windows_and_votes(given, SHAPES[0])
    real = given["padding_mask"] > 0
    np.testing.assert_array_equal(features["padding_mask"][:, 0], given["padding_mask"])
    np.testing.assert_array_equal(features["token_ids"][:, 0][real], given["token_ids"][real])
    assert votes[0] == 6 and votes[1] > 0 and votes[2] == 0


@settings(max_examples=20)
@given(st.integers(2, 20), st.integers(0, 3), st.integers(0, 9))
def test_padding_adds_windows_without_votes_and_changes_no_other(length, which, padding):
    shape = SHAPES[which]
    alone, votes = windows_and_votes(documents([length], length), shape)
    given = {name: np.pad(each, [(0, 0), (0, padding)]) for name, each in documents([length], length).items()}
    padded, more = windows_and_votes(given, shape)
    windows, size = votes.shape[1], alone["token_ids"].shape[2]
    np.testing.assert_allclose(more[:, :windows], votes, rtol=1e-6)
    assert not more[:, windows:].any() and not padded["padding_mask"][:, windows:].any()
    for name, each in alone.items():
        np.testing.assert_array_equal(padded[name][:, :windows, :size], each)


VECTORS = np.random.default_rng(3).normal(size=(3, 4, 5)).astype("float32")
VOTES = np.array([[3, 1.5, 2, 1], [4, 0, 0, 0], [0, 0, 0, 0]], "float32")


def joined(mode):
    layer = WindowPooling(mode)
    layer.build((None, None, 5))
    fill_weights(layer)
    return layer


@pytest.mark.parametrize("mode", MODES)
def test_window_pooling_equals_numpy(mode):
    layer = joined(mode)
    found = to_numpy(layer(VECTORS, VOTES))
    weights = VOTES[0].astype(np.float64)
    if mode == "attention":
        assert layer.score is not None
        weights *= np.exp(VECTORS[0] @ to_numpy(layer.score.kernel)[:, 0])
    expected = VECTORS[0].max(axis=0) if mode == "max" else weights @ VECTORS[0] / weights.sum()
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)
    # A single window gives its own vector exactly; a document without tokens gives zeros.
    np.testing.assert_array_equal(found[1], VECTORS[1, 0])
    assert not to_numpy(layer(0 * VECTORS, VOTES))[2].any()


@pytest.mark.parametrize("mode", MODES)
def test_shares_sum_to_one_and_are_those_of_the_vector(mode):
    layer = joined(mode)
    shares = to_numpy(layer.shares(VECTORS, VOTES))
    np.testing.assert_allclose(shares.sum(axis=1)[:2], 1, rtol=1e-6)
    np.testing.assert_array_equal(shares[1], [1, 0, 0, 0])
    if mode == "max":
        np.testing.assert_allclose(shares[0], np.bincount(VECTORS[0].argmax(axis=0), minlength=4) / 5)
    else:
        np.testing.assert_allclose(shares[0] @ VECTORS[0], to_numpy(layer(VECTORS, VOTES))[0], rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_windows_without_votes_get_no_gradient(mode):
    layer = joined(mode)
    (found,) = gradients(lambda vectors: ops.sum(layer(vectors, VOTES)[:2] ** 2), VECTORS)
    assert not found[1, 1:].any() and found[1, 0].any() and np.isfinite(found).all()


def test_attention_starts_as_the_mean():
    attention, mean = WindowPooling("attention"), WindowPooling("mean")
    np.testing.assert_allclose(to_numpy(attention(VECTORS, VOTES)), to_numpy(mean(VECTORS, VOTES)), rtol=1e-6)


def test_an_unknown_mode_is_rejected():
    with pytest.raises(ValueError, match="'last'"):
        WindowPooling("last")  # pyright: ignore[reportArgumentType]

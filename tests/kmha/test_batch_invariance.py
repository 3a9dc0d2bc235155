"""Padding and batch composition never change a prediction of the whole classifier, from strings to probabilities."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bundles import TEXTS, make_bundle, one_label_bundle, several_label_bundle


@functools.cache
def alone(make, text: str):
    return make().probabilities([text])[0]


@pytest.mark.parametrize("make", [one_label_bundle, several_label_bundle])
@settings(max_examples=25)
@given(
    text=st.one_of(st.sampled_from(TEXTS), st.text(max_size=40)),
    before=st.lists(st.text(max_size=60), max_size=3),
    after=st.lists(st.sampled_from(TEXTS), max_size=3),
)
def test_other_texts_in_the_batch_never_change_a_prediction(make, text, before, after):
    together = make().probabilities([*before, text, *after])
    np.testing.assert_allclose(together[len(before)], alone(make, text), atol=1e-5)


@pytest.mark.parametrize("make", [one_label_bundle, several_label_bundle])
@settings(max_examples=25)
@given(data=st.data(), length=st.integers(1, 24), padding=st.integers(0, 23))
def test_padding_never_changes_a_prediction(make, data, length, padding):
    made = make()
    inside = st.integers(1, len(made.preprocessor.vocabulary) - 1)
    ids = np.array(data.draw(st.lists(inside, min_size=length, max_size=length)))[None]
    padding = min(padding, 24 - length)
    filler = np.array(data.draw(st.lists(inside, min_size=padding, max_size=padding)), int)[None]
    mask = np.arange(length + padding)[None] < length
    expected = made.probabilities_of_ids(ids)
    zeros = np.pad(ids, [(0, 0), (0, padding)])
    np.testing.assert_allclose(made.probabilities_of_ids(zeros, mask), expected, atol=1e-5)
    # Values at padding have no influence either.
    noise = np.concatenate([ids, filler], axis=1)
    np.testing.assert_allclose(made.probabilities_of_ids(noise, mask), expected, atol=1e-5)


def test_the_random_classifier_distinguishes_texts():
    found = one_label_bundle().probabilities(TEXTS)
    assert np.ptp(found, axis=0).max() > 0.1


@pytest.mark.parametrize(
    ("positions", "norm"), [("sinusoidal", "pre"), ("rotary", "post"), ("none", "pre"), ("none", "post")]
)
def test_predictions_of_all_encoders_are_independent_of_the_batch(positions, norm):
    made = make_bundle(positions=positions, norm=norm, num_segments=2)
    together = made.probabilities([*TEXTS, TEXTS[0] * 3])
    apart = np.concatenate([made.probabilities([text]) for text in TEXTS[:3]])
    np.testing.assert_allclose(together[:3], apart, atol=1e-5)

"""The devices' decoder of whole sentences against the one in the graph."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from export.device.files import tokenizer_values
from export.device.tags import TagDecoder
from kmha.inference.tagger import PathDecoder
from tests.bundles import tagger_bundle
from tests.export.tagger_bundles import KINDS


@functools.cache
def both(kind):
    bundle = tagger_bundle(kind)
    values = tokenizer_values(bundle)
    return PathDecoder(bundle.model), TagDecoder(values["transitions"], values["start"], values["end"])


def check_same(kind, scores):
    graph, device = both(kind)
    expected = graph(scores, np.array([len(scores)]))
    probabilities, tag_ids, path = device(scores)
    assert (probabilities.dtype, tag_ids.dtype, path.dtype) == (np.float32, np.int32, np.float32)
    np.testing.assert_array_equal(tag_ids, expected.tag_ids)
    np.testing.assert_allclose(probabilities, expected.probabilities, atol=1e-5)
    np.testing.assert_allclose(path, expected.path_probabilities, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_scores(kind, data):
    num_tags = len(tagger_bundle(kind).labels)
    numbers = st.integers(-2000, 2000).map(lambda number: number / 100)
    shape = (data.draw(st.integers(0, 40)), num_tags)
    check_same(kind, data.draw(arrays(np.float32, shape, elements=numbers.map(np.float32))))


def test_the_longest_sentence_and_scores_of_forbidden_transitions():
    generator = np.random.default_rng(3)
    check_same("spelt", generator.normal(size=(2048, 5)).astype(np.float32))
    inside = np.zeros((300, 5), np.float32)
    inside[:, 2] = 30.0
    check_same("spelt", inside)

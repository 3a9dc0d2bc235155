"""The linear model of two texts: shared tokens, overlap features, and logits of known pairs."""

import numpy as np
import pytest

from kmha.layers.embedding import FINGERPRINT_MODULUS
from kmha.layers.linear_pairs import OVERLAP_FEATURES, TRIGRAM_FEATURES, LinearPairs, pair_keys
from kmha.layers.trigrams import BUCKETS, TokenTrigrams
from tests.layer_checks import compiled, to_numpy

V, SLOTS, C, FIRST = 40, 31, 3, 5
IDS_A = np.array([[2, 10, 11, 10, 12, 13, 3], [2, 1, 3, 0, 0, 0, 0], [2, 3, 0, 0, 0, 0, 0]], np.int32)
IDS_B = np.array([[2, 12, 13, 14, 3], [2, 20, 21, 3, 0], [2, 3, 0, 0, 0]], np.int32)
MASKS = (IDS_A > 0).astype(np.int32), (IDS_B > 0).astype(np.int32)
PAIR = IDS_A, MASKS[0], IDS_B, MASKS[1]


def random_layer(**options) -> LinearPairs:
    """A layer with random weights, whose only known pair is that of tokens 11 and 14."""
    layer = LinearPairs(C, V, FIRST, 1, SLOTS, **options)
    layer.build((None, None))
    generator = np.random.default_rng(0)
    for weight in layer.weights:
        if weight.dtype == "float32":
            weight.assign(generator.uniform(0.5, 2.0, weight.shape))
    layer.stems.assign(np.arange(V) // 2)
    layer.is_number.assign(np.arange(V) % 3 == 0)
    layer.pairs.embeddings.assign([[0.0] * C, [1.0, 2.0, 3.0]])
    slot, fingerprint = (int(each) for each in pair_keys(np.int32(11), np.int32(14), SLOTS))
    packed = np.zeros(SLOTS, np.int32)
    packed[slot] = FINGERPRINT_MODULUS + fingerprint
    layer.packed.assign(packed)
    return layer


def test_shared_and_other_tokens_count_once():
    _, only_a, both, only_b = (to_numpy(each) for each in random_layer().overlap(*PAIR))
    np.testing.assert_array_equal(only_a[0], [0, 1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(both[0], [0, 0, 0, 0, 1, 1, 0])
    np.testing.assert_array_equal(only_b[:2], [[0, 0, 0, 1, 0], [0, 1, 1, 0, 0]])
    # Special and unknown tokens are left out.
    assert not only_a[1:].any() and not both[1:].any()


def test_the_first_numbers_are_shares_of_unigrams_and_bigrams():
    layer = random_layer()
    layer.idf.assign(np.ones(V))
    layer.mean_length.assign(4.0)
    found = to_numpy(layer.overlap(*PAIR)[0])[0]
    # Two of the four different tokens of A and of the three of B; one of its four bigrams and of the two of B.
    np.testing.assert_allclose(found[:6], [2 / 4, 2 / 3, 4 / 7] * 2, rtol=1e-6)
    np.testing.assert_allclose(found[6:12], [1 / 4, 1 / 2, 2 / 6] * 2, rtol=1e-6)
    # Stems: 10 and 11 are one, as are 12 and 13.
    np.testing.assert_allclose(found[18:21], [2 / 4, 2 / 3, 4 / 7], rtol=1e-6)
    # Counts 2, 1, 1, 1 and 1, 1, 1; the BM25 of two tokens in three of four.
    np.testing.assert_allclose(found[24], 2 / (7 * 3) ** 0.5, rtol=1e-6)
    np.testing.assert_allclose(found[25], 2 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 3 / 4)), rtol=1e-6)
    assert len(found) == OVERLAP_FEATURES


def test_the_last_numbers_are_shares_of_trigrams():
    tables = TokenTrigrams.of(["none"] * FIRST + [f"bread{chr(97 + n)}" for n in range(V - FIRST)])
    layer = random_layer(trigrams=tables.inside.shape[1])
    assert layer.spelling is not None
    layer.spelling.assign(tables)
    # Of "#breadf#" and "#breadg#", and of "#breadf#" twice, trigrams of the ending differ.
    ids_a, ids_b = np.array([[10], [10], [2]], np.int32), np.array([[11], [10], [10]], np.int32)
    ones = np.ones_like(ids_a)

    def found() -> np.ndarray:
        return to_numpy(layer.overlap(ids_a, ones, ids_b, ones)[0])[:, -TRIGRAM_FEATURES:]

    layer.trigram_weights.assign(np.ones(BUCKETS))
    np.testing.assert_allclose(found()[0], 4 / 6, rtol=1e-6)
    # A text without a trigram shares none.
    np.testing.assert_array_equal(found()[1:], [[1.0] * 6, [0.0] * 6])
    # Rare trigrams weigh more.
    only_here = (
        to_numpy(layer.text_trigrams(ids_a[:1], ones[:1]))[0]
        > to_numpy(layer.text_trigrams(ids_b[:1], ones[:1]))[0]
    )
    layer.trigram_weights.assign(np.where(only_here, 3.0, 1.0))
    np.testing.assert_allclose(found()[0], [4 / 6] * 3 + [4 / 10, 4 / 6, 4 / 60**0.5], rtol=1e-6)


def test_logits_are_the_sum_of_numbers_tokens_and_known_pairs():
    layer = random_layer()
    found = to_numpy(layer(*PAIR))
    features, kernel, bias = (to_numpy(each) for each in (layer.overlap(*PAIR)[0], layer.kernel, layer.bias))
    tokens = to_numpy(layer.tokens.embeddings).reshape(V, 3, C)
    expected = features[0] @ kernel + bias + tokens[[10, 11], 0].sum(0) + tokens[[12, 13], 1].sum(0)
    # The pair 10 and 14 is unknown.
    expected += tokens[14, 2] + [1.0, 2.0, 3.0]
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)
    for function in compiled(layer).values():
        np.testing.assert_allclose(to_numpy(function(*PAIR)), found, rtol=1e-5)


def test_padding_has_no_effect_whatever_its_ids():
    layer = random_layer()
    padded = [
        np.pad(each, ((0, 0), (0, 3)), constant_values=12 * (n % 2 == 0)) for n, each in enumerate(PAIR)
    ]
    np.testing.assert_allclose(to_numpy(layer(*padded)), to_numpy(layer(*PAIR)), rtol=1e-5)


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_order_of_the_texts(symmetric):
    layer = random_layer(symmetric=symmetric)
    found, swapped = to_numpy(layer(*PAIR)), to_numpy(layer(*PAIR[2:], *PAIR[:2]))
    assert np.isfinite(found).all()
    assert np.allclose(found, swapped, rtol=1e-5) == symmetric


def test_no_weight_is_trainable_and_logits_are_scaled_by_label():
    layer = random_layer()
    assert not [weight.path for weight in layer.weights if weight.trainable]
    before = to_numpy(layer(*PAIR))
    layer.scale(np.array([1.0, 2.0, 3.0], np.float32))
    np.testing.assert_allclose(to_numpy(layer(*PAIR)), before * [1.0, 2.0, 3.0], rtol=1e-5)


def test_tokens_of_one_word_are_joined():
    layer = random_layer()
    layer.continues.assign(np.arange(V) >= 30)
    layer.is_number.assign(np.arange(V) == 10)
    # 10 31 32 and 10 31 33 are words; 10 is one too.
    a = np.array([[2, 10, 31, 32, 11, 10, 31, 33, 3]], np.int32)
    b = np.array([[2, 10, 31, 32, 12, 10, 3, 0, 0]], np.int32)
    features, *marks = (
        to_numpy(each)[0] for each in layer.overlap(a, np.ones_like(a), b, (b > 0).astype(np.int32))
    )
    np.testing.assert_allclose(features[:3], [1 / 3, 1 / 3, 1 / 3], rtol=1e-6)
    # Only words of one token have weights: 11 in A, 12 and 10 in B.
    assert [each.nonzero()[0].tolist() for each in marks] == [[4], [], [4, 5]]
    # Numbers: one word in both, one in A, one in B.
    np.testing.assert_allclose(features[31:34], np.log(2.0), rtol=1e-6)

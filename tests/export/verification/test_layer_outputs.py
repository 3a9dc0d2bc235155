import numpy as np
import pytest
import tensorflow as tf

from export.verification.layer_outputs import layer_outputs, padded, sequences
from tests.bundles import PAIRS, TEXTS, make_bundle, make_pair_bundle, one_label_bundle

ENCODERS = [
    {"num_layers": 2},
    {"norm": "post", "positions": "sinusoidal"},
    {"positions": "rotary", "num_segments": 2, "ngram_buckets": 0},
]


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_layers_are_those_that_the_model_computes(encoder):
    bundle = make_bundle(**encoder)
    ids = sequences(bundle, [text.encode() for text in TEXTS])
    features = padded(bundle, ids, 24)
    mask, layers = features["padding_mask"], layer_outputs(bundle, features)
    np.testing.assert_allclose(layers["probabilities"], bundle.probabilities(TEXTS), atol=1e-6)
    # The last block's output leads to the pooled vector, so the blocks are chained as in the model.
    last = layers[f"block_{bundle.model.encoder_config.num_layers - 1}"]
    mean = (last * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    np.testing.assert_allclose(layers["pooling"], mean, atol=1e-5)
    names = ["tokenizer", "embedding"]
    for index in range(bundle.model.encoder_config.num_layers):
        names += [f"block_{index} attention weights", f"block_{index}"]
    assert list(layers) == [*names, "pooling", "logits", "probabilities"]


def test_truncated_sequences_keep_the_end_token():
    bundle = one_label_bundle()
    texts = [text.encode() for text in TEXTS]
    ids = sequences(bundle, texts)
    features = bundle.preprocessor(tf.constant(texts))
    found = padded(bundle, ids)
    assert list(found) == ["token_ids", "padding_mask"]
    for name, value in found.items():
        np.testing.assert_array_equal(value, features[name])
    truncated = [row[0] for row in sequences(bundle, texts, 6)]
    assert max(map(len, truncated)) == 6
    for short, (whole,) in zip(truncated, ids, strict=True):
        assert short == whole if len(whole) <= 6 else [*whole[:5], whole[-1]]


ROWS = [tuple(text.encode() for text in pair) for pair in PAIRS]
SIDE = ["embedding", "block_0 attention weights", "block_0"]


def named(parts, side) -> list[str]:
    return [f"{side} {part}" for part in parts]


def rounds(count: int) -> list[str]:
    return [
        name
        for index in range(count)
        for side in "ab"
        for name in (f"{side} round_{index} attention weights", f"{side} round_{index}")
    ]


OVERLAP, POOLING = ["a overlap marks", "b overlap marks"], ["a pooling", "b pooling"]
KINDS = {
    "cross": (
        {"rounds": 2, "share_weights": False},
        ["tokenizer a", "tokenizer b", *named(SIDE, "a"), *named(SIDE, "b"), *OVERLAP, *rounds(2), *POOLING],
    ),
    "bi": (
        {"form": "bi"},
        ["tokenizer a", "tokenizer b", *named(SIDE, "a"), *named(SIDE, "b"), *POOLING],
    ),
    "joint": (
        {"form": "joint", "symmetric": True},
        ["tokenizer a", "tokenizer b", "a embedding", "b embedding", *OVERLAP, *SIDE[1:], "pooling"],
    ),
    "two granularities": (
        {"granularities": ("char", "word"), "target": "graded"},
        [
            *("tokenizer char a", "tokenizer char b", "tokenizer word a", "tokenizer word b"),
            *(
                f"{granularity} {name}"
                for granularity in ("char", "word")
                for name in [*named(SIDE, "a"), *named(SIDE, "b"), *OVERLAP, *rounds(1), *POOLING]
            ),
        ],
    ),
}


@pytest.mark.second
@pytest.mark.parametrize("kind", KINDS)
def test_the_layers_are_those_that_the_matcher_computes(kind):
    options, names = KINDS[kind]
    bundle = make_pair_bundle(**options)
    # Padded further than any row needs, as a file of fixed lengths does.
    features = padded(bundle, sequences(bundle, ROWS), 24)
    layers = layer_outputs(bundle, features)
    assert list(layers) == [*names, "logits", "probabilities"]
    np.testing.assert_allclose(layers["probabilities"], bundle.probabilities(ROWS), atol=1e-5, rtol=1e-5)
    # The parts, chained here one by one, give the same values as the model.
    _, weights = bundle.model(features, return_attention_weights=True, training=False)
    chained = {
        "cross": ("attention_b_to_a", "b round_1 attention weights"),
        "bi": ("attention_b", "b block_0 attention weights"),
        "joint": ("attention", "block_0 attention weights"),
        "two granularities": ("word_attention_a_to_b", "word a round_0 attention weights"),
    }
    model_name, name = chained[kind]
    np.testing.assert_allclose(layers[name], weights[model_name][-1], atol=1e-5)


def test_the_pooled_vectors_are_those_that_the_head_reads():
    bundle = make_pair_bundle(form="bi")
    features = padded(bundle, sequences(bundle, ROWS))
    layers = layer_outputs(bundle, features)
    for side in "ab":
        pooled = layers[f"{side} pooling"]
        unit = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        np.testing.assert_allclose(unit, bundle.model.vectors(features, side), atol=1e-5)


def test_sequences_of_pairs_are_those_of_the_preprocessor():
    bundle = make_pair_bundle(("char", "word"))
    features = padded(bundle, sequences(bundle, ROWS))
    expected = bundle.preprocessor(*(list(column) for column in zip(*ROWS, strict=True)))
    assert list(features) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(features[name], value)
    short = sequences(bundle, ROWS, 6)
    assert {len(row) for row in short} == {4}
    assert max(len(ids) for row in short for ids in row) == 6

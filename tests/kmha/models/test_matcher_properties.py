"""Invariance and finite values of the scores, in every form of the matcher."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kmha.models.tiny_features import V
from tests.kmha.models.tiny_pairs import (
    FIRST,
    FIRST_WORD,
    LENGTH,
    MATCHERS,
    SYMMETRIC,
    A,
    B,
    in_graph,
    matcher,
    new_matcher,
    pair_features,
    text,
)
from tests.layer_checks import to_numpy
from tests.stages import with_stages

every_matcher = pytest.mark.parametrize("name", with_stages(MATCHERS, FIRST))
every_symmetric = pytest.mark.parametrize("name", with_stages(SYMMETRIC, FIRST))
# With unknown words. Few different tokens, so that texts share some.
words = st.lists(st.sampled_from([1, *range(FIRST_WORD, FIRST_WORD + 6)]), max_size=LENGTH - 2)
texts = words.map(lambda ids: text(*ids))
# Always the same number of rows: a new shape takes far longer than the computation.
pairs = st.lists(st.tuples(texts, texts), min_size=3, max_size=3)


def _logits(name, a, b, length_a=None, length_b=None):
    return to_numpy(in_graph(name)(pair_features(matcher(name), a, b, length_a, length_b)))


def _apart(rows):
    return [a for a, _ in rows], [b for _, b in rows]


@every_matcher
@settings(max_examples=8)
@given(rows=pairs, pad_a=st.booleans())
def test_padding_either_side_never_changes_a_score(name, rows, pad_a):
    a, b = _apart(rows)
    lengths = (LENGTH, None) if pad_a else (None, LENGTH)
    scores = _logits(name, a, b)
    np.testing.assert_allclose(_logits(name, a, b, *lengths), scores, rtol=0, atol=1e-5)
    np.testing.assert_allclose(_logits(name, a, b, LENGTH, LENGTH), scores, rtol=0, atol=1e-5)


@every_matcher
@settings(max_examples=8)
@given(rows=pairs, order=st.permutations(range(3)))
def test_batch_composition_never_changes_a_score(name, rows, order):
    together = _logits(name, *_apart(rows), LENGTH, LENGTH)
    shuffled = _logits(name, *_apart([rows[i] for i in order]), LENGTH, LENGTH)
    np.testing.assert_allclose(shuffled, together[order], rtol=0, atol=1e-5)
    alone = _logits(name, *_apart(rows[:1]), LENGTH, LENGTH)
    np.testing.assert_allclose(alone[0], together[0], rtol=0, atol=1e-5)


@every_matcher
def test_values_at_padding_never_change_a_score(name):
    score = in_graph(name)
    features = pair_features(matcher(name), A[:3], B[:3], LENGTH, LENGTH)
    noisy = dict(features)
    generator = np.random.default_rng(1)
    for ids in (key for key in features if "token_ids" in key):
        padding = features[ids.replace("token_ids", "padding_mask")] == 0
        assert padding.any()
        noisy[ids] = np.where(padding, generator.integers(1, V, padding.shape), features[ids]).astype("int32")
    np.testing.assert_allclose(to_numpy(score(noisy)), to_numpy(score(features)), rtol=0, atol=1e-5)


@every_symmetric
@settings(max_examples=8)
@given(rows=pairs)
def test_a_symmetric_score_is_the_same_both_ways(name, rows):
    a, b = _apart(rows)
    scores = _logits(name, a, b, LENGTH, LENGTH)
    np.testing.assert_array_equal(_logits(name, b, a, LENGTH, LENGTH), scores)
    np.testing.assert_allclose(_logits(name, b, a), scores, rtol=0, atol=1e-5)


@every_symmetric
def test_a_symmetric_score_is_the_same_both_ways_without_a_graph(name):
    model = matcher(name)
    there, back = (pair_features(model, *sides) for sides in ((A, B), (B, A)))
    np.testing.assert_array_equal(to_numpy(model(back)), to_numpy(model(there)))


@every_matcher
def test_only_a_symmetric_matcher_ignores_the_order(name):
    # The bi form is symmetric if both texts use the same encoder.
    symmetric = name in SYMMETRIC or (MATCHERS[name].get("form") == "bi" and name != "bi, own weights")
    there, back = (_logits(name, *sides, LENGTH, LENGTH) for sides in ((A[:3], B[:3]), (B[:3], A[:3])))
    changed = np.abs(there - back).max()
    assert changed < 1e-5 if symmetric else changed > 1e-3


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize("name", ["cross", "bi", "joint"])
def test_empty_and_identical_texts_are_finite(name, pooling):
    model = new_matcher(name, pooling=pooling)
    model.build()
    full, empty, padding = text(5, 6, 7), text(), []
    rows = [(full, empty), (empty, full), (empty, empty), (full, full), (full, padding), (padding, full)]
    a, b = _apart([*rows, (padding, padding), (empty, padding), (padding, empty)])
    assert np.isfinite(to_numpy(model(pair_features(model, a, b)))).all()
    # Only padding, of the minimum width.
    for one, other in (([padding], [full]), ([full], [padding]), ([padding], [padding])):
        widths = [None if side[0] else 1 for side in (one, other)]
        assert np.isfinite(to_numpy(model(pair_features(model, one, other, *widths)))).all()


@every_matcher
def test_returning_weights_changes_no_bit_and_rows_sum_to_one(name):
    model = matcher(name)
    a, b = [*A, text(5), []], [*B, [], text(5)]
    features = pair_features(model, a, b)
    logits, weights = model(features, return_attention_weights=True)
    np.testing.assert_array_equal(to_numpy(logits), to_numpy(model(features)))
    assert set(weights) == set(_expected_weights(model))
    for key, (count, query, mask) in _expected_weights(model).items():
        mask = np.concatenate([features[each] for each in mask], axis=1)
        # In the joint form without the second [CLS].
        mask = np.delete(mask, features[query].shape[1], axis=1) if model.form == "joint" else mask
        length = mask.shape[1] if model.form == "joint" else features[query].shape[1]
        assert len(weights[key]) == count
        for block in map(to_numpy, weights[key]):
            assert block.shape == (len(a), 2, length, mask.shape[1])
            assert (np.moveaxis(block, -1, 1)[mask == 0] == 0).all()
            is_open = np.expand_dims(mask.any(axis=1), (1, 2))
            np.testing.assert_allclose(
                block.sum(axis=-1), np.broadcast_to(is_open, block.shape[:-1]), atol=1e-5
            )


def _expected_weights(model):
    """Number of blocks, ids of the queries and masks of the keys, by name."""
    found = {}
    for name, pair in zip(model.granularities, model.pairs, strict=True):
        prefix = f"{name}_" if len(model.granularities) > 1 else ""
        ids = {side: f"{prefix}token_ids_{side}" for side in "ab"}
        masks = {side: f"{prefix}padding_mask_{side}" for side in "ab"}
        layers = pair.config.num_layers
        if model.form == "joint":
            found[f"{prefix}attention"] = (layers, ids["a"], list(masks.values()))
            continue
        for side, other in ("ab", "ba"):
            found[f"{prefix}attention_{side}"] = (layers, ids[side], [masks[side]])
            if model.form == "cross" and pair.rounds_a:
                found[f"{prefix}attention_{side}_to_{other}"] = (
                    len(pair.rounds_a),
                    ids[side],
                    [masks[other]],
                )
    return found


def _gradients(model, features) -> dict[str, np.ndarray]:
    """Of a sum of the logits, by the path of the weight; every trainable weight has one."""
    weights = model.trainable_variables
    with tf.GradientTape() as tape:
        logits = model(features, training=True)
        loss = tf.reduce_sum(logits * np.random.default_rng(2).normal(size=logits.shape))
    found = tape.gradient(loss, [weight.value for weight in weights])
    assert not [weight.path for weight, gradient in zip(weights, found, strict=True) if gradient is None]
    return {
        weight.path: tf.convert_to_tensor(each).numpy() for weight, each in zip(weights, found, strict=True)
    }


@every_matcher
def test_gradients_reach_every_weight_and_none_comes_from_padding(name):
    model = matcher(name)
    found = _gradients(model, pair_features(model, A, B, LENGTH, LENGTH))
    assert not [path for path, gradient in found.items() if not gradient.any()]
    assert all(np.isfinite(gradient).all() for gradient in found.values())
    tables = [path for path in found if path.endswith("/tokens/embeddings")]
    assert len(tables) == sum(len(pair.encoders) for pair in model.pairs)
    assert not any(found[path][0].any() for path in tables)
    marks = [path for path in found if path.endswith("/mark/kernel")]
    assert len(marks) == sum(pair.overlap for pair in model.pairs)


@pytest.mark.parametrize(
    "name", ["cross, two granularities", "bi, two granularities", "joint, two granularities"]
)
def test_gradients_are_finite_from_the_first_step_on(name):
    model = new_matcher(name)
    model.build()
    a, b = [*A, [], text(5), []], [*B, text(5), [], []]
    found = _gradients(model, pair_features(model, a, b))
    assert all(np.isfinite(gradient).all() for gradient in found.values())

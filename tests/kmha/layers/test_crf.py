"""The CRF compared with the enumeration of all paths in float64."""

import functools

import keras
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from keras import ops

from kmha.layers import crf
from kmha.layers.crf import (
    CRF,
    FORBIDDEN,
    Potentials,
    decode,
    log_likelihood,
    log_partition,
    marginals,
    path_probabilities,
    viterbi,
)
from tests.kmha.layers.references import every_path, log_of_sum, random_potentials
from tests.layer_checks import BACKEND, compiled, gradients, run, to_numpy

# "logarithms": always uses the fallback for inaccurate products.
WAYS = {"products": crf.SAFE, "logarithms": 2.0}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    monkeypatch.setattr(crf, "SAFE", WAYS[request.param])
    return request.param


def _expected(potentials, tag_ids):
    """Expected results of the functions below, row by row."""
    emissions, mask, transitions, start, end = potentials
    rows, width, num_tags = emissions.shape
    found = {
        "log_likelihood": np.zeros(rows),
        "log_partition": np.zeros(rows),
        "marginals": np.zeros((rows, width, num_tags)),
        "path_probabilities": np.zeros((rows, width)),
        "viterbi": np.zeros((rows, width), int),
    }
    for row, length in enumerate(mask.sum(axis=1)):
        if not length:
            continue
        first = start[row] if start.ndim == 2 else start
        paths, scores = every_path(emissions[row, :length], transitions, first, end)
        total = log_of_sum(scores)
        probabilities = np.exp(scores - total)
        tags = tag_ids[row, :length]
        found["log_partition"][row] = total
        found["log_likelihood"][row] = scores[(paths == tags).all(axis=1)].item() - total
        found["viterbi"][row, :length] = paths[scores.argmax()]
        for t in range(length):
            for tag in range(num_tags):
                found["marginals"][row, t, tag] = probabilities[paths[:, t] == tag].sum()
            among = paths[:, t - 1] == tags[t - 1] if t else np.ones(len(paths), bool)
            # In log space, because small probabilities would underflow.
            chosen = scores[among & (paths[:, t] == tags[t])]
            found["path_probabilities"][row, t] = np.exp(log_of_sum(chosen) - log_of_sum(scores[among]))
    return found


def _everything(potentials, tag_ids):
    return {
        "log_likelihood": log_likelihood(potentials, tag_ids),
        "log_partition": log_partition(potentials),
        "marginals": marginals(potentials),
        "path_probabilities": path_probabilities(potentials, tag_ids),
        "viterbi": viterbi(potentials),
    }


@functools.cache
def _compiled_once(safe: float):
    """Under jit on JAX; compiled once for each shape."""
    del safe  # what is traced depends on it
    return compiled(_everything)["jit"] if BACKEND == "jax" else _everything


def _found(potentials, tag_ids):
    tensors = Potentials(*map(ops.convert_to_tensor, potentials))
    found = _compiled_once(crf.SAFE)(tensors, ops.convert_to_tensor(tag_ids))
    return {name: to_numpy(value) for name, value in found.items()}


def _check(potentials, tag_ids, atol=2e-5, rtol=1e-5):
    found, expected = _found(potentials, tag_ids), _expected(potentials, tag_ids)
    np.testing.assert_array_equal(found.pop("viterbi"), expected.pop("viterbi"))
    for name, value in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("starts", ["[K]", "[B, K]"])
@pytest.mark.parametrize("forbidding", [False, True])
@pytest.mark.parametrize("num_tags", [1, 2, 3, 4])
def test_equals_the_sum_over_all_paths(num_tags, forbidding, starts, way):
    _check(*random_potentials(num_tags, width=6, forbidding=forbidding, starts=starts))


@pytest.mark.parametrize("num_tags", [1, 3])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_without_padding(width, num_tags):
    _check(*random_potentials(num_tags, [width], forbidding=True, seed=width))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("forbidding", [False, True])
def test_large_potentials_are_exact(forbidding, seed):
    potentials, tag_ids = random_potentials(4, width=6, forbidding=forbidding, seed=seed, scale=50.0)
    _check(potentials, tag_ids, atol=1e-4)


def test_inaccurate_products_fall_back_to_logarithms():
    # Each word prefers a tag that may not follow the previous one: the allowed rest is exp(-100).
    transitions = np.array([[0, FORBIDDEN], [0, 0]], "float32")
    emissions = np.array([[[100, 0], [0, 100], [100, 0], [0, 100]]], "float32")
    nothing = np.zeros(2, "float32")
    potentials = Potentials(emissions, np.ones((1, 4), "int32"), transitions, nothing, nothing)
    tensors = Potentials(*map(ops.convert_to_tensor, potentials))
    assert not to_numpy(crf._by_products(tensors)[0])
    _check(potentials, np.array([[1, 1, 1, 1]], "int32"))
    ordinary = random_potentials(4, width=6, forbidding=True)[0]
    assert to_numpy(crf._by_products(Potentials(*map(ops.convert_to_tensor, ordinary)))[0])


def test_a_sentence_without_an_allowed_path_has_finite_results():
    shut = np.full((2, 2), FORBIDDEN, "float32")
    emissions, mask = np.zeros((1, 3, 2), "float32"), np.ones((1, 3), "int32")
    potentials = Potentials(emissions, mask, shut, shut[0], shut[0])
    found = _found(potentials, np.zeros((1, 3), "int32"))
    # All paths have the same score, so each has probability 1/8.
    np.testing.assert_allclose(found["log_likelihood"], -np.log(8), atol=1e-2)
    np.testing.assert_allclose(found["marginals"], 0.5, atol=1e-2)


PARTS = ("emissions", "transitions", "start", "end")


@pytest.mark.parametrize("forbidding", [False, True])
@pytest.mark.parametrize("num_tags", [1, 3])
def test_gradients_equal_finite_differences(num_tags, forbidding, way):
    potentials, tag_ids = random_potentials(num_tags, [3, 0, 1, 4], 5, forbidding, starts="[B, K]", seed=3)
    weights = np.array([0.5, 2.0, 1.0, -3.0])
    mask = potentials.word_mask
    # Only allowed paths: finite differences cannot resolve the derivative at scores of -1e4.
    tag_ids = np.zeros_like(tag_ids) if forbidding else tag_ids

    def loss(*arrays):
        given = dict(zip(PARTS, arrays, strict=True))
        found = log_likelihood(Potentials(word_mask=mask, **given), tag_ids)
        return ops.sum(found * weights.astype("float32"))

    arrays = [getattr(potentials, name) for name in PARTS]
    found = gradients(loss, *arrays)
    exact = [array.astype(np.float64) for array in arrays]
    for name, gradient, array in zip(PARTS, found, exact, strict=True):
        for place in np.ndindex(*array.shape):
            values = []
            for shift in (1e-4, -1e-4):
                array[place] += shift
                moved = Potentials(word_mask=mask, **dict(zip(PARTS, exact, strict=True)))
                values.append(_expected(moved, tag_ids)["log_likelihood"] @ weights)
                array[place] -= shift
            difference = (values[0] - values[1]) / 2e-4
            assert gradient[place] == pytest.approx(difference, abs=2e-4), (name, place)


@pytest.mark.second
def test_compiled_without_known_sizes_gives_the_same(way):
    potentials, tag_ids = random_potentials(3, width=6, forbidding=True)

    def everything(*arrays):
        *parts, tag_ids = arrays
        return [*decode(Potentials(*parts)), *_value_and_gradients(parts, tag_ids)]

    tensors = [ops.convert_to_tensor(array) for array in (*potentials, tag_ids)]
    expected = everything(*tensors)
    for name, function in _compiled_forms(everything).items():
        for ours, theirs in zip(function(*tensors), expected, strict=True):
            np.testing.assert_allclose(to_numpy(ours), to_numpy(theirs), atol=1e-5, rtol=1e-5, err_msg=name)


def _value_and_gradients(parts, tag_ids):
    emissions, mask, *shared = parts

    def loss(emissions, *shared):
        return ops.sum(log_likelihood(Potentials(emissions, mask, *shared), tag_ids))

    if BACKEND == "jax":
        import jax

        value, found = jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(emissions, *shared)
        return [value, *found]
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch((emissions, shared))
        value = loss(emissions, *shared)
    return [value, *tape.gradient(value, (emissions, *shared))]


def _compiled_forms(function):
    """Those of the checker; on TensorFlow traced without knowing B and W, as training does."""
    forms = compiled(function)
    if BACKEND == "jax":
        return forms
    import tensorflow as tf

    shapes = [(None, None, 3), (None, None), (3, 3), (3,), (3,), (None, None)]
    dtypes = ["float32", "int32", "float32", "float32", "float32", "int32"]
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    return {
        name: tf.function(lambda *given, form=form: form(*given), input_signature=specs, autograph=False)
        for name, form in forms.items()
    }


def test_split_batches_add_up(way):
    potentials, tag_ids = random_potentials(3, width=6, forbidding=True)
    emissions, mask, *shared = potentials

    def loss(rows, *arrays):
        found = log_likelihood(Potentials(emissions[rows], mask[rows], *arrays), tag_ids[rows])
        return ops.sum(found)

    whole = gradients(functools.partial(loss, slice(0, 6)), *shared)
    halves = [gradients(functools.partial(loss, rows), *shared) for rows in (slice(0, 3), slice(3, 6))]
    for together, first, second in zip(whole, *halves, strict=True):
        np.testing.assert_allclose(together, first + second, atol=1e-5)


BIO = {
    # O, B-a, I-a, B-b, I-b
    "allowed": [[1, 1, 0, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 0, 1, 1], [1, 1, 0, 1, 1]],
    "allowed_start": [1, 1, 0, 1, 0],
    "allowed_end": [1, 1, 1, 1, 1],
}
WIDTH = 7


@functools.cache
def _decoder():
    def function(emissions, mask, transitions, start, end, tag_ids):
        potentials = Potentials(emissions, mask, transitions, start, end)
        return [*decode(potentials), log_likelihood(potentials, tag_ids)]

    return compiled(function)["jit" if BACKEND == "jax" else "graph"]


def _decoded(potentials, tag_ids=None):
    """The best tags, marginals, factors of the best path, and the log-likelihood of `tag_ids`."""
    tag_ids = np.zeros(potentials[1].shape, "int32") if tag_ids is None else tag_ids
    return [to_numpy(value) for value in _decoder()(*map(ops.convert_to_tensor, (*potentials, tag_ids)))]


def _layer(**weights):
    layer = CRF(5, **BIO)
    layer.build()
    for name, values in weights.items():
        getattr(layer, name).assign(values)
    return layer


# Few different values, so that many paths have equal scores.
coarse = st.sampled_from([-50.0, -1.0, 0.0, 1.0, 50.0])
values = st.one_of(coarse, st.floats(-50, 50, width=32))


numbers = st.lists(values, min_size=3 * WIDTH * 5, max_size=3 * WIDTH * 5)
lengths_of_rows = st.lists(st.integers(0, WIDTH), min_size=3, max_size=3)


@given(lengths_of_rows, numbers, st.lists(values, min_size=25, max_size=25))
def test_no_decoded_path_has_a_forbidden_transition(lengths, emissions, transitions):
    emissions = np.array(emissions, "float32").reshape(3, WIDTH, 5)
    transitions = np.array(transitions, "float32").reshape(5, 5)
    layer = _layer(transitions=transitions)
    mask = (np.arange(WIDTH) < np.array(lengths)[:, None]).astype("int32")
    tag_ids, marginal, path, _ = _decoded(layer(emissions, mask))
    for row, length in enumerate(lengths):
        tags = tag_ids[row, :length]
        assert not length or BIO["allowed_start"][tags[0]]
        assert all(BIO["allowed"][a][b] for a, b in zip(tags, tags[1:], strict=False))
        assert (tag_ids[row, length:] == 0).all()
        assert (marginal[row, length:] == 0).all() and (path[row, length:] == 0).all()
        np.testing.assert_allclose(marginal[row, :length].sum(axis=-1), 1, atol=1e-5)
        assert np.isfinite(path).all() and (path <= 1 + 1e-6).all()


@settings(max_examples=15)
@given(lengths_of_rows, st.integers(0, 10**6))
def test_results_do_not_depend_on_padding_or_other_rows(lengths, seed):
    assume(max(lengths))
    rng = np.random.default_rng(seed)
    layer = _layer(transitions=rng.normal(size=(5, 5)), start=rng.normal(size=5), end=rng.normal(size=5))
    emissions = rng.normal(size=(3, WIDTH, 5)).astype("float32")
    mask = (np.arange(WIDTH) < np.array(lengths)[:, None]).astype("int32")
    tag_ids = rng.integers(0, 5, mask.shape).astype("int32")

    def results(emissions, mask, tag_ids):
        return _decoded(layer(emissions, mask), tag_ids)

    expected = results(emissions, mask, tag_ids)
    # Any values at padding, NaN included.
    odd = np.where(mask[..., None] == 1, emissions, rng.choice([np.nan, np.inf, 1e30, -7])).astype("float32")
    for ours, theirs in zip(results(odd, mask, np.where(mask == 1, tag_ids, 99)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # A row in a batch, and the same row alone.
    for row in range(3):
        alone = [np.repeat(array[row : row + 1], 3, axis=0) for array in (emissions, mask, tag_ids)]
        for ours, theirs in zip(results(*alone), expected, strict=True):
            np.testing.assert_allclose(ours[0], theirs[row], atol=2e-5)


def test_decode_equals_the_single_functions():
    potentials, _ = random_potentials(5, [WIDTH, 0, 3], WIDTH, forbidding=True)
    tag_ids, marginal, path, _ = _decoded(potentials)
    np.testing.assert_array_equal(to_numpy(run(viterbi, potentials)), tag_ids)
    np.testing.assert_allclose(to_numpy(run(marginals, potentials)), marginal, atol=1e-6)
    np.testing.assert_allclose(to_numpy(run(path_probabilities, potentials, tag_ids)), path, atol=1e-6)


def test_factors_of_a_span_multiply_to_its_probability():
    potentials, _ = random_potentials(3, [5], forbidding=True)
    tag_ids, marginal, path, _ = _decoded(potentials)
    emissions, _, *shared = (array[0] if array.ndim == 3 else array for array in potentials)
    paths, scores = every_path(emissions, *shared)
    probabilities = np.exp(scores - log_of_sum(scores))
    for first in range(5):
        for last in range(first + 1, 6):
            span = (paths[:, first:last] == tag_ids[0, first:last]).all(axis=1)
            factors = marginal[0, first, tag_ids[0, first]] * path[0, first + 1 : last].prod()
            assert factors == pytest.approx(probabilities[span].sum(), abs=1e-5)


def test_long_sentences_are_precise():
    # With independent words the exact result is known.
    emissions = np.random.default_rng(0).normal(size=(1, 1000, 4)).astype("float32") * 5
    mask, zeros = np.ones((1, 1000), "int32"), np.zeros(4, "float32")
    _, marginal, _, found = _decoded(Potentials(emissions, mask, np.zeros((4, 4), "float32"), zeros, zeros))
    scores = emissions[0].astype(np.float64)
    powers = np.exp(scores)
    assert found[0] == pytest.approx((scores[:, 0] - np.log(powers.sum(axis=-1))).sum(), rel=1e-6)
    np.testing.assert_allclose(marginal[0], powers / powers.sum(axis=-1, keepdims=True), atol=1e-5)


def test_nan_scores_still_give_tags():
    potentials, _ = random_potentials(3, [4, 2])
    potentials.emissions[0, 1] = np.nan
    tag_ids = _decoded(potentials)[0]
    assert (tag_ids >= 0).all() and (tag_ids < 3).all()
    np.testing.assert_array_equal(tag_ids[1], to_numpy(run(viterbi, random_potentials(3, [4, 2])[0]))[1])


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_a_16_bit_policy_does_not_round_the_emissions(policy):
    emissions = np.random.default_rng(0).normal(size=(2, 3, 5)).astype("float32")
    potentials = CRF(5, **BIO, dtype=policy)(emissions, np.ones((2, 3), "int32"))
    np.testing.assert_array_equal(to_numpy(potentials.emissions), emissions)
    dtypes = [keras.backend.standardize_dtype(part.dtype) for part in potentials]
    assert dtypes == ["float32", "int32", "float32", "float32", "float32"]


def test_forbidden_transitions_are_not_trained():
    layer = _layer(transitions=np.ones((5, 5)), start=np.ones(5))
    potentials = layer(np.zeros((1, 2, 5), "float32"), np.ones((1, 2), bool))
    np.testing.assert_array_equal(
        to_numpy(potentials.transitions), np.where(np.array(BIO["allowed"]), 1, FORBIDDEN)
    )
    np.testing.assert_array_equal(to_numpy(potentials.start), [1, 1, FORBIDDEN, 1, FORBIDDEN])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CRF(0), "num_tags must be at least 1, got 0"),
        (lambda: CRF(2, [[1, 1]]), r"allowed must have shape \(2, 2\), got \(1, 2\)"),
        (lambda: CRF(2, [[1, 1], [1]]), r"allowed must have shape \(2, 2\), got rows of different lengths"),
        (lambda: CRF(2, allowed_start=[1, 0, 1]), r"allowed_start must have shape \(2,\), got \(3,\)"),
        (lambda: CRF(2, allowed_end=[1, 2]), "allowed_end must contain 0 and 1 only, got 2"),
        (
            lambda: CRF(2).build((None, None, 3)),
            r"emissions must be \[B, W, 2\].*got shape \(None, None, 3\)",
        ),
        (lambda: CRF(2).build((None, 2)), r"got shape \(None, 2\)"),
        (lambda: CRF(2).build(None, (None, 3, 1)), r"word_mask must be \[B, W\], got shape \(None, 3, 1\)"),
    ],
)
def test_shapes_that_do_not_fit_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()

"""The CRF against all paths, one by one, in float64."""

import functools

import numpy as np
import pytest
from keras import ops

from kmha.layers import crf_likelihood
from kmha.layers.crf import FORBIDDEN, Potentials
from kmha.layers.crf_decoding import decode, marginals, path_probabilities, viterbi
from kmha.layers.crf_likelihood import log_likelihood, log_partition
from tests.kmha.layers.references import every_path, log_of_sum, random_potentials
from tests.layer_checks import BACKEND, compiled, gradients, to_numpy

# "logarithms": always uses the fallback for inaccurate products.
WAYS = {"products": crf_likelihood.SAFE, "logarithms": 2.0}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    monkeypatch.setattr(crf_likelihood, "SAFE", WAYS[request.param])
    return request.param


def _expected(potentials, tag_ids):
    """What the functions below should give, row by row."""
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
    found = _compiled_once(crf_likelihood.SAFE)(tensors, ops.convert_to_tensor(tag_ids))
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
    assert not to_numpy(crf_likelihood._by_products(tensors)[0])
    _check(potentials, np.array([[1, 1, 1, 1]], "int32"))
    ordinary = random_potentials(4, width=6, forbidding=True)[0]
    assert to_numpy(crf_likelihood._by_products(Potentials(*map(ops.convert_to_tensor, ordinary)))[0])


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

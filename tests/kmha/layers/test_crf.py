"""The CRF against all paths, one by one, in float64."""

import functools

import keras
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from keras import ops

from kmha.layers import crf_likelihood
from kmha.layers.crf import CRF, FORBIDDEN, Potentials
from kmha.layers.crf_decoding import decode, marginals, path_probabilities, viterbi
from kmha.layers.crf_likelihood import log_likelihood, log_partition
from tests.kmha.layers.references import every_path, log_of_sum
from tests.layer_checks import BACKEND, compiled, gradients, to_numpy

LENGTHS = [5, 0, 3, 1, 4, 2]
# "logarithms": the way that is taken where products would lose numbers, taken always.
WAYS = {"products": crf_likelihood.SAFE, "logarithms": 2.0}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    monkeypatch.setattr(crf_likelihood, "SAFE", WAYS[request.param])
    return request.param


def _case(num_tags, lengths=LENGTHS, width=None, forbidding=False, scale=1.0, seed=0, starts="[K]"):
    """Potentials as NumPy arrays, and tags of each row. Tag 0 may always be taken."""
    rng = np.random.default_rng(seed)
    width = max(lengths, default=0) if width is None else width

    def draw(*shape, shut=False):
        values = scale * rng.normal(size=shape)
        closed = (rng.random(shape) < 0.4) if shut else np.zeros(shape, bool)
        closed[..., 0] = False
        return np.where(closed, FORBIDDEN, values).astype("float32")

    mask = (np.arange(width) < np.array(lengths)[:, None]).astype("int32")
    emissions = draw(len(lengths), width, num_tags)
    start = draw(*((len(lengths), num_tags) if starts == "[B, K]" else (num_tags,)), shut=forbidding)
    potentials = Potentials(
        emissions,
        mask,
        draw(num_tags, num_tags, shut=forbidding),
        start,
        draw(num_tags, shut=forbidding),
    )
    return potentials, rng.integers(0, num_tags, mask.shape).astype("int32")


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
            # In logarithms, or nothing is left of what is improbable.
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
    _check(*_case(num_tags, width=6, forbidding=forbidding, starts=starts))


@pytest.mark.parametrize("num_tags", [1, 3])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_without_padding(width, num_tags):
    _check(*_case(num_tags, [width], forbidding=True, seed=width))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("forbidding", [False, True])
def test_large_potentials_are_exact(forbidding, seed):
    potentials, tag_ids = _case(4, width=6, forbidding=forbidding, seed=seed, scale=50.0)
    _check(potentials, tag_ids, atol=1e-4)


def test_where_products_would_lose_numbers_logarithms_are_taken():
    # Each word is nearly sure of a tag that may not follow the one before: what is left is exp(-100) of it.
    transitions = np.array([[0, FORBIDDEN], [0, 0]], "float32")
    emissions = np.array([[[100, 0], [0, 100], [100, 0], [0, 100]]], "float32")
    nothing = np.zeros(2, "float32")
    potentials = Potentials(emissions, np.ones((1, 4), "int32"), transitions, nothing, nothing)
    tensors = Potentials(*map(ops.convert_to_tensor, potentials))
    assert not to_numpy(crf_likelihood._by_products(tensors)[0])
    _check(potentials, np.array([[1, 1, 1, 1]], "int32"))
    ordinary = _case(4, width=6, forbidding=True)[0]
    assert to_numpy(crf_likelihood._by_products(Potentials(*map(ops.convert_to_tensor, ordinary)))[0])


def test_a_sentence_that_nothing_is_allowed_for_is_finite():
    shut = np.full((2, 2), FORBIDDEN, "float32")
    emissions, mask = np.zeros((1, 3, 2), "float32"), np.ones((1, 3), "int32")
    potentials = Potentials(emissions, mask, shut, shut[0], shut[0])
    found = _found(potentials, np.zeros((1, 3), "int32"))
    # All paths are equally bad, so each is one of eight.
    np.testing.assert_allclose(found["log_likelihood"], -np.log(8), atol=1e-2)
    np.testing.assert_allclose(found["marginals"], 0.5, atol=1e-2)


PARTS = ("emissions", "transitions", "start", "end")


@pytest.mark.parametrize("forbidding", [False, True])
@pytest.mark.parametrize("num_tags", [1, 3])
def test_gradients_equal_finite_differences(num_tags, forbidding, way):
    potentials, tag_ids = _case(num_tags, [3, 0, 1, 4], 5, forbidding, starts="[B, K]", seed=3)
    weights = np.array([0.5, 2.0, 1.0, -3.0])
    mask = potentials.word_mask
    # Only allowed paths: the derivative of a score that is -1e4 is nothing that differences could show.
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


def test_compiled_with_and_without_known_sizes_gives_the_same(way):
    potentials, tag_ids = _case(3, width=6, forbidding=True)
    expected = _found(potentials, tag_ids)
    tensors = Potentials(*map(ops.convert_to_tensor, potentials)), ops.convert_to_tensor(tag_ids)
    for name, function in _compiled_forms(_everything, *tensors).items():
        for key, value in function(*tensors).items():
            np.testing.assert_allclose(to_numpy(value), expected[key], atol=1e-5, rtol=1e-5, err_msg=name)


def _compiled_forms(function, *tensors):
    """Those of the checker; on TensorFlow also both of them traced without knowing B and W, as training does."""
    forms = compiled(function)
    if BACKEND == "tensorflow":
        import tensorflow as tf

        def unknown(tensor):
            known = [None, None, *tensor.shape[2:]][: len(tensor.shape)]
            return tf.TensorSpec(tensor.shape if len(tensor.shape) == 1 else known, tensor.dtype)

        specs = keras.tree.map_structure(unknown, list(tensors))
        for name in ("graph", "xla"):
            inner = forms[name]
            forms[f"{name}, sizes unknown"] = tf.function(
                lambda *given, inner=inner: inner(*given), input_signature=specs, autograph=False
            )
    return forms


@pytest.mark.skipif(BACKEND != "tensorflow", reason="how TensorFlow traces gradients")
def test_compiled_gradients_are_the_same(way):
    import tensorflow as tf

    potentials, tag_ids = _case(3, width=6, forbidding=True)

    def derive(emissions, mask, transitions, start, end, tag_ids):
        parts = (emissions, transitions, start, end)
        with tf.GradientTape() as tape:
            tape.watch(parts)
            potentials = Potentials(emissions, mask, transitions, start, end)
            loss = tf.reduce_sum(log_likelihood(potentials, tag_ids))
        return tape.gradient(loss, parts)

    tensors = [tf.convert_to_tensor(array) for array in (*potentials, tag_ids)]
    expected = derive(*tensors)
    for name, function in _compiled_forms(derive, *tensors).items():
        for ours, theirs in zip(function(*tensors), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=name)


def test_split_batches_add_up(way):
    potentials, tag_ids = _case(3, width=6, forbidding=True)
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
    function = lambda *parts: decode(Potentials(*parts))  # noqa: E731
    return compiled(function)["jit" if BACKEND == "jax" else "graph"]


def _decoded(*parts):
    return [to_numpy(value) for value in _decoder()(*map(ops.convert_to_tensor, parts))]


def _layer(**weights):
    layer = CRF(5, **BIO)
    layer.build()
    for name, values in weights.items():
        getattr(layer, name).assign(values)
    return layer


# Few values: many paths are then equally good.
coarse = st.sampled_from([-50.0, -1.0, 0.0, 1.0, 50.0])
values = st.one_of(coarse, st.floats(-50, 50, width=32))


@given(st.lists(st.integers(0, WIDTH), min_size=3, max_size=3), st.data())
def test_no_decoded_path_holds_what_is_forbidden(lengths, data):
    emissions, transitions = (
        np.array(
            data.draw(st.lists(values, min_size=np.prod(shape), max_size=np.prod(shape))), "float32"
        ).reshape(shape)
        for shape in ((3, WIDTH, 5), (5, 5))
    )
    layer = _layer(transitions=transitions)
    mask = (np.arange(WIDTH) < np.array(lengths)[:, None]).astype("int32")
    tag_ids, marginal, path = _decoded(*layer(emissions, mask))
    for row, length in enumerate(lengths):
        tags = tag_ids[row, :length]
        assert not length or BIO["allowed_start"][tags[0]]
        assert all(BIO["allowed"][a][b] for a, b in zip(tags, tags[1:], strict=False))
        assert (tag_ids[row, length:] == 0).all()
        assert (marginal[row, length:] == 0).all() and (path[row, length:] == 0).all()
        np.testing.assert_allclose(marginal[row, :length].sum(axis=-1), 1, atol=1e-5)
        assert np.isfinite(path).all() and (path <= 1 + 1e-6).all()


@settings(max_examples=15)
@given(st.lists(st.integers(0, WIDTH), min_size=3, max_size=3), st.integers(0, 10**6))
def test_padding_and_the_other_rows_change_nothing(lengths, seed):
    assume(max(lengths))
    rng = np.random.default_rng(seed)
    layer = _layer(transitions=rng.normal(size=(5, 5)), start=rng.normal(size=5), end=rng.normal(size=5))
    emissions = rng.normal(size=(3, WIDTH, 5)).astype("float32")
    mask = (np.arange(WIDTH) < np.array(lengths)[:, None]).astype("int32")
    tag_ids = rng.integers(0, 5, mask.shape).astype("int32")

    def answers(emissions, mask, tag_ids):
        potentials = layer(emissions, mask)
        return [*_decoded(*potentials), _found(potentials, tag_ids)["log_likelihood"]]

    expected = answers(emissions, mask, tag_ids)
    # Whatever stands at padding, numbers or not.
    odd = np.where(mask[..., None] == 1, emissions, rng.choice([np.nan, np.inf, 1e30, -7])).astype("float32")
    for ours, theirs in zip(answers(odd, mask, np.where(mask == 1, tag_ids, 99)), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    # A row among others, and the same row with itself only.
    for row in range(3):
        alone = [np.repeat(array[row : row + 1], 3, axis=0) for array in (emissions, mask, tag_ids)]
        for ours, theirs in zip(answers(*alone), expected, strict=True):
            np.testing.assert_allclose(ours[0], theirs[row], atol=2e-5)


def test_decode_gives_what_the_others_give():
    potentials, _ = _case(5, [WIDTH, 0, 3], WIDTH, forbidding=True)
    tag_ids, marginal, path = _decoded(*potentials)
    found = _found(potentials, tag_ids)
    np.testing.assert_array_equal(tag_ids, found["viterbi"])
    np.testing.assert_allclose(marginal, found["marginals"], atol=1e-6)
    np.testing.assert_allclose(path, found["path_probabilities"], atol=1e-6)


def test_factors_of_a_span_multiply_to_its_probability():
    potentials, _ = _case(3, [5], forbidding=True)
    tag_ids, marginal, path = _decoded(*potentials)
    emissions, _, *shared = (array[0] if array.ndim == 3 else array for array in potentials)
    paths, scores = every_path(emissions, *shared)
    probabilities = np.exp(scores - log_of_sum(scores))
    for first in range(5):
        for last in range(first + 1, 6):
            span = (paths[:, first:last] == tag_ids[0, first:last]).all(axis=1)
            factors = marginal[0, first, tag_ids[0, first]] * path[0, first + 1 : last].prod()
            assert factors == pytest.approx(probabilities[span].sum(), abs=1e-5)


def test_long_sentences_keep_their_digits():
    # As if each word stood alone: what is exact is known.
    emissions = np.random.default_rng(0).normal(size=(1, 2000, 4)).astype("float32") * 5
    zeros = np.zeros(4, "float32")
    potentials = Potentials(emissions, np.ones((1, 2000), "int32"), np.zeros((4, 4), "float32"), zeros, zeros)
    powers = np.exp(emissions[0].astype(np.float64))
    found = _found(potentials, np.zeros((1, 2000), "int32"))
    assert found["log_partition"][0] == pytest.approx(np.log(powers.sum(axis=-1)).sum(), rel=1e-6)
    np.testing.assert_allclose(found["marginals"][0], powers / powers.sum(axis=-1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_a_half_size_policy_rounds_nothing(policy):
    emissions = np.random.default_rng(0).normal(size=(2, 3, 5)).astype("float32")
    potentials = CRF(5, **BIO, dtype=policy)(emissions, np.ones((2, 3), "int32"))
    np.testing.assert_array_equal(to_numpy(potentials.emissions), emissions)
    dtypes = [keras.backend.standardize_dtype(part.dtype) for part in potentials]
    assert dtypes == ["float32", "int32", "float32", "float32", "float32"]


def test_what_is_forbidden_is_not_learnt():
    layer = _layer(transitions=np.ones((5, 5)), start=np.ones(5))
    potentials = layer(np.zeros((1, 2, 5), "float32"), np.ones((1, 2), bool))
    np.testing.assert_array_equal(
        to_numpy(potentials.transitions), np.where(np.array(BIO["allowed"]), 1, FORBIDDEN)
    )
    np.testing.assert_array_equal(to_numpy(potentials.start), [1, 1, FORBIDDEN, 1, FORBIDDEN])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CRF(0), "num_tags must be at least 1, given 0"),
        (lambda: CRF(2, [[1, 1]]), r"allowed must have shape \(2, 2\), given \(1, 2\)"),
        (lambda: CRF(2, [[1, 1], [1]]), r"allowed must have shape \(2, 2\), given rows of different lengths"),
        (lambda: CRF(2, allowed_start=[1, 0, 1]), r"allowed_start must have shape \(2,\), given \(3,\)"),
        (lambda: CRF(2, allowed_end=[1, 2]), "allowed_end must hold 0 and 1 only, given 2"),
        (
            lambda: CRF(2).build((None, None, 3)),
            r"emissions must be \[B, W, 2\].*given shape \(None, None, 3\)",
        ),
        (lambda: CRF(2).build((None, 2)), r"given shape \(None, 2\)"),
        (lambda: CRF(2).build(None, (None, 3, 1)), r"word_mask must be \[B, W\], given shape \(None, 3, 1\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()

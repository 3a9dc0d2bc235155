import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from export import names
from export.savedmodel.endpoints import ClassifierEndpoints
from export.savedmodel.write import serialized_example
from kmha.inference.retrieval import TextVectors
from kmha.text.vocabulary import PADDING, START
from tests.bundles import EDGE_CASES, SEVERAL, TEXTS, make_bundle, one_label_bundle, several_label_bundle

ALL = [*TEXTS, *EDGE_CASES]
both = pytest.mark.parametrize("make", [one_label_bundle, several_label_bundle])
both_ids = pytest.mark.parametrize("name", ["predict_ids", "predict_ids_xla"])


@functools.cache
def signatures(make) -> dict:
    return ClassifierEndpoints(make(), xla=True).signatures()


def probabilities(name: str, ids, mask, make=one_label_bundle) -> np.ndarray:
    outputs = signatures(make)[name](
        token_ids=tf.constant(ids, tf.int32), padding_mask=tf.constant(mask, tf.int32)
    )
    return outputs["probabilities"].numpy()


@both
def test_texts_are_predicted_as_by_the_bundle(make):
    bundle, texts = make(), tf.constant(ALL, tf.string)
    eager, signature = (
        ClassifierEndpoints(bundle).predict_text(texts),
        signatures(make)["predict_text"](texts),
    )
    assert set(signature) == {"labels", "probabilities", "given" if bundle.multi_label else "label"}
    for name, values in signature.items():
        np.testing.assert_array_equal(values, eager[name])
    np.testing.assert_allclose(signature["probabilities"], bundle.probabilities(ALL), atol=1e-5)


@both
def test_thresholds_and_labels_are_those_of_the_bundle(make):
    bundle = make()
    outputs = signatures(make)["predict_text"](tf.constant(TEXTS))
    rows = [bundle.prediction_from(row) for row in outputs["probabilities"].numpy()]
    if bundle.multi_label:
        found = [{bundle.labels[i] for i in np.flatnonzero(row)} for row in outputs["given"].numpy()]
        assert found == [set(row["labels"]) for row in rows]
    else:
        assert [label.decode() for label in outputs["label"].numpy()] == [row["label"] for row in rows]


def test_several_labels_without_thresholds():
    endpoints = ClassifierEndpoints(make_bundle(SEVERAL, multi_label=True))
    outputs = endpoints.predict_text(tf.constant(TEXTS))
    np.testing.assert_array_equal(outputs["given"], outputs["probabilities"].numpy() >= 0.5)


@both
@both_ids
def test_token_ids_give_the_predictions_of_their_texts(make, name, ids_of_texts):
    bundle = make()
    features = ids_of_texts(bundle, ALL)
    found = probabilities(name, *features.values(), make=make)
    np.testing.assert_allclose(found, bundle.probabilities(ALL), atol=1e-5)


@both
def test_examples_give_the_predictions_of_their_texts(make):
    bundle, texts = make(), [text if isinstance(text, bytes) else text.encode() for text in ALL]
    outputs = signatures(make)["classify"](tf.constant([serialized_example(text) for text in texts]))
    assert set(outputs) == {"classes", "scores"}
    np.testing.assert_allclose(outputs["scores"], bundle.probabilities(texts), atol=1e-5)
    assert (outputs["classes"].numpy() == np.array([label.encode() for label in bundle.labels])).all()


@both
def test_texts_and_ids_are_embedded_as_by_the_bundle(make, ids_of_texts):
    expected = TextVectors(make())(ALL)
    found = signatures(make)["embed"](tf.constant(ALL, tf.string))
    assert set(found) == {"vectors"} and found["vectors"].dtype == tf.float32
    np.testing.assert_allclose(found["vectors"], expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found["vectors"], axis=1), 1, rtol=1e-5)
    given = {name: tf.constant(value) for name, value in ids_of_texts(make(), ALL).items()}
    of_ids = signatures(make)["embed_ids"]
    np.testing.assert_allclose(of_ids(**given)["vectors"], expected, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="token_ids must be in"):
        of_ids(**{**given, "token_ids": given["token_ids"] - 1})
    # Padding that a server adds when it batches requests changes nothing.
    short = ids_of_texts(make(), TEXTS[2:4])
    filled = {name: np.concatenate([value, *[value[:, :1]] * 3], axis=1) for name, value in short.items()}
    filled = {name: tf.constant(value) for name, value in filled.items()}
    expected = expected[2:4]
    np.testing.assert_allclose(of_ids(**filled)["vectors"], expected, atol=1e-5)


def test_an_example_without_text_is_rejected_by_name():
    empty = tf.train.Example().SerializeToString()
    with pytest.raises(tf.errors.InvalidArgumentError, match="text"):
        signatures(one_label_bundle)["classify"](tf.constant([empty]))


@pytest.mark.parametrize("layers", [1, 3])
def test_the_explanation_has_tokens_and_all_attention(layers):
    bundle = make_bundle(num_layers=layers)
    outputs = ClassifierEndpoints(bundle).explain(tf.constant(ALL, tf.string))
    np.testing.assert_allclose(outputs["probabilities"], bundle.probabilities(ALL), atol=1e-5)
    tokens = np.char.decode(outputs["tokens"].numpy().astype("S"), "utf-8")
    rows, steps = tokens.shape
    assert outputs["attention"].shape == (rows, layers, bundle.model.encoder_config.num_heads, steps, steps)
    assert tokens[0, :4].tolist() == [START, "the", "ferry", "leaves"]
    attention = outputs["attention"].numpy() * (tokens != PADDING)[:, None, None, None, :]
    np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("name", ["predict_text", "classify", "explain"])
def test_an_empty_batch_of_texts_is_predicted(name):
    outputs = signatures(one_label_bundle)[name](tf.constant([], tf.string))
    assert {values.shape[0] for values in outputs.values()} == {0}


@pytest.mark.parametrize(
    ("name", "shape"),
    [("predict_ids", (0, 5)), ("predict_ids", (0, 0)), ("predict_ids", (2, 0)), ("predict_ids_xla", (0, 5))],
)
def test_an_empty_batch_of_ids_is_predicted(name, shape):
    found = probabilities(name, np.zeros(shape), np.zeros(shape))
    assert found.shape == (shape[0], 3) and np.isfinite(found).all()


@both_ids
def test_a_row_of_padding_changes_no_other_row(name, ids_of_texts):
    bundle = one_label_bundle()
    ids, mask = ids_of_texts(bundle).values()
    ids[0] = mask[0] = 0
    found = probabilities(name, ids, mask)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[1:], bundle.probabilities(TEXTS)[1:], atol=1e-5)


@both_ids
@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        ([[2, -1, 3]], [[1, 1, 1]], r"token_ids must be in \[0, {size}\), got\] \[-1\]"),
        ([[2, -(2**31), 3]], [[1, 0, 0]], r"token_ids must be in \[0, {size}\), got\] \[-2147483648\]"),
        ([[2, "size", 3]], [[1, 1, 1]], r"token_ids must be in \[0, {size}\), got\] \[{size}\]"),
        ([[5] * 25], [[1] * 25], r"token_ids must be at most 24 long, got length\] \[25\]"),
        ([[2, 3]], [[1, 1, 1]], r"padding_mask must have the shape of token_ids\] \[1 2\] \[got\] \[1 3\]"),
        ([[2, 3]], [[1, 1], [1, 1]], r"padding_mask must have the shape of token_ids\]"),
    ],
)
def test_wrong_ids_are_rejected_by_name(name, ids, mask, message):
    size = len(one_label_bundle().preprocessor.vocabulary)
    ids = [[size if index == "size" else index for index in row] for row in ids]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message.format(size=size)):
        probabilities(name, ids, mask)


@both_ids
def test_the_last_id_and_the_longest_sequence_are_accepted(name):
    last = len(one_label_bundle().preprocessor.vocabulary) - 1
    assert np.isfinite(probabilities(name, [[last] * 24], [[1] * 24])).all()


@both_ids
def test_a_mask_counts_as_zero_or_one(name, ids_of_texts):
    ids, mask = ids_of_texts(one_label_bundle()).values()
    other = np.where(mask, 7, -7)
    np.testing.assert_array_equal(probabilities(name, ids, other), probabilities(name, ids, mask))


def as_a_server_joins(requests: list[list[np.ndarray]]) -> list[np.ndarray]:
    """One batch of several requests, padded as TensorFlow Serving's batching session does.

    Columns repeat the first value of the request's tensor; rows, up to the next allowed batch size, repeat the
    first row of the last request.
    """
    length = max(array.shape[1] for arrays in requests for array in arrays)
    joined = []
    for arrays in zip(*requests, strict=True):
        wide = [
            np.pad(array, [(0, 0), (0, length - array.shape[1])], constant_values=array.flat[0])
            for array in arrays
        ]
        rows = sum(len(array) for array in wide)
        missing = 2 ** int(np.ceil(np.log2(rows))) - rows
        joined.append(np.concatenate([*wide, np.repeat(wide[-1][:1], missing, axis=0)]))
    return joined


@given(st.lists(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3), min_size=1, max_size=4))
def test_batching_requests_changes_no_prediction(requests):
    check_joined("predict_ids", requests)


def test_batching_requests_to_the_compiled_signature_changes_no_prediction():
    check_joined("predict_ids_xla", [TEXTS[2:3], TEXTS[:2]])


def check_joined(name: str, requests) -> None:
    bundle = one_label_bundle()
    made = [bundle.preprocessor(tf.constant(texts)) for texts in requests]
    arrays = [[features["token_ids"].numpy(), features["padding_mask"].numpy()] for features in made]
    found = probabilities(name, *as_a_server_joins(arrays))
    expected = bundle.probabilities([text for texts in requests for text in texts])
    np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-5)


def test_unmasked_server_padding_would_change_predictions(ids_of_texts):
    # Otherwise, the test above could not fail.
    bundle = one_label_bundle()
    ids, mask = ids_of_texts(bundle, TEXTS[2:3]).values()
    filled = [np.pad(array, [(0, 0), (0, 6)], constant_values=array.flat[0]) for array in (ids, mask)]
    assert np.abs(bundle.probabilities_of_ids(*filled) - bundle.probabilities(TEXTS[2:3])).max() > 1e-3


def test_every_variable_is_held_once():
    bundle = one_label_bundle()
    endpoints = ClassifierEndpoints(bundle)
    assert {v.ref() for v in endpoints.variables} == {v.value.ref() for v in bundle.model.variables}
    assert len(endpoints.variables) == len(bundle.model.variables)


def test_the_names_of_the_interface():
    plain, compiled = ClassifierEndpoints(one_label_bundle()).signatures(), signatures(one_label_bundle)
    every = ["serving_default", "predict_text", "predict_ids", "classify", "explain", "embed", "embed_ids"]
    assert list(plain) == every
    assert set(compiled) - set(plain) == {"predict_ids_xla"}
    assert (names.INPUTS, names.CLASSES, names.SCORES) == (
        tf.compat.v1.saved_model.CLASSIFY_INPUTS,
        tf.compat.v1.saved_model.CLASSIFY_OUTPUT_CLASSES,
        tf.compat.v1.saved_model.CLASSIFY_OUTPUT_SCORES,
    )

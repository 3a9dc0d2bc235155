"""Hidden states and attention of a student and its teacher, compared with NumPy."""

import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kmha.errors import InputError
from kmha.models.encoder import Trace, traced
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import Vocabulary
from tests.bundles import TEXTS, WINDOWS, make_bundle, make_pair_bundle, make_tagger_bundle
from training.distillation.hidden_states import (
    StudentWithProjections,
    attention_distance,
    check_same_features,
    check_same_passes,
    map_layers,
    state_distance,
)

MASK = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0]], np.int32)


@pytest.mark.parametrize(
    ("student", "teacher", "expected"),
    [
        (2, 6, [0, 3, 6]),
        (2, 12, [0, 6, 12]),
        (4, 6, [0, 2, 3, 5, 6]),
        (3, 3, [0, 1, 2, 3]),
        (4, 1, [0, 1, 1, 1, 1]),
        (0, 3, [0]),
    ],
)
def test_layers_are_spread_evenly(student, teacher, expected):
    assert map_layers(student, teacher) == expected


def trace(seed: int, blocks: int, heads: int, size: int = 4) -> Trace:
    rng = np.random.default_rng(seed)
    states = [rng.normal(size=(3, 3, size)).astype(np.float32) for _ in range(blocks + 1)]
    return Trace(None, states, [rng.random((3, heads, 3, 3), np.float32) for _ in range(blocks)], MASK)


def test_states_are_compared_over_real_tokens():
    student, teacher = trace(0, 1, 2), trace(1, 3, 2)
    expected = np.zeros(3)
    for row in range(3):
        for own, place in ((0, 0), (1, 3)):
            gaps = (student.states[own][row] - teacher.states[place][row])[MASK[row] == 1]
            expected[row] += np.mean(gaps**2) / 2 if len(gaps) else 0
    np.testing.assert_allclose(state_distance(student, teacher, None), expected, rtol=1e-5)


@pytest.mark.parametrize("heads", [2, 3])
def test_attention_is_compared_over_real_pairs_of_tokens(heads):
    student, teacher = trace(0, 1, 2), trace(1, 2, heads)
    own, other = student.weights[0], teacher.weights[1]
    if heads != 2:
        own, other = own.mean(axis=1, keepdims=True), other.mean(axis=1, keepdims=True)
    expected = np.zeros(3)
    for row in range(3):
        real = MASK[row] == 1
        gaps = (own - other)[row][:, real][:, :, real]
        expected[row] = np.mean(gaps**2) if gaps.size else 0
    np.testing.assert_allclose(attention_distance(student, teacher), expected, rtol=1e-5)


def test_distance_of_a_model_from_itself_is_zero():
    bundle = make_bundle(num_layers=2)
    trainee = StudentWithProjections(bundle.model, bundle.model, 1.0, 1.0)
    features = bundle.preprocessor(list(TEXTS))
    with traced(weights=True) as own:
        bundle.model(features, training=False)
    np.testing.assert_allclose(trainee.distances(own, features), 0, atol=1e-6)
    assert len(trainee.trainable_variables) == len(bundle.model.trainable_variables)


def test_training_lowers_the_distance_and_does_not_change_the_teacher():
    teacher, student = make_bundle(num_layers=3), make_bundle(hidden_dim=8, num_layers=1, num_heads=1)
    trainee = StudentWithProjections(student.model, teacher.model, 1.0, 1.0)
    own = {id(variable) for variable in student.model.trainable_variables}
    projections = [variable for variable in trainee.trainable_variables if id(variable) not in own]
    assert [tuple(v.shape) for v in projections] == 2 * [(8, 16), (16,)]
    before = [variable.numpy() for variable in (*teacher.model.variables, *projections)]
    features = teacher.preprocessor(list(TEXTS))
    values = [variable.value for variable in trainee.trainable_variables]

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            with traced(weights=True) as traces:
                student.model(features, training=False)
            loss = tf.reduce_mean(trainee.distances(traces, features))
        gradients = tape.gradient(loss, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        for value, gradient in zip(values, gradients, strict=True):
            value.assign_sub(0.02 * tf.convert_to_tensor(gradient))
        return loss

    losses = [float(step()) for _ in range(30)]
    assert losses[-1] < 0.8 * losses[0]
    count = len(teacher.model.variables)
    for variable, value in zip(teacher.model.variables, before[:count], strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert any((v.numpy() != value).any() for v, value in zip(projections, before[count:], strict=True))


def changed(part: Preprocessor, **values) -> Preprocessor:
    return Preprocessor(**{"vocabulary": part.vocabulary, **part.get_config(), **values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokenization": "word"}, "--text.tokenization wordpiece, got word"),
        ({"lower_case": False}, "--text.lower-case True, got False"),
        ({"max_length": 25}, "--text.max-length at most 24, got 25"),
        (
            {"vocabulary": None},
            "its vocabulary of 155 tokens, got another one of",
        ),
    ],
)
def test_different_tokenization_is_refused(values, message):
    teacher = make_bundle()
    part: Any = teacher.preprocessor
    if "vocabulary" in values:
        values = {"vocabulary": Vocabulary([*part.vocabulary.tokens, "more"])}
        message = message.replace("155", str(len(part.vocabulary)))
    with pytest.raises(InputError) as caught:
        check_same_features("--distill.attention", teacher, changed(part, **values))
    assert str(caught.value).startswith(
        f"--distill.attention: expected the tokenization of the teacher, {message}"
    )
    check_same_features("--distill.attention", teacher, changed(part, max_length=20))


def test_different_granularities_and_missing_characters_are_refused():
    pairs, both = make_pair_bundle(), make_pair_bundle(("char", "wordpiece"))
    with pytest.raises(InputError, match="teacher, char, wordpiece, got wordpiece$"):
        check_same_features("--x", both, pairs.preprocessor)
    with_characters, plain = make_tagger_bundle(characters=True), make_tagger_bundle()
    with pytest.raises(InputError, match="--tag.characters, got none$"):
        check_same_features("--x", with_characters, plain.preprocessor)
    check_same_features("--x", plain, with_characters.preprocessor)


def test_models_of_different_forms_are_refused():
    config = types.SimpleNamespace(num_layers=2)

    def model(form: str, symmetric: bool = False) -> Any:
        return types.SimpleNamespace(form=form, symmetric=symmetric, encoder_configs={"": config})

    check_same_passes("--x", model("cross"), model("bi"))
    with pytest.raises(
        InputError, match="^--x: expected the joint form, as in the teacher, got an encoder pass"
    ):
        check_same_passes("--x", model("joint"), model("bi"))
    with pytest.raises(InputError, match="got the symmetric joint form$"):
        check_same_passes("--x", model("joint"), model("joint", True))
    config.num_layers = 0
    with pytest.raises(InputError, match="expected encoders with at least one layer, got one without"):
        check_same_passes("--x", model("bi"), model("bi"))


@pytest.mark.parametrize(
    ("teacher", "student", "which"), [(WINDOWS, None, "teacher"), (None, WINDOWS, "student")]
)
def test_models_with_windows_are_refused(teacher, student, which):
    models = [make_bundle(windows=each).model for each in (teacher, student)]
    with pytest.raises(
        InputError,
        match=f"--distill.attention: expected models that read whole texts, got a {which} that reads",
    ):
        check_same_passes("--distill.attention", *models)

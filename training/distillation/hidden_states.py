"""Distillation of hidden states and attention: losses between the layers of a student and of its teacher.

Sources: hidden states as in Sun et al. 2019, arXiv:1908.09355, with the learned projection of Jiao et al. 2020,
arXiv:1909.10351 (TinyBERT). Attention as in TinyBERT, but with the weights after the softmax.
"""

from typing import Any

import keras
from keras import ops

from kmha.bundle.bundle import parts_of
from kmha.document_windows import window_shape_of
from kmha.errors import InputError
from kmha.models.encoder import Trace, traced
from kmha.text.sentence_preprocessor import SentencePreprocessor


class StudentWithProjections:
    """A student with trainable projections of its hidden states to the teacher's hidden size, if the sizes differ.

    The teacher reads the same features; it is not trained. `hidden_states` is the weight of `state_distance`,
    `attention` that of `attention_distance`.
    """

    def __init__(self, model: Any, teacher: Any, hidden_states: float, attention: float):
        self.model, self._teacher = model, teacher
        self._hidden_states, self._attention = hidden_states, attention
        # By the id of the student's encoder, one projection for each hidden state.
        self._projections: dict[int, list[keras.layers.Layer]] = {}
        if not hidden_states:
            return
        configs = zip(model.encoder_configs.values(), teacher.encoder_configs.values(), strict=True)
        for index, (own, other) in enumerate(configs):
            if own.hidden_dim != other.hidden_dim:
                for encoder in model.encoders_of(index):
                    self._projections[id(encoder)] = [
                        _projection(own.hidden_dim, other.hidden_dim, state)
                        for state in range(own.num_layers + 1)
                    ]

    @property
    def trainable_variables(self) -> list[Any]:
        """The variables of the student and of the projections."""
        layers = [layer for each in self._projections.values() for layer in each]
        return [*self.model.trainable_variables, *(v for layer in layers for v in layer.trainable_variables)]

    def distances(self, own: list[Trace], features: Any) -> Any:
        """Weighted distances of the hidden states and the attention from the teacher's, float32 [B]."""
        with traced(weights=bool(self._attention)) as others:
            self._teacher(features, training=False)
        total = 0.0
        for student, teacher in zip(own, others, strict=True):
            if self._hidden_states:
                projections = self._projections.get(id(student.encoder))
                total += self._hidden_states * state_distance(student, teacher, projections) / len(own)
            if self._attention:
                total += self._attention * attention_distance(student, teacher) / len(own)
        return total


def _projection(width: int, expected: int, number: int) -> keras.layers.Layer:
    # Its own seed: loading a teacher may have used the global random state.
    initializer = keras.initializers.GlorotUniform(seed=number)
    name = f"projection_{number}"
    layer = keras.layers.Dense(expected, kernel_initializer=initializer, name=name, dtype="float32")
    layer.build((None, None, width))
    return layer


def map_layers(student: int, teacher: int) -> list[int]:
    """The teacher's hidden state for each of the student: evenly spread from 0, the input of the first block."""
    return [0, *(max(1, (2 * i * teacher + student) // (2 * student)) for i in range(1, student + 1))]


def state_distance(student: Trace, teacher: Trace, projections: list[keras.layers.Layer] | None) -> Any:
    """Mean squared difference of token vectors over real tokens, hidden states and dimensions, float32 [B]."""
    real = ops.cast(student.mask, "float32")
    tokens = ops.maximum(ops.sum(real, axis=1), 1.0)
    places = map_layers(len(student.states) - 1, len(teacher.states) - 1)
    total = 0.0
    for index, place in enumerate(places):
        own = ops.cast(student.states[index], "float32")
        own = own if projections is None else projections[index](own)
        expected = ops.stop_gradient(ops.cast(teacher.states[place], "float32"))
        total += ops.sum(ops.mean(ops.square(own - expected), axis=-1) * real, axis=1) / tokens
    return total / len(places)


def attention_distance(student: Trace, teacher: Trace) -> Any:
    """Mean squared difference of attention weights over real queries, real keys and blocks, float32 [B].

    Heads are compared one by one if both models have the same number, else their means.
    """
    real = ops.cast(student.mask, "float32")
    pairs = real[:, None, :, None] * real[:, None, None, :]  # [B, 1, T, T]
    count = ops.maximum(ops.sum(pairs, axis=(1, 2, 3)), 1.0)
    places = map_layers(len(student.weights), len(teacher.weights))[1:]
    total = 0.0
    for own, place in zip(student.weights, places, strict=True):
        expected = ops.stop_gradient(teacher.weights[place - 1])
        if own.shape[1] != expected.shape[1]:
            own, expected = (ops.mean(each, axis=1, keepdims=True) for each in (own, expected))
        each = ops.mean(ops.square(own - expected), axis=1, keepdims=True)
        total += ops.sum(each * pairs, axis=(1, 2, 3)) / count
    return total / max(1, len(places))


def check_same_features(flag: str, teacher: Any, preprocessor: Any) -> None:
    """Raises InputError if the teacher cannot read the student's features.

    Vocabulary, tokenization or case differ, texts are longer than the teacher's maximum, or the teacher reads the
    characters of words and the student does not.
    """
    ours, theirs = parts_of(preprocessor), parts_of(teacher.preprocessor)
    expected = f"{flag}: expected the tokenization of the teacher"
    if list(ours) != list(theirs):
        raise InputError(f"{expected}, {', '.join(theirs)}, got {', '.join(ours)}")
    for own, other in zip(ours.values(), theirs.values(), strict=True):
        for name in ("tokenization", "lower_case"):
            values = getattr(other, name), getattr(own, name)
            if values[0] != values[1]:
                raise InputError(f"{expected}, --text.{name.replace('_', '-')} {values[0]}, got {values[1]}")
        if own.vocabulary.tokens != other.vocabulary.tokens:
            raise InputError(
                f"{expected}, its vocabulary of {len(other.vocabulary):,} tokens, got another one of"
                f" {len(own.vocabulary):,}; use --text.vocabulary with the file in the teacher's folder"
            )
        if own.max_length > other.max_length:
            most = other.max_length
            raise InputError(f"{expected}, --text.max-length at most {most}, got {own.max_length}")
    if isinstance(preprocessor, SentencePreprocessor):
        if teacher.preprocessor.characters and not preprocessor.characters:
            raise InputError(f"{expected}, --tag.characters, got none")


def check_same_passes(flag: str, teacher: Any, model: Any) -> None:
    """Raises InputError unless the encoders of both models read the same sequences, not windows, and have blocks."""
    forms = [_form(each) for each in (teacher, model)]
    if forms[0] != forms[1]:
        raise InputError(f"{flag}: expected {forms[0]}, as in the teacher, got {forms[1]}")
    for which, each in (("a teacher", teacher), ("a student", model)):
        if window_shape_of(each) is not None:
            raise InputError(f"{flag}: expected models that read whole texts, got {which} that reads windows")
    blocks = [config.num_layers for each in (teacher, model) for config in each.encoder_configs.values()]
    if not all(blocks):
        raise InputError(f"{flag}: expected encoders with at least one layer, got one without")


def _form(model: Any) -> str:
    if getattr(model, "form", "") != "joint":
        return "an encoder pass for each text"
    return f"the {'symmetric ' if model.symmetric else ''}joint form"

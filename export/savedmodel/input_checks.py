"""Token ids that a server passes on: checked, and cleared of what it filled them up with."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from kmha.features import (
    CHARACTER_IDS,
    NUM_CHARACTERS,
    PADDING_MASK,
    SPELLING_LENGTH,
    TOKEN_IDS,
    WORD_MASK,
    WORD_STARTS,
    TextInputs,
)
from kmha.text.sentence_preprocessor import SentencePreprocessor
from kmha.text.vocabulary import START


def checked_inputs(expected: Sequence[TextInputs], given: Sequence) -> list:
    """A model's inputs, once they are known to be usable, without what a batching server has added.

    Args:
        expected: The texts that the model reads, as `preprocessor.inputs` has them.
        given: Token ids and padding mask of each, int32 [B, T] in turn.

    Returns:
        The same, as `checked_in_graph` and `without_filling` give them.

    Raises:
        tf.errors.InvalidArgumentError: When the graph runs; as `checked_in_graph`, or the texts have other numbers of
            rows.
    """
    checked, rows = [], tf.shape(given[0])[0]
    for text, token_ids, mask in zip(expected, given[::2], given[1::2], strict=True):
        vocabulary, found = text.part.vocabulary, tf.shape(token_ids)[0]
        message = [f"{text.ids} must have as many rows as {expected[0].ids},", rows, "given", found]
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(rows, found), message)]):
            ids, mask = checked_in_graph(
                token_ids, mask, len(vocabulary), text.part.max_length, (text.ids, text.mask)
            )
        checked += [ids, without_filling(ids, mask, vocabulary.id_of(START))]
    return checked


def checked_in_graph(
    token_ids,
    padding_mask,
    vocabulary_size: int,
    max_length: int,
    names: tuple[str, str] = (TOKEN_IDS, PADDING_MASK),
):
    """The same features, once they are known to be usable: a wrong one is an error that names the input.

    A lookup alone would take some negative ids for others, and fail for the rest deep inside the model.

    Args:
        token_ids: int32 [B, T].
        padding_mask: int32 [B, T].
        vocabulary_size: Ids must be in [0, vocabulary_size).
        max_length: T must be at most this.
        names: What both are called.

    Returns:
        token_ids, and padding_mask as int32 of 0 and 1 (above 0 is a real token).

    Raises:
        tf.errors.InvalidArgumentError: When the graph runs; an id out of range, too long a sequence, a mask of
            another shape.
    """
    ids_name, mask_name = names
    shape = tf.shape(token_ids)
    wrong = tf.boolean_mask(token_ids, (token_ids < 0) | (token_ids >= vocabulary_size))
    checks = [
        tf.debugging.Assert(
            tf.equal(tf.size(wrong), 0),
            [f"{ids_name} must be in [0, {vocabulary_size}), got", wrong[:1]],
        ),
        tf.debugging.Assert(
            shape[1] <= max_length, [f"{ids_name} must be at most {max_length} long, got length", shape[1]]
        ),
        tf.debugging.Assert(
            tf.reduce_all(tf.equal(shape, tf.shape(padding_mask))),
            [f"{mask_name} must have the shape of {ids_name}", shape, "given", tf.shape(padding_mask)],
        ),
    ]
    # Stateless ops do not wait for an assertion by themselves.
    with tf.control_dependencies(checks):
        return tf.identity(token_ids), tf.cast(padding_mask > 0, tf.int32)


def without_filling(token_ids, padding_mask, start_id: int):
    """The mask without the columns that a batching server has added.

    TensorFlow Serving makes the sequences of several requests equally long by repeating the first value of each
    tensor (`PadTensor` in tensorflow_serving/batching/batching_util.cc): the id of [CLS], with a mask of 1. So a
    [CLS] anywhere but at the start is no token; texts never have one there.

    Args:
        token_ids: int32 [B, T].
        padding_mask: int32 [B, T] of 0 and 1.
        start_id: Of [CLS].

    Returns:
        int32 [B, T].
    """
    later = tf.range(tf.shape(token_ids)[1]) > 0
    return padding_mask * tf.cast(~(later & tf.equal(token_ids, start_id)), tf.int32)


def compiled_lengths(max_length: int) -> list[int]:
    """The lengths that a compiled model is run at: powers of two from 16, and max_length.

    XLA compiles once a shape, which takes seconds, so there must be few.
    """
    doubled = [2**power for power in range(4, 31) if 2**power < max_length]
    return [*doubled, max_length]


def compiled_shapes(expected: Sequence[TextInputs]) -> list[list[int]]:
    """The lengths of all texts of a compiled model together, shortest first: few, so they rise together.

    Args:
        expected: The texts that the model reads.
    """
    lengths = [compiled_lengths(text.part.max_length) for text in expected]
    steps = max(map(len, lengths))
    return [[each[min(step, len(each) - 1)] for each in lengths] for step in range(steps)]


def at_compiled_length(expected: Sequence[TextInputs], given: Sequence) -> list:
    """Inputs padded to the smallest of `compiled_shapes` that holds them all.

    Args:
        expected: The texts that the model reads.
        given: Token ids and padding mask of each, int32 [B, T] in turn.
    """
    shapes = tf.constant(compiled_shapes(expected))
    lengths = tf.stack([tf.shape(token_ids)[1] for token_ids in given[::2]])
    holds = tf.reduce_all(shapes >= lengths, axis=1)
    missing = shapes[tf.argmax(holds)] - lengths
    padded = []
    for index, (text, token_ids, mask) in enumerate(zip(expected, given[::2], given[1::2], strict=True)):
        paddings = tf.stack([[0, 0], tf.stack([0, missing[index]])])
        padded.append(tf.pad(token_ids, paddings, constant_values=text.part.padding_id))
        padded.append(tf.pad(mask, paddings))
    return padded


def checked_sentences(texts: SentencePreprocessor, given: Mapping[str, Any]) -> dict[str, Any]:
    """A tagger's inputs, once they are known to be usable, without what a batching server has added.

    TensorFlow Serving makes tensors equally wide by repeating the first value of each. Of words that is where the
    request's first word starts, again: no two words of a window start at one place, so a second one is no word. (That
    finds all of it as long as a request begins with the first window of a sentence, where a word starts at 1.)

    Args:
        texts: The tagger's.
        given: token_ids, padding_mask int32 [B, T]; word_starts, word_mask int32 [B, W]; where spelling is read
            character_ids int32 [B, W, 20].

    Returns:
        The same by name, masks of 0 and 1; word_mask ends where its first 0 is.

    Raises:
        tf.errors.InvalidArgumentError: When the graph runs; an id or a start out of range, too long a sequence, shapes
            that do not fit each other.
    """
    part = texts.part
    token_ids, mask = checked_in_graph(
        given[TOKEN_IDS], given[PADDING_MASK], len(part.vocabulary), part.max_length
    )
    mask = without_filling(token_ids, mask, part.vocabulary.id_of(START))
    starts, tagged = given[WORD_STARTS], given[WORD_MASK]
    shape, length = tf.shape(starts), tf.shape(token_ids)[1]
    checks = [
        _same(f"{WORD_STARTS} must have as many rows as {TOKEN_IDS},", tf.shape(token_ids)[0], shape[0]),
        _same(f"{WORD_MASK} must have the shape of {WORD_STARTS}", shape, tf.shape(tagged)),
        _in_range(WORD_STARTS, starts, length),
        tf.debugging.Assert(
            shape[1] <= part.max_length,
            [f"{WORD_STARTS} must be at most {part.max_length} long, got length", shape[1]],
        ),
    ]
    if texts.characters:
        characters = given[CHARACTER_IDS]
        expected = tf.concat([shape, [SPELLING_LENGTH]], axis=0)
        checks += [
            _same(f"{CHARACTER_IDS} must have the shape", expected, tf.shape(characters)),
            _in_range(CHARACTER_IDS, characters, NUM_CHARACTERS),
        ]
    # Stateless ops do not wait for an assertion by themselves.
    with tf.control_dependencies(checks):
        starts = tf.identity(starts)
    starts *= 1 - _repeated(starts)
    tagged = tf.math.cumprod(tf.cast((tagged > 0) & (starts > 0), tf.int32), axis=1)
    checked = {TOKEN_IDS: token_ids, PADDING_MASK: mask, WORD_STARTS: starts, WORD_MASK: tagged}
    return {**checked, CHARACTER_IDS: given[CHARACTER_IDS]} if texts.characters else checked


def _same(message: str, expected, found):
    return tf.debugging.Assert(tf.reduce_all(tf.equal(expected, found)), [message, expected, "given", found])


def _in_range(name: str, values, end):
    wrong = tf.boolean_mask(values, (values < 0) | (values >= end))
    return tf.debugging.Assert(
        tf.equal(tf.size(wrong), 0), [f"{name} must be from 0 to below", end, "given", wrong[:1]]
    )


def _repeated(values):
    """Where a value stands that stood in its row before, int32 [B, W] of 0 and 1."""
    size = tf.shape(values)[1]
    same = tf.cast(tf.equal(values[:, :, None], values[:, None, :]), tf.int32)
    before = tf.cast(tf.range(size)[:, None] > tf.range(size), tf.int32)
    return tf.cast(tf.reduce_sum(same * before, axis=2) > 0, tf.int32)


def at_compiled_size(texts: SentencePreprocessor, given: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs with T and W padded to the smallest of `compiled_lengths` that holds both.

    Args:
        texts: The tagger's.
        given: What `checked_sentences` gives.
    """
    lengths: Sequence[int] = compiled_lengths(texts.max_length)
    tokens, words = tf.shape(given[TOKEN_IDS])[1], tf.shape(given[WORD_STARTS])[1]
    holds = tf.constant(lengths) >= tf.maximum(tokens, words)
    length = tf.constant(lengths)[tf.argmax(holds)]
    padded = {}
    for name, values in given.items():
        missing = length - tf.shape(values)[1]
        paddings = tf.stack([[0, 0], tf.stack([0, missing]), *[[0, 0]] * (len(values.shape) - 2)])
        filling = texts.padding_id if name == TOKEN_IDS else 0
        padded[name] = tf.pad(values, paddings, constant_values=filling)
    return padded

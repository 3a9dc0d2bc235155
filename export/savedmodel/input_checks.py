"""Checks token ids inside the served graph, and masks the columns that a batching server adds."""

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


def check_inputs(texts: Sequence[TextInputs], values: Sequence) -> list:
    """Checks the inputs of a classifier or matcher, and masks the columns that a batching server added.

    Token ids and padding mask of each text, int32 [B, T] in turn, come and return. When the graph runs, wrong ones
    raise tf.errors.InvalidArgumentError; so do texts with different numbers of rows.
    """
    checked, rows = [], tf.shape(values[0])[0]
    for text, token_ids, mask in zip(texts, values[::2], values[1::2], strict=True):
        vocabulary = text.part.vocabulary
        check = _same(f"{text.ids} must have as many rows as {texts[0].ids},", rows, tf.shape(token_ids)[0])
        with tf.control_dependencies([check]):
            ids, mask = check_token_ids(
                token_ids, mask, len(vocabulary), text.part.max_length, (text.ids, text.mask)
            )
        checked += [ids, mask_server_padding(ids, mask, vocabulary.id_of(START))]
    return checked


def check_token_ids(
    token_ids,
    padding_mask,
    vocabulary_size: int,
    max_length: int,
    names: tuple[str, str] = (TOKEN_IDS, PADDING_MASK),
):
    """Checks token ids int32 [B, T] and their mask; an error names the input.

    Without this check an embedding lookup accepts some negative ids, and fails for the rest deep inside the model.
    Returns the ids, and the mask as int32 of 0 and 1 (above 0 is a real token). When the graph runs, an id out of
    range, too long a sequence and a mask of another shape raise tf.errors.InvalidArgumentError.
    """
    ids_name, mask_name = names
    shape = tf.shape(token_ids)
    wrong = tf.boolean_mask(token_ids, (token_ids < 0) | (token_ids >= vocabulary_size))
    checks = [
        tf.debugging.Assert(
            tf.equal(tf.size(wrong), 0), [f"{ids_name} must be in [0, {vocabulary_size}), got", wrong[:1]]
        ),
        _at_most(ids_name, shape[1], max_length),
        _same(f"{mask_name} must have the shape of {ids_name}", shape, tf.shape(padding_mask)),
    ]
    # Stateless ops do not wait for an assertion by themselves.
    with tf.control_dependencies(checks):
        return tf.identity(token_ids), tf.cast(padding_mask > 0, tf.int32)


def mask_server_padding(token_ids, padding_mask, start_id: int):
    """The padding mask, int32 [B, T] of 0 and 1, without the columns that a batching server added.

    TensorFlow Serving pads the sequences of several requests to one length by repeating the first value of each
    tensor (`PadTensor` in tensorflow_serving/batching/batching_util.cc): the id of [CLS], with a mask of 1. So a
    [CLS] is a token only at the start; texts never have one elsewhere.
    """
    later = tf.range(tf.shape(token_ids)[1]) > 0
    return padding_mask * tf.cast(~(later & tf.equal(token_ids, start_id)), tf.int32)


def compiled_lengths(max_length: int) -> list[int]:
    """The lengths at which a compiled model runs: powers of two from 16, and max_length.

    XLA compiles once for each shape, which takes seconds, so there must be few.
    """
    doubled = [2**power for power in range(4, 31) if 2**power < max_length]
    return [*doubled, max_length]


def compiled_shapes(texts: Sequence[TextInputs]) -> list[list[int]]:
    """The lengths of all texts of a compiled model together, shortest first; they grow together, so there are few."""
    lengths = [compiled_lengths(text.part.max_length) for text in texts]
    steps = max(map(len, lengths))
    return [[each[min(step, len(each) - 1)] for each in lengths] for step in range(steps)]


def pad_to_compiled_length(texts: Sequence[TextInputs], values: Sequence) -> list:
    """Pads token ids and padding mask of each text, int32 [B, T] in turn, to the smallest fitting `compiled_shapes`."""
    shapes = tf.constant(compiled_shapes(texts))
    lengths = tf.stack([tf.shape(token_ids)[1] for token_ids in values[::2]])
    holds = tf.reduce_all(shapes >= lengths, axis=1)
    missing = shapes[tf.argmax(holds)] - lengths
    padded = []
    for index, (text, token_ids, mask) in enumerate(zip(texts, values[::2], values[1::2], strict=True)):
        paddings = tf.stack([[0, 0], tf.stack([0, missing[index]])])
        padded.append(tf.pad(token_ids, paddings, constant_values=text.part.padding_id))
        padded.append(tf.pad(mask, paddings))
    return padded


def check_sentences(texts: SentencePreprocessor, values: Mapping[str, Any]) -> dict[str, Any]:
    """Checks the inputs of a tagger, and masks the columns that a batching server added.

    TensorFlow Serving pads tensors by repeating the first value of each. For words that is the start of the request's
    first word. Two words of a window never start at the same token, so a repeated start is no word. (This finds all
    padding if a request begins with the first window of a sentence, where a word starts at 1.)

    Inputs by name are token_ids, padding_mask int32 [B, T]; word_starts, word_mask int32 [B, W]; where spelling is
    read character_ids int32 [B, W, 20]. Returns the same, masks of 0 and 1; word_mask ends at its first 0. When the
    graph runs, an id or a start out of range, too long a sequence, and shapes that do not fit together raise
    tf.errors.InvalidArgumentError.
    """
    part = texts.part
    token_ids, mask = check_token_ids(
        values[TOKEN_IDS], values[PADDING_MASK], len(part.vocabulary), part.max_length
    )
    mask = mask_server_padding(token_ids, mask, part.vocabulary.id_of(START))
    starts, tagged = values[WORD_STARTS], values[WORD_MASK]
    shape, length = tf.shape(starts), tf.shape(token_ids)[1]
    checks = [
        _same(f"{WORD_STARTS} must have as many rows as {TOKEN_IDS},", tf.shape(token_ids)[0], shape[0]),
        _same(f"{WORD_MASK} must have the shape of {WORD_STARTS}", shape, tf.shape(tagged)),
        _in_range(WORD_STARTS, starts, length),
        _at_most(WORD_STARTS, shape[1], part.max_length),
    ]
    if texts.characters:
        characters = values[CHARACTER_IDS]
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
    return {**checked, CHARACTER_IDS: values[CHARACTER_IDS]} if texts.characters else checked


def pad_sentences_to_compiled_length(
    texts: SentencePreprocessor, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Pads T and W of what `check_sentences` returned to the smallest of `compiled_lengths` that holds both."""
    lengths: Sequence[int] = compiled_lengths(texts.max_length)
    tokens, words = tf.shape(values[TOKEN_IDS])[1], tf.shape(values[WORD_STARTS])[1]
    holds = tf.constant(lengths) >= tf.maximum(tokens, words)
    length = tf.constant(lengths)[tf.argmax(holds)]
    padded = {}
    for name, array in values.items():
        missing = length - tf.shape(array)[1]
        paddings = tf.stack([[0, 0], tf.stack([0, missing]), *[[0, 0]] * (len(array.shape) - 2)])
        padding_value = texts.padding_id if name == TOKEN_IDS else 0
        padded[name] = tf.pad(array, paddings, constant_values=padding_value)
    return padded


def _same(message: str, expected, found):
    return tf.debugging.Assert(tf.reduce_all(tf.equal(expected, found)), [message, expected, "got", found])


def _at_most(name: str, length, most: int):
    return tf.debugging.Assert(length <= most, [f"{name} must be at most {most} long, got length", length])


def _in_range(name: str, values, end):
    wrong = tf.boolean_mask(values, (values < 0) | (values >= end))
    return tf.debugging.Assert(
        tf.equal(tf.size(wrong), 0), [f"{name} must be from 0 to below", end, "got", wrong[:1]]
    )


def _repeated(values):
    """1 where a value occurred in its row before, int32 [B, W] of 0 and 1."""
    size = tf.shape(values)[1]
    same = tf.cast(tf.equal(values[:, :, None], values[:, None, :]), tf.int32)
    before = tf.cast(tf.range(size)[:, None] > tf.range(size), tf.int32)
    return tf.cast(tf.reduce_sum(same * before, axis=2) > 0, tf.int32)

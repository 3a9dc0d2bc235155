"""The pair encoder: outputs, the joint form compared with one concatenated sequence, and rejected arguments."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from kmha.errors import InputError
from kmha.layers.embedding import NgramEmbedding
from kmha.models.pair_encoder import A_TO_A, A_TO_B, B_TO_A, B_TO_B, PAIR, PairEncoder
from tests.kmha.models.tiny_features import V, features
from tests.kmha.models.tiny_pairs import (
    BOTH,
    CHAR,
    FIRST_WORD,
    JOINT,
    LENGTH,
    WORDPIECE,
    A,
    B,
    matcher,
    new_matcher,
    pair_features,
    text,
)
from tests.layer_checks import fill_weights, to_numpy

SEGMENTS = {"num_segments": 2}


def _inputs(a, b, length_a=None, length_b=None):
    return list(pair_features(matcher(), a, b, length_a, length_b).values())


def _embedded(encoder, a, b):
    """One sequence, [CLS] a [SEP] b [SEP], before the blocks: [1, T, D]. n-grams stay within a text."""
    embedding = encoder.embedding
    ids, segments = np.array([a + b[1:]], "int32"), np.array([[0] * len(a) + [1] * (len(b) - 1)], "int32")
    x = embedding.tokens(ids) + embedding.segments(segments)
    if embedding.position is not None:
        x = x + ops.convert_to_tensor(embedding.position.table)[: ids.shape[1]]
    if embedding.ngrams is not None:
        alone = [embedding.ngrams(np.array([row], "int32")) for row in (a, b)]
        x = x + ops.concatenate([alone[0], alone[1][:, 1:]], axis=1)
    return encoder.norm(x) if encoder.norm is not None else x


def _joint_by_hand(pair, a, b):
    """The pooled vector [1, D] and the shares of one pair, without any padding."""
    x, shares = _embedded(pair.encoder_a, a, b), (None, None)
    if pair.overlap:
        one, other = np.array([a], "int32"), np.array([b[1:]], "int32")
        marks_a, marks_b, *shares = pair.token_overlap(one, other, np.ones_like(one), np.ones_like(other))
        x = x + pair.mark(ops.concatenate([marks_a, marks_b], axis=1))
    mask = np.ones((1, len(a) + len(b) - 1), "int32")
    return pair.pool(pair.encoder_a.attend(x, mask)[0], mask), shares


@pytest.mark.parametrize(("length_a", "length_b"), [(None, None), (LENGTH, LENGTH)])
@pytest.mark.parametrize("name", JOINT)
def test_the_joint_form_equals_one_concatenated_sequence(name, length_a, length_b):
    for pair in matcher(name).pairs:
        found = pair(*_inputs(A, B, length_a, length_b))
        for row, (a, b) in enumerate(zip(A, B, strict=True)):
            pooled, shares = _joint_by_hand(pair, a, b)
            for each in found[:2]:
                np.testing.assert_allclose(to_numpy(each)[row], to_numpy(pooled)[0], atol=1e-5)
            for each, expected in zip(found[2:4], shares, strict=True):
                if pair.overlap:
                    np.testing.assert_allclose(to_numpy(each)[row], to_numpy(expected)[0], atol=1e-6)
                else:
                    assert each is None


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_joint_form_without_extras_is_the_encoder_on_one_sequence(norm, positions):
    config = dataclasses.replace(CHAR, norm=norm, positions=positions, **SEGMENTS)
    pair = PairEncoder(config, form="joint", overlap=False)
    pair.build((None, None))
    found = to_numpy(pair(*_inputs(A, B, LENGTH, LENGTH))[0])
    rows = [a + b[1:] for a, b in zip(A, B, strict=True)]
    length = max(map(len, rows))
    segments = [[int(t >= len(a)) for t in range(length)] for a in A]
    whole = features(rows, length, segments)
    expected = pair.pool(pair.encoder_a(whole), whole["padding_mask"])
    np.testing.assert_allclose(found, to_numpy(expected), atol=1e-5)


def test_both_texts_have_their_first_ngrams_in_the_joint_form():
    """They equal the n-grams of `NgramEmbedding.adapt`, which reads every text from its [CLS]."""
    (pair,) = matcher("joint").pairs
    ids = np.array([text(5, 6, 7)], "int32")
    ngrams = pair.encoder_a.embedding.ngrams
    assert ngrams is not None
    seen = []

    def record(token_ids, **options):
        seen.append(to_numpy(NgramEmbedding.call(ngrams, token_ids, **options)))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngrams, "call", record)
        pair(ids, np.ones_like(ids), ids, np.ones_like(ids))
    np.testing.assert_allclose(seen[0], seen[1], atol=1e-6)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_texts_longer_than_the_table_of_positions_are_rejected(positions):
    config = dataclasses.replace(WORDPIECE, positions=positions, **SEGMENTS)
    pair = PairEncoder(config, form="joint")
    pair.build((None, None))
    # The position table has room for both texts without the second [CLS].
    longest = [text(*range(5, 12))]
    assert len(longest[0]) == LENGTH and 2 * LENGTH - 1 == BOTH
    assert np.isfinite(to_numpy(pair(*_inputs(longest, longest))[0])).all()
    with pytest.raises(ValueError, match=f"together must be at most max_length {BOTH} long, got {BOTH + 1}"):
        pair(*_inputs(longest, longest, LENGTH, LENGTH + 1))


def test_too_long_texts_of_unknown_length_are_rejected():
    pair = matcher("joint").pairs[0]
    spec = tf.TensorSpec((None, None), "int32")
    call = tf.function(lambda *inputs: pair(*inputs)[0], input_signature=[spec] * 4)
    longest = [text(*range(5, 12))]
    assert np.isfinite(to_numpy(call(*_inputs(longest, longest)))).all()
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{BOTH} is not in \[0, {BOTH}\)"):
        call(*_inputs(longest, [text(*range(5, 13))]))


def test_without_positions_any_length_is_accepted():
    pair = PairEncoder(dataclasses.replace(CHAR, positions="none", **SEGMENTS), form="joint", overlap=False)
    pair.build((None, None))
    assert pair(*_inputs(A, B, BOTH, BOTH))[0].shape == (len(A), CHAR.hidden_dim)


@pytest.mark.parametrize("form", ["cross", "joint"])
def test_marks_influence_the_score(form):
    """A word in common and a twin of it, another word of the same vector, differ in their marks alone."""
    pair = PairEncoder(dataclasses.replace(CHAR, **SEGMENTS), form=form)
    pair.build((None, None))
    fill_weights(pair)
    word, twin = 5, 6
    table = to_numpy(pair.encoder_a.embedding.tokens.embeddings).copy()
    table[twin] = table[word]
    pair.encoder_a.embedding.tokens.embeddings.assign(table)

    def vectors():
        return [to_numpy(pair(*_inputs([text(word, 7)], [text(other, 8)]))[0]) for other in (word, twin)]

    shared, different = vectors()
    assert np.abs(shared - different).max() > 1e-3
    pair.mark.kernel.assign(np.zeros(pair.mark.kernel.shape))
    shared, different = vectors()
    np.testing.assert_array_equal(shared, different)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"rounds": 3}, {A_TO_A: 1, B_TO_B: 1, A_TO_B: 3, B_TO_A: 3}),
        ({"form": "bi", "overlap": False, "rounds": 3}, {A_TO_A: 1, B_TO_B: 1}),
        ({"form": "joint"}, {PAIR: 1}),
    ],
)
def test_each_form_names_its_weights(options, names):
    pair = PairEncoder(dataclasses.replace(WORDPIECE, **SEGMENTS), **options)
    pair.build((None, None))
    *_, weights = pair(*_inputs(A, B), return_attention_weights=True)
    assert {name: len(blocks) for name, blocks in weights.items()} == names


def test_rounds_attend_to_the_other_text_before_the_round():
    (pair,) = matcher("cross").pairs
    ids_a, mask_a, ids_b, mask_b = _inputs(A, B)
    a, _ = pair.encode(ids_a, mask_a, "a")
    b, _ = pair.encode(ids_b, mask_b, "b")
    marks_a, marks_b, *_ = pair.token_overlap(ids_a, ids_b, mask_a, mask_b)
    a, b = a + pair.mark(marks_a), b + pair.mark(marks_b)
    assert len(pair.rounds_a) == 2
    for block in pair.rounds_a:
        a, b = block(a, b, attention_mask=mask_b), block(b, a, attention_mask=mask_a)
    found = pair(ids_a, mask_a, ids_b, mask_b)
    for each, x, mask in ((found[0], a, mask_a), (found[1], b, mask_b)):
        np.testing.assert_allclose(to_numpy(each), to_numpy(pair.pool(x, mask)), atol=1e-6)


def test_separate_weights_double_the_number():
    one, two = (new_matcher(overlap=False, share_weights=share).pairs[0] for share in (True, False))
    for pair in (one, two):
        pair.build((None, None))
    # Both texts share the normalization of pooled vectors.
    norm = 2 * WORDPIECE.hidden_dim
    assert two.count_params() - norm == 2 * (one.count_params() - norm)
    assert len(one.encoders) == 1 and len(two.encoders) == 2
    assert one.rounds_a is one.rounds_b or list(one.rounds_a) == list(one.rounds_b)
    assert not {id(block) for block in two.rounds_a} & {id(block) for block in two.rounds_b}


def test_words_start_after_the_special_tokens():
    pair = PairEncoder(dataclasses.replace(WORDPIECE, unknown_id=3))
    assert pair.token_overlap.first_id == 7
    assert PairEncoder(WORDPIECE).token_overlap.first_id == FIRST_WORD < V


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"form": "both"}, "form must be one of cross, bi, joint, got 'both'"),
        (
            {},
            {"form": "bi"},
            "overlap must be off in the bi form, whose texts do not attend to each other, got on",
        ),
        ({}, {"form": "joint"}, "num_segments must be 2 in the joint form, got 0"),
        ({"num_segments": 3}, {"form": "joint"}, "num_segments must be 2 in the joint form, got 3"),
        (
            {"num_segments": 2, "positions": "rotary"},
            {"form": "joint"},
            "positions must be learned, sinusoidal or none in the joint form, got rotary",
        ),
        (
            SEGMENTS,
            {"form": "joint", "share_weights": False},
            "share_weights must be on in the joint form, which has one encoder, got off",
        ),
    ],
)
def test_contradictory_arguments_are_rejected(changes, options, message):
    with pytest.raises(InputError) as refusal:
        PairEncoder(dataclasses.replace(WORDPIECE, **changes), **options)
    assert str(refusal.value) == message

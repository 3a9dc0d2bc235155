import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.text.preprocessor import BYTES_PER_TOKEN, Preprocessor
from kmha.text.vocabulary import TOKENIZATIONS
from tests.bundles import EDGE_CASES, TEXTS, preprocessor

every_tokenization = pytest.mark.parametrize("tokenization", TOKENIZATIONS)
cached = functools.cache(preprocessor)


def rows(features) -> list[list[int]]:
    """Token ids without padding."""
    ids, mask = features["token_ids"].numpy(), features["padding_mask"].numpy()
    return [list(row[kept == 1]) for row, kept in zip(ids, mask, strict=True)]


@every_tokenization
def test_features_are_int32_and_padded_on_the_right(tokenization):
    features = cached(tokenization)(tf.constant([*TEXTS, ""]))
    length = max(map(len, rows(features)))
    for values in features.values():
        assert values.dtype == tf.int32 and values.shape == (len(TEXTS) + 1, length)
    mask = features["padding_mask"].numpy()
    assert (np.diff(mask, axis=1) <= 0).all() and set(np.unique(mask)) == {0, 1}
    assert (features["token_ids"].numpy()[mask == 0] == cached(tokenization).padding_id).all()
    assert not features["segment_ids"].numpy().any()


@every_tokenization
@pytest.mark.parametrize("max_length", [3, 5, 24])
def test_truncation_keeps_both_ends_and_the_first_tokens(tokenization, max_length):
    cut = cached(tokenization, True, max_length)
    vocabulary = cut.vocabulary
    all_tokens = cut.tokenize(tf.constant(TEXTS)).to_list()
    for row, tokens in zip(rows(cut(tf.constant(TEXTS))), all_tokens, strict=True):
        assert len(row) == min(len(tokens) + 2, max_length)
        assert row[0] == vocabulary.id_of("[CLS]") and row[-1] == vocabulary.id_of("[SEP]")
        assert row[1:-1] == tokens[: max_length - 2]


@pytest.mark.parametrize("length", [24, 40])
def test_features_are_padded_to_a_given_length(length):
    texts = tf.constant(TEXTS)
    features = cached()(texts, length)
    assert features["token_ids"].shape == (len(TEXTS), length)
    assert rows(features) == rows(cached()(texts))


def test_no_texts_give_no_rows():
    assert cached()(tf.constant([], tf.string))["token_ids"].shape[0] == 0
    assert cached()(tf.constant([], tf.string), 8)["token_ids"].shape == (0, 8)


@every_tokenization
@pytest.mark.parametrize("text", ["", " \t\n\u3000", "\0", "\x01\x7f\x85", "\u0301\u200b"])
def test_a_text_without_tokens_has_only_cls_and_sep(tokenization, text):
    vocabulary = cached(tokenization).vocabulary
    found = rows(cached(tokenization)(tf.constant([text])))
    assert found == [[vocabulary.id_of("[CLS]"), vocabulary.id_of("[SEP]")]]


@every_tokenization
def test_any_bytes_give_ids_of_the_vocabulary(tokenization):
    cut, texts = cached(tokenization), tf.constant(EDGE_CASES)
    ids = cut(texts)["token_ids"].numpy()
    assert 0 <= ids.min() and ids.max() < len(cut.vocabulary) and ids.shape[1] <= cut.max_length
    assert all(len(row) >= 2 for row in rows(cut(texts)))


@every_tokenization
def test_only_the_first_bytes_of_a_long_text_are_read(tokenization):
    cut = cached(tokenization)
    for text in EDGE_CASES:
        assert cut.tokenize(tf.constant([text])).row_lengths().numpy()[0] <= cut.max_bytes


@every_tokenization
@settings(max_examples=25)
@given(
    st.lists(st.one_of(st.binary(max_size=60), st.text(max_size=30).map(str.encode)), min_size=1, max_size=5)
)
def test_eager_and_graph_give_the_same_ids(tokenization, texts):
    cut = cached(tokenization)
    eager = rows(cut(tf.constant(texts)))
    assert rows(graph(tokenization)(tf.constant(texts))) == eager
    assert rows(graph(tokenization)(tf.constant(texts[-1:]))) == eager[-1:]


@functools.cache
def graph(tokenization):
    return tf.function(cached(tokenization), input_signature=[tf.TensorSpec([None], tf.string)])


@every_tokenization
def test_the_pipeline_gives_the_same_ids(tokenization):
    cut = cached(tokenization)
    texts = [*EDGE_CASES, *(text.encode() for text in TEXTS)]
    batches = tf.data.Dataset.from_tensor_slices(texts).batch(4).map(cut, num_parallel_calls=2)
    found = [row for features in batches for row in rows(features)]
    assert found == rows(cut(tf.constant(texts)))


@every_tokenization
@pytest.mark.parametrize("lower_case", [True, False])
def test_valid_texts_need_no_check(tokenization, lower_case):
    cut = cached(tokenization, lower_case)
    points = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts = tf.constant(["".join(points[i : i + 40]) for i in range(0, len(points), 40)])
    checked, unchecked = cut.tokenize(texts), cut.tokenize(texts, valid_utf8=True)
    np.testing.assert_array_equal(checked.row_splits, unchecked.row_splits)
    np.testing.assert_array_equal(checked.flat_values, unchecked.flat_values)


@every_tokenization
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_truncation_may_split_a_character(tokenization, offset):
    cut = cached(tokenization, True, 24)
    assert cut.max_bytes == BYTES_PER_TOKEN * 24
    text = "a" * offset + "港" * cut.max_bytes
    whole = cut.tokenize(tf.constant([text]))
    assert whole.row_lengths().numpy()[0] <= cut.max_bytes // 3 + offset + 1
    assert whole.to_list() == cut.tokenize(tf.constant([text]), valid_utf8=True).to_list()
    shorter = rows(cut(tf.constant([text[: cut.max_bytes // 3]])))
    assert rows(cut(tf.constant([text]))) == shorter


@every_tokenization
def test_bytes_after_the_maximum_are_ignored(tokenization):
    cut = cached(tokenization)
    text = b"old bread " * (cut.max_bytes // 10 + 1)
    text = text[: cut.max_bytes]
    both = cut.tokenize(tf.constant([text, text + b"\xff harbour" * 9])).to_list()
    assert both[0] == both[1]


@every_tokenization
def test_invalid_bytes_are_replacement_characters(tokenization):
    cut = cached(tokenization)
    both = cut.tokenize(tf.constant([b"old \xff bread", "old \ufffd bread".encode()])).to_list()
    assert both[0] == both[1]
    last = cut.vocabulary.id_of("d" if tokenization == "char" else "bread")
    assert cut.unknown_id in both[0] and both[0][-1] == last


def test_a_layer_is_recreated_from_its_config():
    cut = cached("char", False, 9)
    again = Preprocessor(cut.vocabulary, **cut.get_config())
    assert (
        again.get_config()
        == cut.get_config()
        == {
            "tokenization": "char",
            "lower_case": False,
            "max_length": 9,
        }
    )
    texts = tf.constant(TEXTS)
    assert rows(again(texts)) == rows(cut(texts))


@pytest.mark.parametrize("max_length", [2, 0, -1])
def test_a_too_short_length_is_rejected(max_length):
    with pytest.raises(InputError, match=f"max_length must be at least 3, got {max_length}"):
        preprocessor(max_length=max_length)

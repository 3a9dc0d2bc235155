import functools
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

from kmha.errors import InputError
from kmha.text.preprocessor import BYTES_PER_TOKEN, Preprocessor
from kmha.text.vocabulary import SPECIAL_TOKENS, TOKENIZATIONS, Tokenization, Vocabulary
from tests.bundles import EDGE_CASES, TEXTS, preprocessor

every_tokenization = pytest.mark.parametrize("tokenization", TOKENIZATIONS)
cached = functools.cache(preprocessor)


def rows(features) -> list[list[int]]:
    """Token ids without padding."""
    ids, mask = features["token_ids"].numpy(), features["padding_mask"].numpy()
    return [list(row[is_real == 1]) for row, is_real in zip(ids, mask, strict=True)]


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
def test_truncation_retains_both_ends_and_the_first_tokens(tokenization, max_length):
    layer = cached(tokenization, True, max_length)
    vocabulary = layer.vocabulary
    all_tokens = layer.tokenize(tf.constant(TEXTS)).to_list()
    for row, tokens in zip(rows(layer(tf.constant(TEXTS))), all_tokens, strict=True):
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
    layer, texts = cached(tokenization), tf.constant(EDGE_CASES)
    ids = layer(texts)["token_ids"].numpy()
    assert 0 <= ids.min() and ids.max() < len(layer.vocabulary) and ids.shape[1] <= layer.max_length
    assert all(len(row) >= 2 for row in rows(layer(texts)))


@every_tokenization
def test_only_the_first_bytes_of_a_long_text_are_read(tokenization):
    layer = cached(tokenization)
    for text in EDGE_CASES:
        assert layer.tokenize(tf.constant([text])).row_lengths().numpy()[0] <= layer.max_bytes


@every_tokenization
@settings(max_examples=25)
@given(
    st.lists(st.one_of(st.binary(max_size=60), st.text(max_size=30).map(str.encode)), min_size=1, max_size=5)
)
def test_eager_and_graph_give_the_same_ids(tokenization, texts):
    layer = cached(tokenization)
    eager = rows(layer(tf.constant(texts)))
    assert rows(graph(tokenization)(tf.constant(texts))) == eager
    assert rows(graph(tokenization)(tf.constant(texts[-1:]))) == eager[-1:]


@functools.cache
def graph(tokenization):
    return tf.function(cached(tokenization), input_signature=[tf.TensorSpec([None], tf.string)])


@every_tokenization
def test_the_pipeline_gives_the_same_ids(tokenization):
    layer = cached(tokenization)
    texts = [*EDGE_CASES, *(text.encode() for text in TEXTS)]
    batches = tf.data.Dataset.from_tensor_slices(texts).batch(4).map(layer, num_parallel_calls=2)
    found = [row for features in batches for row in rows(features)]
    assert found == rows(layer(tf.constant(texts)))


@every_tokenization
@pytest.mark.parametrize("lower_case", [True, False])
def test_valid_texts_need_no_check(tokenization, lower_case):
    layer = cached(tokenization, lower_case)
    points = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    texts = tf.constant(["".join(points[i : i + 40]) for i in range(0, len(points), 40)])
    checked, unchecked = layer.tokenize(texts), layer.tokenize(texts, valid_utf8=True)
    np.testing.assert_array_equal(checked.row_splits, unchecked.row_splits)
    np.testing.assert_array_equal(checked.flat_values, unchecked.flat_values)


@every_tokenization
@pytest.mark.parametrize("offset", [0, 1, 2])
def test_truncation_may_split_a_character(tokenization, offset):
    layer = cached(tokenization, True, 24)
    assert layer.max_bytes == BYTES_PER_TOKEN * 24
    text = "a" * offset + "港" * layer.max_bytes
    whole = layer.tokenize(tf.constant([text]))
    assert whole.row_lengths().numpy()[0] <= layer.max_bytes // 3 + offset + 1
    assert whole.to_list() == layer.tokenize(tf.constant([text]), valid_utf8=True).to_list()
    shorter = rows(layer(tf.constant([text[: layer.max_bytes // 3]])))
    assert rows(layer(tf.constant([text]))) == shorter


@every_tokenization
def test_bytes_after_the_maximum_are_ignored(tokenization):
    layer = cached(tokenization)
    text = b"old bread " * (layer.max_bytes // 10 + 1)
    text = text[: layer.max_bytes]
    both = layer.tokenize(tf.constant([text, text + b"\xff harbour" * 9])).to_list()
    assert both[0] == both[1]


@every_tokenization
def test_invalid_bytes_are_replacement_characters(tokenization):
    layer = cached(tokenization)
    both = layer.tokenize(tf.constant([b"old \xff bread", "old \ufffd bread".encode()])).to_list()
    assert both[0] == both[1]
    last = layer.vocabulary.id_of("d" if tokenization == "char" else "bread")
    assert layer.unknown_id in both[0] and both[0][-1] == last


def test_a_layer_is_recreated_from_its_config():
    layer = cached("char", False, 9)
    again = Preprocessor(layer.vocabulary, **layer.get_config())
    assert (
        again.get_config()
        == layer.get_config()
        == {
            "tokenization": "char",
            "lower_case": False,
            "max_length": 9,
        }
    )
    texts = tf.constant(TEXTS)
    assert rows(again(texts)) == rows(layer(texts))


@pytest.mark.parametrize("max_length", [2, 0, -1])
def test_a_too_short_length_is_rejected(max_length):
    with pytest.raises(InputError, match=f"max_length must be at least 3, got {max_length}"):
        preprocessor(max_length=max_length)


PIECES = "the cat sat ##s un ##want ##ed , . ' ! ? don t 港 口 cafe café naive 2 ##0 ##26 - Ж й и".split()
BLOCKS = [
    *range(0x20, 0x7F),
    *range(0xC0, 0x180),
    *range(0x391, 0x3CA),
    *range(0x410, 0x450),
    *range(0x5D0, 0x5EB),
    *range(0x621, 0x64B),
    *range(0x4E00, 0x4E20),
    *range(0x3041, 0x3097),
    *range(0xAC00, 0xAC20),
    *range(0x1F600, 0x1F620),
    *map(ord, "\t\n\r\u00a0\u3000，。！？“”"),
]


def plain(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")


def agrees(character: str) -> bool:
    """Whether lower-casing and compatibility case folding do the same to a character."""
    return plain(character.lower()) == plain(unicodedata.normalize("NFKC", character.casefold()))


def tokens_of(
    text: str | bytes, pieces, tokenization: Tokenization = "wordpiece", lower_case=True
) -> list[str]:
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *pieces])
    ids = Preprocessor(vocabulary, tokenization, lower_case).tokenize(tf.constant([text]))
    return [vocabulary.tokens[index] for index in ids.flat_values.numpy()]


def every_character(lower_case: bool) -> Vocabulary:
    """A vocabulary with every character, at the start of a word and inside a word."""
    characters = [chr(code) for code in BLOCKS if not lower_case or agrees(chr(code))]
    seen = sorted({c for char in characters for c in char + plain(char) + plain(char.lower()) if c.strip()})
    return Vocabulary([*SPECIAL_TOKENS, *seen, *(f"##{c}" for c in seen), "##ing", "the", "##er", "ab"])


VOCABULARIES = {lower_case: every_character(lower_case) for lower_case in (True, False)}
OURS = {case: Preprocessor(vocabulary, "wordpiece", case) for case, vocabulary in VOCABULARIES.items()}
REFERENCES = {
    case: BertWordPieceTokenizer(vocab=dict(vocabulary.ids), lowercase=case, strip_accents=case)
    for case, vocabulary in VOCABULARIES.items()
}


def assert_equals_reference(texts: list[str], lower_case: bool) -> None:
    found = OURS[lower_case].tokenize(tf.constant(texts)).to_list()
    encoded = REFERENCES[lower_case].encode_batch(texts, add_special_tokens=False)
    assert found == [encoding.ids for encoding in encoded]


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "The other cat isn't eating, is it?",
        "Ångström naïve CAFÉ façade Ærøskøbing",
        "北京, the 上海ing。",
        "ΑΒΓ Эйнштейн ёлка Йод",
        "한국어 각가 ひらがな",
        "שלום עולם ؟ العربية",
        "😀😁ab😂 a\u0301b\u0308",
        "  two  spaces\tand\nlines\r\n  ",
        "snake_case 3.14 $5 <a@b.c> #tag C++ x=y `q` ~^|",
        "a" * 99,
        "\u00a0ab\u3000ing\u00a0",
        "",
    ],
)
def test_wordpiece_equals_the_reference(text, lower_case):
    # "æ" and "ø" have no accents to strip; every character is in both vocabularies.
    assert_equals_reference([text], lower_case)


@pytest.mark.parametrize("lower_case", [True, False])
@settings(max_examples=60)
@given(data=st.data())
def test_wordpiece_equals_the_reference_on_any_text_of_agreed_characters(lower_case, data):
    characters = [chr(code) for code in BLOCKS if not lower_case or agrees(chr(code))]
    # The two limits on a word differ: 200 bytes here, 100 characters there.
    words = st.lists(st.text(characters, max_size=12), max_size=8)
    texts = [" ".join(some) for some in data.draw(st.lists(words, min_size=1, max_size=8))]
    # The reference parses special tokens in texts.
    assume(not any(token in text for text in texts for token in SPECIAL_TOKENS))
    assert_equals_reference(texts, lower_case)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cats, unwanted!", "the cat ##s , un ##want ##ed !"),
        ("don't", "don ' t"),
        ("港口the港", "港 口 the 港"),
        ("Café CAFÉ naïve", "cafe cafe naive"),
        ("2026-20", "2 ##0 ##26 - 2 ##0"),
        ("catx the", "[UNK] the"),
        ("th e", "[UNK] [UNK]"),
        ("Йи", "[UNK]"),
        ("Й", "и"),
    ],
)
def test_wordpiece_equals_a_manual_example(text, expected):
    assert tokens_of(text, PIECES) == expected.split()


def test_case_and_accents_are_retained_without_lower_case():
    assert tokens_of("café Cafe cafe Ж", PIECES, lower_case=False) == ["café", "[UNK]", "cafe", "Ж"]


@pytest.mark.parametrize(
    ("text", "lower_case", "expected"),
    [
        ("ＡＢ", True, "ab"),
        ("a\u200bb", True, "ab"),
        ("a\u200bb", False, "a b"),
        ("a\0b", True, "a b"),
        ("a\x85b", False, "a b"),
        ("a\u3000b\u00a0a", True, "a b a"),
        ("a\u3000b\u00a0a", False, "a b a"),
        ("a\u2028b", False, "a b"),
        ("a\u2028b", True, "a b"),
        ("a，b", True, "a , b"),
        ("a，b", False, "a ， b"),
        ("a\ufffdb", True, "[UNK]"),
    ],
)
def test_where_it_differs_from_the_reference(text, lower_case, expected):
    assert tokens_of(text, ["a", "b", "ab", ",", "，", "##b"], lower_case=lower_case) == expected.split()


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("tokenization", ["wordpiece", "word", "char"])
def test_all_white_space_separates_words(tokenization, lower_case):
    spaces = [chr(code) for code in range(0x10000) if unicodedata.category(chr(code)).startswith("Z")]
    spaces += "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\x85"
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "a", "b", " "])
    found = Preprocessor(vocabulary, tokenization, lower_case).tokenize(
        tf.constant([f"a{c}b" for c in spaces])
    )
    expected = [5, 7, 6] if tokenization == "char" else [5, 6]
    assert found.to_list() == [expected] * len(spaces)


@pytest.mark.parametrize("lower_case", [True, False])
def test_white_space_tokens_of_the_vocabulary_are_retained(lower_case):
    assert tokens_of("a \u2028 b", ["a", "b", "\u2028"], "wordpiece", lower_case) == ["a", "\u2028", "b"]


def test_words_are_matched_as_a_whole():
    words = ["play", "playing", "##s", "it", "'"]
    found = tokens_of("Play playing plays playin it's", words, "word")
    assert found == ["play", "playing", "[UNK]", "[UNK]", "it", "'", "[UNK]"]


def test_chinese_characters_are_words():
    assert tokens_of("港口x", ["港", "口", "港口", "x"], "word") == ["港", "口", "x"]


@pytest.mark.parametrize(
    ("text", "lower_case", "expected"),
    [
        ("a b", True, "a b"),
        ("  a \t\r\n\u3000 B ", True, "a b"),
        ("a\u00a0\u2028b", False, "a b"),
        ("á", True, "a"),
        ("港a", True, "港a"),
        ("", True, ""),
        (" \n", True, ""),
        ("\0", True, ""),
        ("a\0b", True, "a b"),
    ],
)
def test_white_space_between_characters_is_one_space(text, lower_case, expected):
    assert tokens_of(text, ["a", "b", " ", "港", "港a"], "char", lower_case) == list(expected)


def test_an_unknown_character_costs_one_token():
    found = tokens_of("a☃🚢\U0010ffffa", ["a", "港", "ab"], "char")
    assert found == ["a", "[UNK]", "[UNK]", "[UNK]", "a"]


def test_unknown_characters_are_unknown_tokens():
    assert tokens_of("ab", ["ab"], "char") == ["[UNK]"] * 2


@pytest.mark.parametrize("tokenization", ["wordpiece", "word"])
def test_a_too_long_token_is_rejected(tokenization):
    with pytest.raises(InputError) as error:
        tokens_of("a", ["x" * 300], tokenization)
    assert "\n" not in str(error.value) and "256" in str(error.value)


def test_text_cannot_write_special_tokens():
    for tokenization in ("wordpiece", "word", "char"):
        assert set(tokens_of("[CLS][SEP] [PAD] [MASK]", ["x"], tokenization)) == {"[UNK]"}

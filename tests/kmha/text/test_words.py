"""Positions of the words of raw texts."""

import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kmha.text.sentence_preprocessor import spell_words
from kmha.text.words import Split, rows_of_values, split_words, word_bounds


def words(text: str, split: Split = "words") -> list[str]:
    return [text[first:end] for first, end in word_bounds(text, split)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Anna met Bob.", ["Anna", "met", "Bob", "."]),
        ("Don't! It’s 3,5 % (or 1.5)", ["Don't", "!", "It’s", "3,5", "%", "(", "or", "1.5", ")"]),
        ("'x' a. 5. .5 a.b", ["'", "x", "'", "a", ".", "5", ".", ".", "5", "a", ".", "b"]),
        ("snake_case ok-ish @bob #tag", ["snake_case", "ok", "-", "ish", "@", "bob", "#", "tag"]),
        ("渡轮abc 12。", ["渡", "轮", "abc", "12", "。"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("e\u0301tude ✌\ufe0f สวัสดี", ["e\u0301tude", "✌\ufe0f", "ส", "วั", "ส", "ดี"]),
        ("a\x00b\u200bc\ue000", ["a", "b", "c", "\ue000"]),
        ("", []),
        (" \t\u3000\n", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


def test_characters():
    assert words("ab 渡e\u0301.", "characters") == ["a", "b", "渡", "e\u0301", "."]


@given(st.text(max_size=30))
@settings(deadline=None, max_examples=150)
def test_every_visible_character_is_in_exactly_one_word(text):
    # Lone surrogates are invalid in UTF-8.
    text = text.encode("utf-8", "replace").decode("utf-8")
    splits: list[Split] = ["words", "characters"]
    for split in splits:
        covered = [place for first, end in word_bounds(text, split) for place in range(first, end)]
        assert covered == sorted(set(covered))
        for place in set(range(len(text))) - set(covered):
            assert unicodedata.category(text[place])[0] in "ZC"


def test_texts_of_a_batch_are_separate_and_words_are_spelled_out():
    found = split_words(tf.constant(["ab", "", "cd e", "fg"]))
    assert found.words.to_list() == [[b"ab"], [], [b"cd", b"e"], [b"fg"]]
    assert found.firsts.to_list() == [[0], [], [0, 3], [0]]
    assert found.ends.to_list() == [[2], [], [2, 4], [2]]
    assert split_words(tf.constant([], tf.string)).words.to_list() == []


@given(st.lists(st.integers(0, 4), max_size=8))
def test_each_value_has_its_row(lengths):
    splits = tf.constant(np.concatenate([[0], np.cumsum(lengths)]), tf.int64)
    np.testing.assert_array_equal(rows_of_values(splits), np.repeat(np.arange(len(lengths)), lengths))


@pytest.mark.parametrize("split", [spell_words, lambda texts: split_words(texts).ends.flat_values])
def test_one_long_text_does_not_pad_all_texts(split):
    # Padded to the longest, the texts would take 160 GB.
    texts = tf.constant([b"word"] * 20_000 + [b"a" * 1_000_000])
    found = split(texts)
    assert found.shape[0] == 20_001

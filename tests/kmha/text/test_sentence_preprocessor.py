"""Features of sentences."""

import numpy as np
import pytest
import tensorflow as tf

from kmha.errors import InputError
from kmha.features import SPELLING_LENGTH
from kmha.text.ragged import Ragged
from kmha.text.sentence_preprocessor import SentencePreprocessor, spell_words
from tests.bundles import EDGE_CASES, preprocessor


def features_of(sentences, **options):
    texts = SentencePreprocessor(preprocessor(max_length=12), **options)
    ragged = tf.ragged.constant(sentences, tf.string, ragged_rank=1)
    return texts, texts.pad(texts.encode(ragged))


def test_each_word_starts_where_its_first_token_is():
    texts, features = features_of([["old", "harbour", "bread"], ["x"]])
    part = texts.part
    for row, sentence in enumerate((["old", "harbour", "bread"], ["x"])):
        pieces = [part.tokenize(tf.constant([word])).to_list()[0] for word in sentence]
        ids = features["token_ids"][row].numpy().tolist()
        starts = features["word_starts"][row].numpy().tolist()
        for piece, start in zip(pieces, starts, strict=False):
            assert ids[start : start + len(piece)] == piece
        assert starts[len(sentence) :] == [0] * (len(starts) - len(sentence))
    assert features["word_mask"].numpy().tolist() == [[1, 1, 1], [1, 0, 0]]
    assert all(value.dtype == tf.int32 for value in features.values())


def test_a_word_without_tokens_is_one_unknown_token():
    texts, features = features_of([["\u200b", " ", "old"]])
    assert features["token_ids"][0, 1:3].numpy().tolist() == [texts.unknown_id] * 2
    assert features["word_starts"].numpy().tolist() == [[1, 2, 3]]


def test_edge_case_words_and_empty_sentences_have_features():
    _, features = features_of([[], *([text] for text in EDGE_CASES)], characters=True)
    assert features["word_mask"].numpy().sum() == len(EDGE_CASES)
    assert features["character_ids"].shape[2] == SPELLING_LENGTH
    nothing = SentencePreprocessor(preprocessor(max_length=12), characters=True)
    empty = nothing.pad(nothing.encode(Ragged.from_row_splits(tf.constant([], tf.string), [0, 0])))
    assert {name: value.shape.as_list()[:2] for name, value in empty.items()} == {
        "token_ids": [1, 2],
        "padding_mask": [1, 2],
        "segment_ids": [1, 2],
        "word_starts": [1, 1],
        "word_mask": [1, 1],
        "character_ids": [1, 1],
    }


def test_spellings_have_both_ends_of_a_long_word():
    long = "".join(chr(ord("a") + i % 26) for i in range(50))
    found = spell_words(tf.constant(["ab", long, "", "é"])).numpy()
    assert found.shape == (4, SPELLING_LENGTH)
    assert found[0].tolist() == [ord("a") + 1, ord("b") + 1] + [0] * 18
    assert found[1].tolist() == [ord(c) + 1 for c in long[:10] + long[-10:]]
    assert not found[2].any() and np.count_nonzero(found[3]) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [({"split": "lines"}, "split must be one of words, characters, got 'lines'")],
)
def test_wrong_settings_are_rejected(options, words):
    with pytest.raises(InputError, match=words):
        SentencePreprocessor(preprocessor(), **options)
    with pytest.raises(InputError, match="max_length must be at least 8 for sentences, got 5"):
        SentencePreprocessor(preprocessor(max_length=5))

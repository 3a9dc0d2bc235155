"""Features of sentences."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.features import SPELLING_LENGTH
from kmha.text.sentence_preprocessor import SentencePreprocessor, max_word_tokens, spell_words, split_windows
from kmha.text.words import Ragged
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


START, END = 101, 102


@functools.cache
def in_graph(tokens: int):
    """`split_windows` as a graph of flat tokens, words' sizes and sentences' splits, for a number of tokens."""

    def split(flat, sizes, splits):
        pieces = Ragged.from_row_lengths(flat, sizes)
        return split_windows(pieces, splits, tokens, START, END)

    types = (tf.int32, tf.int64, tf.int64)
    return tf.function(
        split, input_signature=[tf.TensorSpec([None], each) for each in types], autograph=False
    )


def windows_of(sentences: list[list[int]], tokens: int):
    """The windows of sentences of words with the passed numbers of tokens; the tokens are numbered."""
    sizes = [size for sentence in sentences for size in sentence]
    flat = np.arange(1000, 1000 + sum(sizes), dtype=np.int32)
    pieces = [part.tolist() for part in np.split(flat, np.cumsum(sizes)[:-1])] if sizes else []
    splits = np.cumsum([0] + [len(sentence) for sentence in sentences])
    return pieces, in_graph(tokens)(flat, np.array(sizes, np.int64), splits)


@st.composite
def cases(draw):
    tokens = draw(st.integers(2, 12))
    sentence = st.lists(st.integers(1, max_word_tokens(tokens)), max_size=40)
    return draw(st.lists(sentence, min_size=1, max_size=4)), tokens


@given(cases())
@settings(deadline=None, max_examples=150)
def test_each_word_is_tagged_once_and_complete_at_its_start(case):
    sentences, tokens = case
    pieces, windows = windows_of(sentences, tokens)
    sentence_of = [s for s, sentence in enumerate(sentences) for _ in sentence]
    tagged = []
    rows = zip(
        windows.sequences.to_list(),
        windows.words.to_list(),
        windows.starts.to_list(),
        windows.counts.numpy(),
        windows.sentences.numpy(),
        strict=True,
    )
    for sequence, words, starts, count, sentence in rows:
        assert (sequence[0], sequence[-1]) == (START, END) and len(sequence) <= tokens + 2
        assert all(sentence_of[word] == sentence for word in words)
        assert len(set(words)) == len(words) and words[:count] == sorted(words[:count])
        for word, start in zip(words, starts, strict=True):
            assert sequence[start : start + len(pieces[word])] == pieces[word]
        # A window contains only words.
        assert sorted(sequence[1:-1]) == sorted(token for word in words for token in pieces[word])
        tagged += words[:count]
    assert tagged == list(range(len(pieces)))
    assert sorted(set(windows.sentences.numpy().tolist())) == list(range(len(sentences)))


@given(cases())
@settings(deadline=None, max_examples=50)
def test_a_short_sentence_has_one_window_independent_of_other_sentences(case):
    sentences, tokens = case
    _, together = windows_of(sentences, tokens)
    numbers = together.sentences.numpy()
    for index, sentence in enumerate(sentences):
        if sum(sentence) <= tokens:
            assert (numbers == index).sum() == 1
        _, alone = windows_of([sentence], tokens)
        mine = np.flatnonzero(numbers == index)
        assert alone.counts.numpy().tolist() == together.counts.numpy()[mine].tolist()
        assert alone.starts.to_list() == [together.starts[i].numpy().tolist() for i in mine]


def test_middle_words_of_a_long_sentence_have_a_quarter_of_a_window_on_each_side():
    _, windows = windows_of([[1] * 500], 40)
    for window in range(1, windows.counts.shape[0] - 1):
        starts = windows.starts[window].numpy()[: windows.counts[window]]
        assert starts.min() >= 10 and starts.max() <= 31

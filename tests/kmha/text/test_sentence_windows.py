"""Long sentences in windows: every word is tagged once, whole, and with words around it."""

import functools

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kmha.text.ragged import Ragged
from kmha.text.sentence_windows import max_word_tokens, split_windows

START, END = 101, 102


@functools.cache
def in_graph(tokens: int):
    """`cut_windows` of so many tokens as one function of flat tokens, words' sizes and sentences' splits."""

    def cut(flat, sizes, splits):
        pieces = Ragged.from_row_lengths(flat, sizes)
        return split_windows(pieces, splits, tokens, START, END)

    types = (tf.int32, tf.int64, tf.int64)
    return tf.function(cut, input_signature=[tf.TensorSpec([None], each) for each in types], autograph=False)


def windows_of(sentences: list[list[int]], tokens: int):
    """The windows of sentences given as the number of tokens of each word, whose tokens are numbered."""
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
def test_each_word_is_tagged_once_and_stands_whole_where_it_says(case):
    sentences, tokens = case
    pieces, cut = windows_of(sentences, tokens)
    homes = [s for s, sentence in enumerate(sentences) for _ in sentence]
    tagged = []
    rows = zip(
        cut.sequences.to_list(),
        cut.words.to_list(),
        cut.starts.to_list(),
        cut.counts.numpy(),
        cut.sentences.numpy(),
        strict=True,
    )
    for sequence, words, starts, count, sentence in rows:
        assert (sequence[0], sequence[-1]) == (START, END) and len(sequence) <= tokens + 2
        assert all(homes[word] == sentence for word in words)
        assert len(set(words)) == len(words) and words[:count] == sorted(words[:count])
        for word, start in zip(words, starts, strict=True):
            assert sequence[start : start + len(pieces[word])] == pieces[word]
        # A window contains only words.
        assert sorted(sequence[1:-1]) == sorted(token for word in words for token in pieces[word])
        tagged += words[:count]
    assert tagged == list(range(len(pieces)))
    assert sorted(set(cut.sentences.numpy().tolist())) == list(range(len(sentences)))


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


def test_words_in_the_middle_of_a_long_sentence_have_a_quarter_of_a_window_on_each_side():
    _, cut = windows_of([[1] * 500], 40)
    for window in range(1, cut.counts.shape[0] - 1):
        starts = cut.starts[window].numpy()[: cut.counts[window]]
        assert starts.min() >= 10 and starts.max() <= 31

"""Batches of sentences: every word with its tag, in one window or in several."""

import numpy as np
import pytest

from kmha.errors import InputError
from kmha.features import MAX_WORDS
from kmha.text.sentence_preprocessor import SentencePreprocessor
from tests.bundles import preprocessor
from tests.tagged_sentences import tagged_sentences
from training.data.sentence_batches import NO_TAG, SentenceSource, tokenize_sentences
from training.io.examples import Example, write_examples
from training.tasks.tag.rows import read_sentences

SENTENCES = tagged_sentences(20, seed=0)
SENTENCES.append(([word for words, _ in SENTENCES[:9] for word in words], ["O"] * 79))


def examples_of(folder, sentences):
    return write_examples(
        (
            Example(("\n".join(words),), tuple(["O"] * len(words)), f"a:{n}", ordered=True)
            for n, (words, _) in enumerate(sentences)
        ),
        folder,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sentences")
    texts = SentencePreprocessor(preprocessor(max_length=64), characters=True)
    SENTENCES[-1] = (SENTENCES[-1][0], ["O"] * len(SENTENCES[-1][0]))
    examples = examples_of(folder / "rows", SENTENCES)
    return texts, examples, *tokenize_sentences(examples, texts, folder / "tokens")


def source_of(made, rows, **options) -> tuple[SentenceSource, np.ndarray]:
    """The rows with their words numbered in place of tags."""
    texts, examples, tokens, _ = made
    words = sum(len(sentence) for sentence in read_sentences(examples, rows))
    targets = np.arange(words, dtype=np.int32)
    weights = np.ones(len(rows), np.float32)
    return SentenceSource(tokens, rows, targets, weights, texts.padding_id, **options), targets


def test_sentences_words_and_windows_are_counted(made):
    *_, counts = made
    assert counts.rows == len(SENTENCES) and counts.words == sum(len(words) for words, _ in SENTENCES)
    assert 1 <= counts.windowed_rows < len(SENTENCES)
    assert counts.describe("train").startswith("train sentences: ")


@pytest.mark.parametrize("full_shapes", [False, True])
def test_every_word_is_trained_on_once_at_its_position(made, full_shapes):
    texts, examples, tokens, _ = made
    rows = np.array([20, 3, 7, 1])
    source, targets = source_of(made, rows, full_shapes=full_shapes, divisor=2)
    assert source.word_counts.tolist() == [len(words) for words in read_sentences(examples, rows)]
    flat = [word for words in read_sentences(examples, rows) for word in words]
    seen = []
    plans = source.plans(source.buckets([], 3), 200, 4, np.random.default_rng(0))
    for plan, batch in zip(plans, source.dataset(plans).as_numpy_iterator(), strict=True):
        for name, value in source.batch(plan)["features"].items():
            np.testing.assert_array_equal(batch["features"][name], value)
        features = batch["features"]
        assert len(batch["weights"]) % 2 == 0
        trained_on = batch["targets"] != NO_TAG
        np.testing.assert_array_equal(trained_on, features["word_mask"] == 1)
        np.testing.assert_array_equal(batch["weights"], trained_on.sum(axis=1))
        for row, place in np.argwhere(trained_on):
            word = flat[batch["targets"][row, place]]
            seen.append(batch["targets"][row, place])
            start = features["word_starts"][row, place]
            (piece, *_) = texts.part.tokenize([word]).to_list()[0] or [texts.unknown_id]
            assert features["token_ids"][row, start] == piece
            characters = [1 + ord(c) for c in word][:20]
            assert features["character_ids"][row, place, : len(characters)].tolist() == characters
    assert sorted(seen) == targets.tolist()


def test_a_sentence_of_too_many_words_is_refused_with_its_line(tmp_path):
    texts = SentencePreprocessor(preprocessor(max_length=16))
    examples = examples_of(tmp_path / "rows", [(["a"], None), (["a"] * (MAX_WORDS + 1), None)])
    with pytest.raises(InputError, match="a:1: expected a sentence of at most 2,048 words, got 2,049"):
        tokenize_sentences(examples, texts, tmp_path / "tokens")

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.text.preprocessor import PairPreprocessor, Preprocessor
from tests.bundles import SENTENCES, make_tagger_bundle
from tests.command_runs import news_rows
from tests.pair_rows import paraphrase_rows
from training.config.config import TextSection
from training.data.inputs import JoinedRaggedStore, joined_tokens, make_inputs
from training.data.sentence_batches import SentenceSource, tokenize_sentences
from training.io.examples import Example, Subset, TrainingSet, write_examples
from training.io.ragged_store import RaggedStore, RaggedStoreWriter
from training.tasks.classify import ClassifyTask
from training.tasks.match.task import MatchTask

WORDS = MatchTask(granularities=("word",))
TEXT = TextSection(max_length=16, vocabulary_size=120, min_frequency=1)
PAIRS = [(a, b) for a, b, _ in paraphrase_rows(20, seed=0)] + [("", "zebra quilt")]


@pytest.fixture
def parts(tmp_path) -> dict[str, Subset]:
    """Training and validation rows of one set, and test rows of another set."""
    examples = write_examples((Example(pair, ("1",), "") for pair in PAIRS), tmp_path / "a", num_texts=2)
    test = write_examples([Example(PAIRS[0], ("1",), "")], tmp_path / "b", num_texts=2)
    return {
        "train": Subset(examples, np.arange(16)),
        "validation": Subset(examples, np.arange(16, 21)),
        "test": Subset(test, np.arange(1)),
    }


def test_pairs_are_tokenized_in_every_granularity(tmp_path, parts):
    inputs = make_inputs(TEXT, parts, tmp_path, MatchTask(granularities=("char", "word")))
    assert isinstance(inputs.preprocessor, PairPreprocessor)
    assert inputs.preprocessor.granularities == ("char", "word")
    names = [given.ids for given in inputs.preprocessor.inputs]
    assert names == ["char_token_ids_a", "char_token_ids_b", "word_token_ids_a", "word_token_ids_b"]
    # Parts of one set share their token ids, which are counted once.
    assert inputs.tokens["train"] is inputs.tokens["validation"]
    shown = ["text_a (char)", "text_b (char)", "text_a (word)", "text_b (word)"]
    assert list(inputs.counts) == [f"{part} {name}" for part in ("train", "test") for name in shown]
    assert [ragged_store.read(0).tolist() for ragged_store in inputs.tokens["test"]] == [
        ragged_store.read(0).tolist() for ragged_store in inputs.tokens["train"]
    ]
    assert inputs.counts["train text_a (word)"].empty_rows == 1


def test_vocabularies_come_from_both_texts_of_training_rows_only(tmp_path, parts):
    inputs = make_inputs(TEXT, parts, tmp_path, WORDS)
    (part,) = inputs.preprocessor.parts
    words = {word for pair in PAIRS[:16] for text in pair for word in text.split()}
    assert set(part.vocabulary.tokens[5:]) == words
    assert "zebra" not in part.vocabulary.tokens


def test_single_texts_have_a_preprocessor_of_their_own(tmp_path):
    examples = write_examples((Example((t,), (y,), "") for t, y in news_rows(9, seed=0)), tmp_path / "a")
    parts = {"train": Subset(examples, np.arange(9))}
    inputs = make_inputs(dataclasses.replace(TEXT, tokenization="word"), parts, tmp_path, ClassifyTask())
    assert isinstance(inputs.preprocessor, Preprocessor) and list(inputs.counts) == ["train"]
    source = inputs.evaluated("train", np.arange(9))
    assert source.rows.tolist() == list(range(9)) and source.weights.tolist() == [1] * 9
    assert inputs.counts["train"].describe("train").startswith("train rows: ")


def test_evaluated_pairs_have_both_texts_of_the_same_row(tmp_path, parts):
    inputs = make_inputs(TEXT, parts, tmp_path, WORDS)
    source = inputs.evaluated("validation", np.zeros((5, 2), np.float32))
    assert source.rows.tolist() == [[row, row] for row in range(16, 21)]
    assert len(source.text_lengths) == 10 and source.lengths.sum() == source.text_lengths.sum()
    training_set = TrainingSet(np.array([[0, 3]]), np.zeros((1, 2)), np.ones(1), np.array([7]))
    assert inputs.source("train", training_set, divisor=2).batch(
        inputs.source("train", training_set).plans([(16, 16)], 64, 8, None)[0]
    )["weights"].tolist() == [1, 0]


rows_of_numbers = st.lists(st.lists(st.integers(-99, 99), max_size=4), max_size=5)


def ragged_store_of(path: Path, rows: list[list[int]]) -> RaggedStore:
    with RaggedStoreWriter(path, np.int32) as writer:
        for row in rows:
            writer.append(np.array(row, np.int32))
    return writer.close()


@given(first=rows_of_numbers, second=rows_of_numbers, data=st.data())
def test_two_ragged_stores_are_read_as_one(tmp_path_factory, first, second, data):
    folder = tmp_path_factory.mktemp("spools")
    joined = JoinedRaggedStore(ragged_store_of(folder / "a", first), ragged_store_of(folder / "b", second))
    rows = [*first, *second]
    assert len(joined) == len(rows) and joined.lengths.tolist() == [len(row) for row in rows]
    requested = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if rows else []
    flat, lengths = joined.gather(np.array(requested, int))
    assert flat.tolist() == [number for row in requested for number in rows[row]]
    assert lengths.tolist() == [len(rows[row]) for row in requested]
    for row in requested[:1]:
        assert joined.read(row).tolist() == rows[row]


def test_sentences_of_two_sets_are_batched_as_those_of_one(tmp_path):
    preprocessor = make_tagger_bundle(characters=True).preprocessor
    sentences = ["\n".join(sentence.split()) for sentence in SENTENCES]

    def tokens(name: str, texts: list[str]):
        examples = write_examples(
            (Example((text,), ("O",) * (text.count("\n") + 1), "", ordered=True) for text in texts),
            tmp_path / name,
        )
        return tokenize_sentences(examples, preprocessor, tmp_path / f"{name}-tokens")[0]

    whole = tokens("all", sentences)
    joined = joined_tokens(tokens("first", sentences[:2]), tokens("rest", sentences[2:]))
    rows, words = np.arange(len(sentences)), sum(text.count("\n") + 1 for text in sentences)
    targets, weights = np.arange(words, dtype=np.int32), np.ones(len(rows), np.float32)
    batches = []
    for each in (whole, joined):
        source = SentenceSource(each, rows, targets, weights, preprocessor.padding_id)
        (plan,) = source.plans([99], 10_000, 100, None)
        batches.append(source.batch(plan))
    assert len(whole.counts) > len(sentences)
    for name, values in batches[0]["features"].items():
        np.testing.assert_array_equal(values, batches[1]["features"][name])
    np.testing.assert_array_equal(batches[0]["targets"], batches[1]["targets"])

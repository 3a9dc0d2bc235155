from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.bundles import SENTENCES, make_tagger_bundle
from training.data.inputs import JoinedRaggedStore, joined_tokens
from training.data.sentence_batches import SentenceSource, cut_sentences
from training.io.example_store import Example, write_examples
from training.io.ragged_store import RaggedStore, RaggedStoreWriter

rows_of_numbers = st.lists(st.lists(st.integers(-99, 99), max_size=4), max_size=5)


def ragged_store_of(path: Path, rows: list[list[int]]) -> RaggedStore:
    with RaggedStoreWriter(path, np.int32) as writer:
        for row in rows:
            writer.append(np.array(row, np.int32))
    return writer.close()


@given(first=rows_of_numbers, second=rows_of_numbers, data=st.data())
def test_two_spools_read_as_one(tmp_path_factory, first, second, data):
    folder = tmp_path_factory.mktemp("spools")
    joined = JoinedRaggedStore(ragged_store_of(folder / "a", first), ragged_store_of(folder / "b", second))
    rows = [*first, *second]
    assert len(joined) == len(rows) and joined.lengths.tolist() == [len(row) for row in rows]
    asked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6)) if rows else []
    flat, lengths = joined.gather(np.array(asked, int))
    assert flat.tolist() == [number for row in asked for number in rows[row]]
    assert lengths.tolist() == [len(rows[row]) for row in asked]
    for row in asked[:1]:
        assert joined.read(row).tolist() == rows[row]


def test_sentences_of_two_sets_are_batched_as_those_of_one(tmp_path):
    preprocessor = make_tagger_bundle(characters=True).preprocessor
    sentences = ["\n".join(sentence.split()) for sentence in SENTENCES]

    def tokens(name: str, texts: list[str]):
        examples = write_examples(
            (Example((text,), ("O",) * (text.count("\n") + 1), "", ordered=True) for text in texts),
            tmp_path / name,
        )
        return cut_sentences(examples, preprocessor, tmp_path / f"{name}-tokens")[0]

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

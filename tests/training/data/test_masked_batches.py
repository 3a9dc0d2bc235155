import dataclasses
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.text.preprocessor import Preprocessor, split_lengths
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from training.config.config import TrainSection
from training.data import masked_batches
from training.data.masked_batches import MaskedSource, laid_out, packed_rows, split_into_pieces
from training.engine.loop import epoch_plans
from training.io.examples import Example, Masking, write_examples

SETTINGS = TrainSection(batch_tokens=64, batch_rows=4)
VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *"abcdefghij"])


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """Thirty texts, some longer than a row, one without a token."""
    folder = tmp_path_factory.mktemp("texts")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefghij"), rng.integers(1, 40))) for _ in range(29)] + ["\u200b"]
    examples = write_examples((Example((text,), (), "a") for text in texts), folder / "rows")
    return split_into_pieces(examples, Preprocessor(VOCABULARY, max_length=16), folder / "tokens")[0]


def source_of(tokens, packed=True, rows=30, **options) -> MaskedSource:
    return MaskedSource(tokens, np.arange(rows), Masking(packed=packed), **options)


def whole_ids(batch) -> np.ndarray:
    """The token ids of a batch with the masked tokens restored."""
    ids, positions = batch["features"]["token_ids"].copy(), batch["features"]["mask_positions"]
    rows, slots = np.nonzero(batch["targets"] >= 0)
    ids[rows, positions[rows, slots]] = batch["targets"][rows, slots]
    return ids


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("options", [{}, {"full_shapes": True}, {"divisor": 4}])
def test_each_token_occurs_once_per_epoch(tokens, packed, options):
    source = source_of(tokens, packed, **options)
    seen = Counter()
    for plan in epoch_plans(source, source.buckets([], 2), SETTINGS, 3):
        batch = source.batch(plan)
        ids = whole_ids(batch)
        seen.update(ids[ids >= len(SPECIAL_TOKENS)].tolist())
        there = batch["features"]["padding_mask"] > 0
        assert (ids[~there] == 0).all()
        assert (there[: len(plan.rows), 0]).all() and not there[len(plan.rows) :].any()
        assert batch["weights"].tolist() == (batch["targets"] >= 0).sum(1).tolist()
        assert (batch["weights"][: len(plan.rows)] > 0).all()
    counts = source.token_counts()
    assert seen == {token: count for token, count in enumerate(counts.tolist()) if count}
    assert counts.sum() == tokens.pieces.lengths.sum()


def test_packed_rows_are_fewer_and_fuller(tokens):
    packed, alone = source_of(tokens), source_of(tokens, packed=False)
    assert len(packed.lengths) < len(alone.lengths) == len(tokens.pieces)
    assert packed.lengths.mean() > alone.lengths.mean()
    assert max(packed.lengths.max(), alone.lengths.max()) <= 16


def test_masks_differ_between_epochs_and_are_reproducible(tokens):
    source = source_of(tokens)
    lengths = source.buckets([], 2)
    batches = {
        (epoch, seed): [
            source.batch(plan)
            for plan in epoch_plans(source, lengths, dataclasses.replace(SETTINGS, seed=seed), epoch)
        ]
        for epoch, seed in ((0, 0), (1, 0), (0, 1))
    }
    again = [source.batch(plan) for plan in epoch_plans(source_of(tokens), lengths, SETTINGS, 0)]
    tf.nest.map_structure(np.testing.assert_array_equal, batches[0, 0], again)
    hidden = [
        Counter(row.tobytes() for batch in each for row in batch["features"]["token_ids"])
        for each in batches.values()
    ]
    assert all(len(each & hidden[0]) < 0.5 * len(hidden[0]) for each in hidden[1:])
    assert len({len(each) for each in batches.values()}) == 1


@pytest.mark.parametrize("packed", [True, False])
def test_the_dataset_equals_the_batches(tokens, packed):
    source = source_of(tokens, packed, divisor=2)
    plans = epoch_plans(source, source.buckets([], 3), SETTINGS, 0)
    for plan, batch in zip(plans, source.dataset(plans), strict=True):
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_array_equal(a.numpy(), b), batch, source.batch(plan)
        )


def test_masking_is_traced_once_for_all_epochs(tokens, monkeypatch):
    traces = []
    masked = MaskedSource._mask
    monkeypatch.setattr(MaskedSource, "_mask", lambda self, whole: traces.append(1) or masked(self, whole))
    source = source_of(tokens)
    for epoch in range(3):
        assert len(list(source.dataset(epoch_plans(source, source.buckets([], 2), SETTINGS, epoch)))) > 1
    assert len(traces) == 1


def test_masks_of_evaluated_rows_do_not_depend_on_the_batches(tokens):
    source = source_of(tokens)

    def found(lengths, batch_tokens, rows):
        masked = {}
        for plan in source.plans(lengths, batch_tokens, rows, rng=None):
            for row, targets in zip(plan.rows.tolist(), source.batch(plan)["targets"].tolist(), strict=True):
                masked[row] = [token for token in targets if token >= 0]
        return masked

    assert found([16], 64, 4) == found([8, 16], 999, 7)


def test_texts_without_a_token_are_refused(tokens):
    with pytest.raises(InputError, match="expected a text with a token, got none"):
        MaskedSource(tokens, np.array([29]), Masking())


def test_ngrams_come_from_unmasked_texts(tokens):
    source = source_of(tokens)
    rows = [row[row > 0].tolist() for batch in source.different_ids() for row in batch]
    assert len(rows) == len(tokens.pieces)
    assert all(row[0] == 2 and row[-1] == 3 and not set(row[1:-1]) & set(range(5)) for row in rows)
    assert source.text_lengths.tolist() == [len(row) for row in rows]


PAD, START, END = 0, 2, 3
lengths_of_texts = st.lists(st.integers(0, 30), max_size=30)


@given(lengths=lengths_of_texts, most=st.integers(1, 9))
def test_pieces_have_all_tokens(lengths, most):
    pieces, counts = split_lengths(np.array(lengths), most)
    assert counts.tolist() == [-(-n // most) for n in lengths]
    texts = np.split(pieces, np.cumsum(counts)[:-1]) if lengths else []
    for length, text in zip(lengths, texts, strict=True):
        assert text.sum() == length
        assert (text[:-1] == most).all() and (text > 0).all() and (text <= most).all()


@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=40), most=st.integers(10, 30))
def test_rows_have_whole_pieces_and_no_space_for_the_next(lengths, most):
    firsts = packed_rows(np.array(lengths), most)
    assert firsts[0] == 0 and firsts[-1] == len(lengths)
    rows = [lengths[a:b] for a, b in zip(firsts, firsts[1:], strict=False)]
    sizes = [1 + sum(n + 1 for n in row) for row in rows]
    assert all(row for row in rows) and max(sizes) <= most
    for size, after in zip(sizes, rows[1:], strict=False):
        assert size + after[0] + 1 > most


@given(
    rows=st.lists(
        st.lists(st.lists(st.integers(5, 99), min_size=1, max_size=4), min_size=1, max_size=3),
        min_size=1,
        max_size=4,
    ),
    more=st.integers(0, 3),
    filler=st.integers(0, 2),
)
def test_pieces_are_between_special_tokens(rows, more, filler):
    expected = [[START, *sum(([*piece, END] for piece in row), [])] for row in rows]
    length = max(map(len, expected)) + more
    pieces = sum(rows, [])
    ids, mask = laid_out(
        np.array(sum(pieces, []), np.int32),
        np.array([len(piece) for piece in pieces], np.int32),
        np.array([len(row) for row in rows]),
        (len(rows) + filler, length),
        (PAD, START, END),
    )
    assert ids.dtype == mask.dtype == np.int32
    for row, piece_tokens in enumerate([*expected, *([] for _ in range(filler))]):
        assert ids[row].tolist() == piece_tokens + [PAD] * (length - len(piece_tokens))
        assert mask[row].tolist() == [1] * len(piece_tokens) + [0] * (length - len(piece_tokens))


@pytest.mark.parametrize("chunk_bytes", [1, 50, 1 << 22])
def test_texts_of_any_length_are_split_without_loss(tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr(masked_batches, "CHUNK_BYTES", chunk_bytes)
    texts = ["a b c", "a", "?", "b " * 3000, "c b a d c b a"]
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *"abc"])
    preprocessor = Preprocessor(vocabulary, "word", max_length=8)
    examples = write_examples((Example((text,), (), "a") for text in texts), tmp_path / "rows")
    made, met = split_into_pieces(examples, preprocessor, tmp_path / "tokens")
    unknown = vocabulary.id_of("[UNK]")
    for row, text in enumerate(texts):
        flat, lengths = made.pieces.gather(made.of_rows(np.array([row])))
        assert flat.tolist() == [vocabulary.ids.get(word, unknown) for word in text.split()]
        assert (lengths <= 6).all()
    assert (met.rows, met.tokens, met.pieces, met.cut_rows, met.unknown_tokens) == (5, 3012, 505, 2, 2)
    assert "3,012" not in met.describe("train") and "2 split into pieces" in met.describe("train")


def test_a_text_without_a_token_has_no_piece(tmp_path):
    preprocessor = Preprocessor(Vocabulary([*SPECIAL_TOKENS, "a"]), max_length=8)
    examples = write_examples(
        (Example((text,), (), "a") for text in ("\u200b", "a", "\x00")), tmp_path / "rows"
    )
    made, met = split_into_pieces(examples, preprocessor, tmp_path / "tokens")
    assert made.first_pieces.tolist() == [0, 0, 1, 1] and met.empty_rows == 2
    assert made.of_rows(np.array([0, 1, 2])).tolist() == [0]

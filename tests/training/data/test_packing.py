import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.text.preprocessor import Preprocessor, split_lengths
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from training.data import packing
from training.data.packing import cut_pieces, laid_out, packed_rows
from training.io.example_store import Example, write_examples

PAD, START, END = 0, 2, 3
lengths_of_texts = st.lists(st.integers(0, 30), max_size=30)


@given(lengths=lengths_of_texts, most=st.integers(1, 9))
def test_pieces_lose_nothing(lengths, most):
    pieces, counts = split_lengths(np.array(lengths), most)
    assert counts.tolist() == [-(-n // most) for n in lengths]
    texts = np.split(pieces, np.cumsum(counts)[:-1]) if lengths else []
    for length, text in zip(lengths, texts, strict=True):
        assert text.sum() == length
        assert (text[:-1] == most).all() and (text > 0).all() and (text <= most).all()


@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=40), most=st.integers(10, 30))
def test_rows_hold_whole_pieces_and_no_room_for_the_next(lengths, most):
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
def test_pieces_stand_between_special_tokens(rows, more, filler):
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
    for row, wanted in enumerate([*expected, *([] for _ in range(filler))]):
        assert ids[row].tolist() == wanted + [PAD] * (length - len(wanted))
        assert mask[row].tolist() == [1] * len(wanted) + [0] * (length - len(wanted))


@pytest.mark.parametrize("chunk_bytes", [1, 50, 1 << 22])
def test_texts_of_any_length_are_cut_whole(tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr(packing, "CHUNK_BYTES", chunk_bytes)
    texts = ["a b c", "a", "?", "b " * 3000, "c b a d c b a"]
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *"abc"])
    preprocessor = Preprocessor(vocabulary, "word", max_length=8)
    examples = write_examples((Example((text,), (), "a") for text in texts), tmp_path / "rows")
    made, met = cut_pieces(examples, preprocessor, tmp_path / "tokens")
    unknown = vocabulary.id_of("[UNK]")
    for row, text in enumerate(texts):
        flat, lengths = made.pieces.gather(made.of_rows(np.array([row])))
        assert flat.tolist() == [vocabulary.ids.get(word, unknown) for word in text.split()]
        assert (lengths <= 6).all()
    assert (met.rows, met.tokens, met.pieces, met.cut_rows, met.unknown_tokens) == (5, 3012, 505, 2, 2)
    assert "3,012" not in met.describe("train") and "2 cut into pieces" in met.describe("train")


def test_a_text_without_a_token_has_no_piece(tmp_path):
    preprocessor = Preprocessor(Vocabulary([*SPECIAL_TOKENS, "a"]), max_length=8)
    examples = write_examples(
        (Example((text,), (), "a") for text in ("\u200b", "a", "\x00")), tmp_path / "rows"
    )
    made, met = cut_pieces(examples, preprocessor, tmp_path / "tokens")
    assert made.first_pieces.tolist() == [0, 0, 1, 1] and met.empty_rows == 2
    assert made.of_rows(np.array([0, 1, 2])).tolist() == [0]

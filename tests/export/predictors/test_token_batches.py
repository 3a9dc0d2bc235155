from typing import Any

import numpy as np
import pytest

from export.device.files import tokenizer_json, tokenizer_values
from export.device.tokenizer import PairTokenizer, Tokenizer
from export.predictors.token_batches import (
    encode_row,
    ids_by_row,
    input_names,
    length_batches,
    model_inputs,
    read_tokenizer,
)
from kmha.errors import InputError
from tests.bundles import PAIRS, TEXTS, one_label_bundle, pair_bundle


def rows_of(*lengths):
    return [[[1] * each for each in (row if isinstance(row, tuple) else (row,))] for row in lengths]


def test_every_row_is_in_one_batch_with_rows_of_similar_length():
    generator = np.random.default_rng(3)
    rows = rows_of(*map(tuple, generator.integers(2, 128, (1000, 2)).tolist()))
    found = list(length_batches(rows))
    assert sorted(np.concatenate(found).tolist()) == list(range(1000))
    computed = sum(len(each) * max(len(rows[row][side]) for row in each) for each in found for side in (0, 1))
    real = sum(len(ids) for row in rows for ids in row)
    assert computed < 1.35 * real
    assert all(len(each) <= 64 for each in found)


def test_single_texts_come_shortest_first_and_long_ones_alone():
    rows = rows_of(5, 8000, 2, 9, 3, 8000)
    assert [each.tolist() for each in length_batches(rows)] == [[2, 4, 0, 3], [1], [5]]
    assert list(length_batches([])) == []


def test_inputs_by_name():
    text, pair = (
        Tokenizer(tokenizer_values(one_label_bundle())),
        PairTokenizer(tokenizer_values(pair_bundle())),
    )
    assert input_names(text) == [("token_ids", "padding_mask")]
    rows = [encode_row(text, each) for each in TEXTS]
    assert ids_by_row(rows) == [text.encode(each) for each in TEXTS]
    longest = max(len(row[0]) for row in rows)
    assert model_inputs(text, rows)["token_ids"].shape == (len(TEXTS), longest)
    rows = [encode_row(pair, each, 8) for each in PAIRS]
    inputs = model_inputs(pair, rows, [8, 9])
    shapes = {name: (values.dtype, values.shape[1]) for name, values in inputs.items()}
    assert shapes == {
        f"{name}_{side}": (np.int32, length)
        for side, length in (("a", 8), ("b", 9))
        for name in ("token_ids", "padding_mask")
    }
    assert ids_by_row(rows) == rows


@pytest.mark.parametrize(
    ("make", "row", "message"),
    [
        (one_label_bundle, ("a", "b"), "expected a text a row, got 2 texts"),
        (pair_bundle, "ab", "expected a pair of texts a row, got one text"),
        (pair_bundle, ("a", "b", "c"), "expected a pair of texts a row, got 3 texts"),
    ],
)
def test_rows_of_another_kind_are_rejected(tmp_path, make, row, message):
    (tmp_path / "m.tokenizer.json").write_bytes(tokenizer_json(make()))
    with pytest.raises(InputError, match=message):
        tokenizer: Any = read_tokenizer(tmp_path / "m.onnx")
        encode_row(tokenizer, row)

import base64
import json

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from export.batch.rows import (
    BATCH_BYTES,
    LONGEST_BYTES,
    OUTPUT_FIELDS,
    batches_by_length,
    check_signature,
    dead_letter,
    is_blank,
    output_line,
    parse_row,
    predict,
    without_mark,
)
from export.savedmodel.predictor import load_savedmodel
from export.savedmodel.write import write_savedmodel
from kmha.errors import InputError
from tests.bundles import EDGE_CASES, TEXTS, one_label_bundle, several_label_bundle
from tests.stages import with_stages

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(TEXT, inside, max_size=3),
    max_leaves=6,
)
BAD = {
    b"": "expected a JSON object, got Expecting value at position 1",
    b"no json": "Expecting value",
    b'{"text": "a"': "delimiter",
    b'{"text": "a"} {"text": "b"}': "Extra data",
    b'["text"]': "got a list",
    b'"text"': "got a string",
    b"null": "got null",
    b"7": "got a number",
    b"{}": "expected a field 'text', got none",
    b'{"id": 1, "txt": "a"}': "expected a field 'text', got id, txt",
    b'{"text": 7}': "expected a string in 'text', got a number",
    b'{"text": 7.5}': "got a number",
    b'{"text": null}': "got null",
    b'{"text": ["a"]}': "got a list",
    b'{"text": {"a": 1}}': "got an object",
    b'{"text": true}': "got true or false",
    b'{"text": "caf\xe9"}': "expected UTF-8, got byte 0xe9 at position 14 of the line",
    b'\xff\xfe{\x00"\x00': "expected UTF-8, got byte 0xff at position 1",
    b'{"text": "a", "text": "b"}': "the name 'text' twice",
    b'{"text": "a", "more": {"b": 1, "b": 2}}': "the name 'b' twice",
    b'{"text": "a", "id": NaN}': "NaN, which is not JSON",
    b'{"text": "a", "id": -Infinity}': "-Infinity, which is not JSON",
    b'{"text": "a", "id": 1e400}': "1e400, which no float64 holds",
    b'{"text": "a", "id": ' + b"9" * 5000 + b"}": "expected a JSON object",
    b'{"text": "a", "id": ' + b"[" * 200_000 + b"]" * 200_000 + b"}": "expected a JSON object",
    b'{"text": "a\\ud800"}': "half a surrogate pair",
    b'{"text": "a", "\\udfff": 1}': "half a surrogate pair",
    b'{"text": "a", "label": 1, "input_label": 2}': "got both",
}
STRINGS = [*TEXTS, *(text.decode("utf-8", "replace") for text in EDGE_CASES), *TEXTS[::-1]]


@given(TEXT, st.dictionaries(TEXT.filter(lambda name: name != "text"), JSON), st.booleans())
def test_every_field_is_copied(text, fields, keep_text):
    record = {**fields, "text": text}
    found, carried = parse_row(json.dumps(record, ensure_ascii=False).encode() + b"\n", "text", keep_text)
    assert found == text
    expected = record if keep_text else fields
    taken = {name: f"input_{name}" if name in OUTPUT_FIELDS else name for name in expected}
    assert json.loads(carried) == {taken[name]: value for name, value in expected.items()}


@given(st.text(), TEXT)
def test_escapes_are_read_and_half_pairs_rejected(text, name):
    line = json.dumps({name: text}).encode()
    if any("\ud800" <= character <= "\udfff" for character in text):
        with pytest.raises(InputError, match="half a surrogate pair"):
            parse_row(line, name)
    else:
        assert parse_row(line, name)[0] == text


@pytest.mark.parametrize(("line", "reason"), BAD.items(), ids=range(len(BAD)))
def test_bad_rows_have_a_reason_of_one_line(line, reason):
    with pytest.raises(InputError) as error:
        parse_row(line, "text")
    assert reason in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_a_dead_letter_has_the_original_line(line):
    with pytest.raises(InputError) as error:
        parse_row(line, "text")
    letter = json.loads(dead_letter("in.jsonl", 12, str(error.value), line + b"\n").encode())
    raw = letter["raw"].encode() if "raw" in letter else base64.b64decode(letter["raw_base64"])
    assert raw == line
    assert ("raw" in letter) != ("raw_base64" in letter)
    assert (letter["file"], letter["byte"]) == ("in.jsonl", 12)


def test_a_dead_letter_is_one_line_of_utf8_for_any_reason():
    line = dead_letter("in.jsonl", 0, "given \ud800", b'{"a": "\xe2\x80\xa8\r\r\n')
    assert line.encode("utf-8").count(b"\n") == 0
    assert json.loads(line)["reason"] == "given \\ud800"


def test_the_prediction_follows_the_copied_fields():
    _, carried = parse_row('{"id": 7, "text": "né", "label": "a"}'.encode(), "text")
    line = output_line(carried, {"label": "b", "probability": 0.5, "probabilities": {"b": 0.5}})
    assert line == (
        '{"id": 7, "text": "né", "input_label": "a",'
        ' "label": "b", "probability": 0.5, "probabilities": {"b": 0.5}}'
    )


def test_another_text_column():
    assert parse_row(b'{"label": "x", "text": 1}', "label") == ("x", '{"input_label": "x", "text": 1}')


@pytest.mark.parametrize(
    ("line", "byte", "blank"),
    [
        (b"\n", 9, True),
        (b" \t\r\n", 9, True),
        (b"", 0, True),
        (b"\xef\xbb\xbf\n", 0, True),
        (b"\xef\xbb\xbf\n", 9, False),
        (b"{}\n", 0, False),
    ],
)
def test_blank_lines_are_skipped(line, byte, blank):
    assert is_blank(line, byte) is blank


def test_a_byte_order_mark_starts_a_file_only():
    line = b'\xef\xbb\xbf{"text": "a"}'
    assert parse_row(without_mark(line, 0), "text")[0] == "a"
    with pytest.raises(InputError):
        parse_row(without_mark(line, 5), "text")


@pytest.mark.parametrize("make", with_stages([one_label_bundle, several_label_bundle], [one_label_bundle]))
def test_predictions_equal_those_of_the_bundle(make, tmp_path):
    bundle = make()
    found = predict(STRINGS, load_savedmodel(write_savedmodel(bundle, tmp_path)))
    expected = bundle.predict(STRINGS)
    assert [list(prediction) for prediction in found] == [list(prediction) for prediction in expected]
    for name in ("label", "labels"):
        assert [prediction.get(name) for prediction in found] == [
            prediction.get(name) for prediction in expected
        ]
    for mine, reference in zip(found, expected, strict=True):
        assert list(mine["probabilities"]) == list(reference["probabilities"])
        assert mine["probabilities"] == pytest.approx(reference["probabilities"], abs=1e-5)
        assert mine.get("probability") == pytest.approx(reference.get("probability"), abs=1e-5)


def test_no_texts_give_no_predictions():
    assert predict([], lambda texts: pytest.fail("asked for nothing")) == []


@given(st.lists(st.integers(0, 3 * LONGEST_BYTES), max_size=200))
def test_batches_have_every_row_once_and_little_padding(lengths):
    groups = list(batches_by_length(lengths))
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    flat = [lengths[row] for group in groups for row in group]
    assert flat == sorted(flat)
    for group in groups:
        longest = min(max(lengths[row] for row in group), LONGEST_BYTES)
        assert group and (len(group) == 1 or len(group) * longest <= BATCH_BYTES)


def test_another_signature_is_rejected():
    def probabilities_only(texts):
        return {"probabilities": tf.constant(np.ones((len(texts), 2)))}

    with pytest.raises(
        InputError, match="place/1: expected a SavedModel of texts that export.savedmodel wrote"
    ) as error:
        check_signature(probabilities_only, "place/1")
    assert "\n" not in str(error.value)

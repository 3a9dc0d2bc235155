import csv
import gzip
import itertools
import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha import input_files
from kmha.errors import InputError
from training.io import tables as blocks
from training.io.tables import TableFormat, column_names, read_rows


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode("utf-8") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path, required=("text",), optional=()) -> list[tuple[dict, str]]:
    return [(row.values, row.place.removeprefix(f"{path}:")) for row in read_rows(path, required, optional)]


CONTENTS = {
    "csv": 'text,id,label\n"red, green",1,a\n\n"two\nlines",2,b\nlast,3,c\n',
    "tsv": 'text\tid\tlabel\n"red, green"\t1\ta\n\n"two\nlines"\t2\tb\nlast\t3\tc\n',
    "jsonl": '{"text": "red, green", "id": 1, "label": "a"}\n\n\n'
    '{"text": "two\\nlines", "label": "b"}\n \n{"label": "c", "text": "last"}\n',
}


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("suffix", CONTENTS)
def test_each_format_gives_the_same_rows_with_the_line_they_start_at(tmp_path, suffix, gz):
    path = write(tmp_path / f"train.{suffix}{gz}", CONTENTS[suffix])
    assert read(path, ["text", "label"], ["missing"]) == [
        ({"text": "red, green", "label": "a"}, "2" if suffix != "jsonl" else "1"),
        ({"text": "two\nlines", "label": "b"}, "4"),
        ({"text": "last", "label": "c"}, "6"),
    ]
    assert column_names(path) == ["text", "id", "label"]


def test_suffixes_are_matched_in_any_case(tmp_path):
    assert read(write(tmp_path / "A.CSV.GZ".replace("GZ", "gz"), "text\nx\n")) == [({"text": "x"}, "2")]
    assert read(write(tmp_path / "a.json", '{"text": "x"}')) == [({"text": "x"}, "1")]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_byte_order_mark_and_windows_line_ends(tmp_path, name):
    rows = '{"text": "x"}\r\n\r\n{"text": "é"}\r\n' if name == "a.jsonl" else "text\r\nx\r\n\r\né\r\n"
    path = write(tmp_path / name, b"\xef\xbb\xbf" + rows.encode())
    assert [values["text"] for values, _ in read(path)] == ["x", "é"]


def test_odd_characters_stay_and_do_not_count_as_lines(tmp_path):
    text = "nul \0 separator \u2028 next line \x85 form feed \x0c return \r end"
    path = write(tmp_path / "a.csv", f'text\n"{text}"\nb\n')
    assert read(path) == [({"text": text}, "2"), ({"text": "b"}, "3")]
    path = write(tmp_path / "a.jsonl", '{"text": "a\u2028\\u0000b"}\n{"text": "c"}\n')
    assert read(path) == [({"text": "a\u2028\0b"}, "1"), ({"text": "c"}, "2")]


def test_a_field_longer_than_the_default_limit_of_the_csv_module(tmp_path):
    path = write(tmp_path / "a.csv", f"text\n{'x' * 1_000_000}\n")
    assert len(read(path)[0][0]["text"]) == 1_000_000


def test_optional_columns_are_read_if_they_exist(tmp_path):
    assert read(write(tmp_path / "a.csv", "text,title\nx,y\n"), ["text"], ["title", "none"]) == [
        ({"text": "x", "title": "y"}, "2")
    ]
    path = write(tmp_path / "a.jsonl", '{"text": "x"}\n{"text": "y", "title": "z"}\n')
    assert [values for values, _ in read(path, ["text"], ["title"])] == [
        {"text": "x"},
        {"text": "y", "title": "z"},
    ]


def test_json_numbers_become_the_text_they_were_written_as(tmp_path):
    line = '{"text": 1.50, "label": 3, "labels": ["a", 7], "none": [], "big": %s}' % ("9" * 5000)
    values = read(write(tmp_path / "a.jsonl", line), ["text", "label", "labels", "none", "big"])[0][0]
    assert values == {"text": "1.50", "label": "3", "labels": ["a", "7"], "none": [], "big": "9" * 5000}


def test_spans_are_read_as_json_strings(tmp_path):
    line = '{"s": [{"start": 0, "end": 5, "label": "é"}], "t": [[0, 5, "PER"], [7, 9, 2]]}'
    values = read(write(tmp_path / "a.jsonl", line), ["s", "t"])[0][0]
    assert values["s"] == ['{"start": "0", "end": "5", "label": "é"}']
    assert values["t"] == ['["0", "5", "PER"]', '["7", "9", "2"]']


def test_nameless_columns_may_repeat(tmp_path):
    assert read(write(tmp_path / "a.csv", "text,,\nx,,\n")) == [({"text": "x"}, "2")]


TABLES = [
    ("a.csv", "", "expected a header line with the column names, got an empty file"),
    ("a.csv", "\ufeff\n\n", "a header line"),
    ("a.csv.gz", b"", "a header line"),
    ("a.csv", "text,label\n\n", "expected rows, got nothing after the header"),
    (
        "a.csv",
        "Text,TEXT\nx,y\n",
        "expected column 'text', got columns Text, TEXT; did you mean 'Text' or 'TEXT'",
    ),
    (
        "a.csv",
        "a good film,pos\nx,y\n",
        "got columns a good film, pos; line 1 looks like data: add a header line",
    ),
    (
        "a.csv",
        "text;label\nx;y\n",
        "{path}:1: expected columns separated by ',', got one column; the line looks",
    ),
    ("a.csv", "a;text\nx,z;y\n", "separated by ';': --data.delimiter ';'"),
    (
        "a.tsv",
        "text,label\nx,y\n",
        "separated by '\\t', got one column; the line looks separated by ',': --data.delim",
    ),
    (
        "a.tsv",
        "text\n".encode("utf-16"),
        "0xff at position 1 of the line; save as UTF-8 or give --data.encoding, for",
    ),
    (
        "a.csv",
        "text\n".encode("utf-16-le"),
        "{path}:1: expected UTF-8 text, got byte 0x00; save as UTF-8 or give",
    ),
    ("a.csv", "txt,label\nx,y\n", "did you mean 'txt'"),
    ("a.csv", "text,label\nx,y\nx,y,z\n", "{path}:3: expected 2 fields (text, label), got 3"),
    ("a.csv", 'text,label\n"x\nx",y\n\nx\n', "{path}:5: expected 2 fields (text, label), got 1"),
    ("a.tsv", "text\tlabel\nx,y\n", "{path}:2: expected 2 fields"),
    ("a.csv", "text,label,text\nx,y,z\n", "{path}:1: expected unique column names, got 'text' twice"),
    ("a.csv", 'text\nx\n"open\nnever closed\n', "{path}:3: expected a closing quote"),
    ("a.csv", 'text\nx\n"a\n"b\n', '{path}:3: expected quotes in a quoted field written as ""'),
    ("a.csv", 'text\nx\n"a\n"b\n', "at line 4"),
    ("a.csv", "text\nx\ra\n", "{path}:2: expected lines that end in"),
    ("a.csv", "text,label\rx,y\r", "{path}:1: expected lines that end in"),
    ("a.csv", b"text\n" + b"x\n" * 9000 + b'"a\n\xff"\n', "{path}:9003: expected UTF-8 text, got byte 0xff"),
    ("a.csv", b"text\nx\n\xe4\xb8", "{path}:3: expected UTF-8 text, got byte 0xe4 at position 1"),
    ("a.csv.gz", b"text\nx\n\xff\n", "{path}:3: expected UTF-8"),
    ("a.tsv", "text\n".encode("utf-16"), "{path}:1: expected UTF-8"),
    ("a.jsonl", " \n", "expected one JSON object per line, got an empty file"),
    ("a.jsonl", '{"text": "x"}\n{"text": \n', "{path}:2: expected one JSON object per line, got other text"),
    ("a.json", '[\n{"text": "x"}\n]\n', "{path}:1: expected one JSON object per line"),
    ("a.jsonl", '["x"]\n', "{path}:1: expected one JSON object per line, got a list"),
    ("a.jsonl", "12\n", "{path}:1: expected one JSON object per line, got a string"),
    ("a.jsonl", '{"text": NaN}\n', "NaN is not JSON"),
    ("a.jsonl", "[" * 100_000, "{path}:1: expected one JSON object per line"),
    ("a.jsonl", '{"text": "x"}\n{"test": "x"}\n', "{path}:2: expected column 'text', got columns test"),
    ("a.jsonl", '{"text": null}\n', "expected a string, a number or a list of strings for 'text', got null"),
    ("a.jsonl", '{"text": true}\n', "got true or false"),
    ("a.jsonl", '{"text": {}}\n', "got an object"),
    ("a.jsonl", '{"text": ["x", null]}\n', "got a list with other things"),
    ("a.jsonl", '{"text": [{"from": 0}]}\n', "got a list with other things"),
    ("a.jsonl", '{"text": [[0, 5]]}\n', "got a list with other things"),
    ("a.jsonl", '{"text": [[0, 5, "\\ud800"]]}\n', "{path}:1: expected whole characters for 'text'"),
    ("a.jsonl", '{"text": "\\ud800"}\n', "{path}:1: expected whole characters for 'text'"),
    ("a.jsonl", b'{"text": "x"}\n\n{"text": "\xff"}\n', "{path}:3: expected UTF-8"),
    ("a.xlsx", "", "or .txt (each also with .gz), or .parquet, got .xlsx"),
    ("names", "", "got no suffix"),
]


@pytest.mark.parametrize("name, content, message", TABLES)
def test_errors_are_one_line_with_file_and_line(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(InputError) as caught:
        list(read_rows(path, ["text"]))
    assert message.format(path=path) in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_in_a_header_match_without_case_and_blanks(tmp_path):
    path = write(tmp_path / "a.csv", "id, Text ,LABEL,label\n1,x,y,z\n")
    names = column_names(path)
    assert "text" in names and "Text" in names and "Label" not in names and "txt" not in names
    assert read(path, ["text", "label"]) == [({"text": "x", "label": "z"}, "2")]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv.gz", "a.jsonl", "a.txt", "a.conll"])
@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_delimiter_and_encoding(tmp_path, name, encoding):
    content = {"a.jsonl": '{"text": "né"}\n', "a.txt": "né\n", "a.conll": "né O\n"}
    text = content.get(name, "id;text\n1;né\n")
    path = write(tmp_path / name, text.encode(encoding))
    form = TableFormat(";", encoding)
    column = "1" if name == "a.conll" else "text"
    assert column in column_names(path, form)
    (row,) = read_rows(path, [column], form=form)
    assert row.values[column] in ("né", ["né"])


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ((";;", ""), "--data.delimiter: expected one character, got ';;'"),
        (
            ("", "utf-42"),
            "--data.encoding: expected a text encoding, got 'utf-42'; for example utf-8, cp1252",
        ),
    ],
)
def test_formats_that_cannot_be_used(form, message):
    with pytest.raises(InputError, match=re.escape(message)):
        TableFormat(*form)


def test_bytes_that_are_not_in_the_encoding(tmp_path):
    path = write(tmp_path / "a.csv", b"text\n\xff\n")
    with pytest.raises(InputError, match="expected text in the encoding ascii, got"):
        list(read_rows(path, ["text"], form=TableFormat(encoding="ascii")))


@pytest.mark.parametrize("name", ["none.csv", "none.jsonl.gz"])
def test_a_missing_file(tmp_path, name):
    with pytest.raises(InputError, match="no such file"):
        list(read_rows(tmp_path / name, ["text"]))
    with pytest.raises(InputError, match="no such file"):
        column_names(tmp_path / name)


@pytest.mark.parametrize("name", ["folder.csv", "folder.csv.gz"])
def test_a_folder_in_place_of_a_file(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match="got a folder"):
        list(read_rows(tmp_path / name, ["text"]))


def packed_lines() -> bytes:
    return gzip.compress("".join(f"{number}\n" for number in range(9999)).encode())


@pytest.mark.parametrize(
    "data",
    [b"text\nx\n", packed_lines()[:-4000], packed_lines()[:500] + b"\0" * 900 + packed_lines()[1400:]],
    ids=["not gzip", "cut off", "overwritten"],
)
def test_damaged_gzip(tmp_path, data):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(data)
    with pytest.raises(InputError, match="a.csv.gz.* expected"):
        list(read_rows(path, ["0"]))


def test_an_open_quote_stops_at_the_limit_of_a_field(tmp_path, monkeypatch):
    before = csv.field_size_limit(1000)
    monkeypatch.setattr(blocks, "MAX_FIELD_CHARS", 1000)
    try:
        path = write(tmp_path / "a.csv", 'text\nx\n"' + "word\n" * 1000)
        with pytest.raises(InputError, match="a.csv:3: expected a field of at most 1000 characters"):
            list(read_rows(path, ["text"]))
    finally:
        csv.field_size_limit(before)


def test_rows_before_an_invalid_row_are_returned_without_reading_ahead(tmp_path):
    path = write(tmp_path / "a.csv", "text\na\nb\nc,d\n")
    assert [row.values["text"] for row in itertools.islice(read_rows(path, ["text"]), 2)] == ["a", "b"]


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(table=st.lists(st.tuples(texts, texts), min_size=1))
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.csv.gz"])
def test_written_rows_are_read_back_with_their_lines(tmp_path_factory, name, table):
    path = tmp_path_factory.mktemp("round") / name
    lines = []
    if "jsonl" in name:
        lines = [json.dumps({"b": two, "a": one}, ensure_ascii=bool(len(one) % 2)) for one, two in table]
    else:
        mark = "\t" if "tsv" in name else ","
        for one, two in [("a", "b"), *table]:
            lines.append(mark.join('"' + field.replace('"', '""') + '"' for field in (one, two)))
    content = "\n".join(lines) + "\n"
    rows = list(read_rows(write(path, content), ["a", "b"]))
    assert [(row.values["a"], row.values["b"]) for row in rows] == table
    starts = [1 + "\n".join([*lines[:index], ""]).count("\n") for index in range(len(lines))]
    assert [row.place for row in rows] == [f"{path}:{start}" for start in starts[-len(table) :]]


def test_lines_of_text_are_rows(tmp_path):
    path = write(tmp_path / "a.txt", '\ufeffone, "two"\r\n\n  three\u2028four\nlast')
    assert column_names(path) == ["text"]
    assert [(row.values["text"], row.place) for row in read_rows(path, ["text"])] == [
        ('one, "two"', f"{path}:1"),
        ("", f"{path}:2"),
        ("  three\u2028four", f"{path}:3"),
        ("last", f"{path}:4"),
    ]


def test_a_line_too_long_for_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("training.io.tables.MAX_FIELD_CHARS", 9)
    path = write(tmp_path / "a.txt", "12345678\n1234567890\n")
    with pytest.raises(InputError, match="a.txt:2: expected a line of at most 9 characters, got more"):
        list(read_rows(path, ["text"]))


def test_wide_headers_are_read_in_linear_time(tmp_path):
    """40,000 columns took 20 s."""
    names = [f"column_{number}" for number in range(40_000)]
    path = write(tmp_path / "wide.csv", f"{','.join(names)}\n{','.join('x' * 40_000)}\n")
    start = time.perf_counter()
    assert column_names(path) == names and len(read(path, ["column_39999"])) == 1
    with pytest.raises(InputError) as error:
        read(path, ["colum_7"])
    assert time.perf_counter() - start < 5
    assert "did you mean 'column_7'?" in str(error.value) and "and 39,990 more" in str(error.value)
    write(path, f"{','.join([*names, 'column_7'])}\n")
    with pytest.raises(InputError, match="expected unique column names, got 'column_7' twice"):
        column_names(path)
    assert time.perf_counter() - start < 10


def test_a_long_line_ends_the_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "MAX_LINE_BYTES", 50_000)
    for suffix, row in (("csv", "good"), ("jsonl", '{"text": "good"}'), ("conll", "good O\n")):
        path = write(
            tmp_path / f"rows.{suffix}", f"{'text' if suffix == 'csv' else row}\n{row}\n{'x' * 200_000}\n"
        )
        with pytest.raises(InputError, match=rf"rows\.{suffix}:\d: expected a line of at most 50,000 bytes"):
            read(path, ["1"] if suffix == "conll" else ["text"])


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "stream.arrow"])
def test_parquet_and_arrow(tmp_path, name):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"Text": ["x", "y"] * 1000, "n": [1, 2] * 1000, "tags": [["a"], ["b", "c"]] * 1000})
    path = tmp_path / name
    if name == "a.parquet":
        parquet.write_table(table, path)
    else:
        new = pyarrow.ipc.new_stream if name.startswith("stream") else pyarrow.ipc.new_file
        with new(str(path), table.schema) as writer:
            writer.write_table(table)
    assert "text" in column_names(path)
    rows = read(path, ["text", "n", "tags"])
    assert rows[1] == ({"text": "y", "n": "2", "tags": ["b", "c"]}, "2")
    assert len(rows) == 2000 and rows[-1][1] == "2000"
    with pytest.raises(InputError, match="expected column 'body', got columns Text, n, tags"):
        read(path, ["body"])
    write(path, "no table")
    with pytest.raises(InputError, match="file, got other data"):
        column_names(path)


def test_missing_values_in_parquet(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["x", None]}), path)
    with pytest.raises(
        InputError, match=r"a.parquet:2: expected a value for 'text', got None, a missing value"
    ):
        read(path)
    parquet.write_table(pyarrow.table({"text": [1.0, float("nan")]}), path)
    with pytest.raises(
        InputError, match=r"a.parquet:2: expected a value for 'text', got nan, a missing value"
    ):
        read(path)

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.errors import InputError
from training.io import tables as blocks
from training.io.tables import csv_blocks, json_blocks

FIELD = st.text(st.sampled_from('ab ,"\n\r\té港'), max_size=6)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "FEWEST_ROWS", 2)
    monkeypatch.setattr(blocks, "MOST_ROWS", 5)


def read(found) -> tuple[list[tuple], list[int], list[int]]:
    """Rows, lines and sizes of blocks."""
    rows, lines, sizes = [], [], []
    for block in found:
        rows += zip(*block.columns.values(), strict=True)
        lines += block.lines
        sizes.append(len(block.lines))
    return rows, lines, sizes


@given(st.lists(st.one_of(st.none(), st.tuples(FIELD, FIELD)), min_size=1, max_size=30))
def test_rows_and_lines_are_those_of_the_csv_module(tmp_path_factory, table):
    table = [*table, ("last", "row")]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(("text", "label"))
    expected, lines = [], []
    for row in table:
        if row is None:
            text.write("\n")
            continue
        lines.append(text.getvalue().count("\n") + 1)
        expected.append(row)
        writer.writerow(row)
    path = tmp_path_factory.mktemp("blocks") / "a.csv"
    path.write_bytes(text.getvalue().encode())
    assert read(csv_blocks(path, ",", ("text", "label")))[:2] == (expected, lines)


@pytest.mark.parametrize("bad", ["one field", "three,fields,here", '"open', 'a "quote",b\n"x"y,z'])
@pytest.mark.parametrize("before", [0, 1, 4, 5, 6, 9])
def test_rows_before_an_invalid_row_precede_its_error(tmp_path, bad, before):
    path = tmp_path / "a.csv"
    # Every row reaches over two lines.
    path.write_text("text,label\n" + '"x\ny",z\n' * before + bad + "\n", newline="")
    found = []
    with pytest.raises(InputError) as caught:
        found.extend(csv_blocks(path, ",", ("text",)))
    # Quotes inside an unquoted field are valid; the line after it is not.
    line = 2 + 2 * before + (bad[0] == "a")
    assert str(caught.value).startswith(f"{path}:{line}: ")
    rows, lines, _ = read(found)
    assert rows == [("x\ny",)] * before + [('a "quote"',)] * (bad[0] == "a")
    assert lines[:before] == [2 + 2 * row for row in range(before)]


def test_blocks_grow_to_the_most_rows_and_long_texts_shrink_them(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_CHARS", 40)
    path = tmp_path / "a.csv"
    path.write_text("text\n" + "x\n" * 16 + "y" * 30 + "\n" + ("z" * 30 + "\n") * 9)
    sizes = read(csv_blocks(path, ",", ("text",)))[2]
    assert sizes[:4] == [2, 4, 5, 5] and max(sizes[5:]) <= 2 and sum(sizes) == 26
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n' * 9 + json.dumps({"text": "y" * 60}) + "\n")
    assert sum(read(json_blocks(path, ("text",)))[2]) == 10


def test_rows_of_json_may_lack_a_column(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "1", "b": "2"}\n\n{"a": ["x", "y"]}\n{"a": "3", "b": 4}\n{"a": null}\n')
    found = []
    with pytest.raises(InputError, match=r"a.jsonl:5: expected a string, a number or a list"):
        found.extend(json_blocks(path, ("a",), ("b",)))
    assert read(found)[:2] == ([("1", "2"), (["x", "y"], None), ("3", "4")], [1, 3, 4])

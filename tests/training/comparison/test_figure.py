import sys

import pytest

from kmha.errors import InputError
from tests.training.comparison.figures import COMPARISON
from training.cli.parser import format_table
from training.comparison.figure import comparison_cells, markdown_table, notes, write_comparison_figure
from training.reporting.matplotlib_style import check_matplotlib


def test_the_figure_is_written_atomically(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "compare.png"
    path.write_bytes(b"old")
    write_comparison_figure(path, COMPARISON)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [each.name for each in tmp_path.iterdir()] == ["compare.png"]


def test_missing_matplotlib_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"--out: expected matplotlib .*kmha\[report\]"):
        check_matplotlib()


def test_missing_values_are_empty_cells():
    head, heads, linear, run = comparison_cells(COMPARISON)
    assert head[-3:] == ["cpu s", "ms at 8", "ms at 64"]
    assert heads == [
        "heads", "1,234", "0.003", "0.8000", "0.9000", "0.8500–0.9400", "", "12.5", "3.5", "0.50", "1.25"
    ]  # fmt: skip
    assert linear[6] == "-0.1000 (-0.1500 to -0.0400), heads wins" and linear[7:9] == [
        "0.2 in total",
        "0.1 in total",
    ]
    # A run without metrics.json that cannot read the longest texts.
    assert run[2:4] == ["", ""] and run[7:] == ["", "", "0.70", ""]


def test_lines_are_aligned_and_markdown_is_a_table():
    rows = [["name", "x"], ["a|b", "1.5"]]
    assert format_table(rows) == ["name    x", "a|b   1.5"]
    assert markdown_table(rows) == "| name | x |\n| --- | --- |\n| a\\|b | 1.5 |\n"


def test_notes_have_the_distance_of_the_weights():
    lines = "\n".join(notes(COMPARISON))
    assert "within 0.40% of 1,234" in lines and "linear: TF-IDF" in lines
    without = {**COMPARISON, "weights": {"target": None, "largest_distance": None}}
    assert "within" not in "\n".join(notes(without))

from tests.training.comparison.figures import COMPARISON
from training.cli.text_table import format_table
from training.comparison.figure import as_markdown, cells, notes


def test_a_row_tells_what_there_is():
    head, heads, linear, run = cells(COMPARISON)
    assert head[-3:] == ["cpu s", "ms at 8", "ms at 64"]
    assert heads == [
        "heads", "1,234", "0.003", "0.8000", "0.9000", "0.8500–0.9400", "", "12.5", "3.5", "0.50", "1.25"
    ]  # fmt: skip
    assert linear[6] == "-0.1000 (-0.1500 to -0.0400)" and linear[7:9] == ["0.2 in all", "0.1 in all"]
    # A run without metrics.json, too short for the longest texts.
    assert run[2:4] == ["", ""] and run[7:] == ["", "", "0.70", ""]


def test_lines_are_aligned_and_markdown_is_a_table():
    rows = [["name", "x"], ["a|b", "1.5"]]
    assert format_table(rows) == ["name    x", "a|b   1.5"]
    assert as_markdown(rows) == "| name | x |\n| --- | --- |\n| a\\|b | 1.5 |\n"


def test_notes_say_how_near_the_weights_are():
    told = "\n".join(notes(COMPARISON))
    assert "within 0.40% of 1,234" in told and "linear: TF-IDF" in told
    assert "within" not in "\n".join(
        notes({**COMPARISON, "weights": {"target": None, "largest_distance": None}})
    )

"""The commands that the README and the pages on tasks print are run, in order."""

import re

import pytest

from tests.command_runs import ROOT
from tests.shown_commands import Stage, code_lines, commands_of, lines_of, run_line, stages


# The pages' fits and exports take minutes; the README has the main ones of them.
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/how-to/distill.md",
        "docs/how-to/speed.md",
        "docs/how-to/long-texts.md",
        *(
            pytest.param(f"docs/how-to/{each}.md", marks=pytest.mark.slow)
            for each in (
                *("match", "tag", "finetune", "masked-lm", "documents"),
                *("calibration", "explain", "report", "heads", "compare", "workers", "large-data"),
            )
        ),
    ],
)
def test_every_python_command_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = commands_of(page)
    assert commands
    for line in commands:
        run_line(line)


def test_every_make_target_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    asked = [
        words[1]
        for line in lines_of("README.md")
        if (words := line.split("#")[0].split())[:1] == ["make"] and len(words) > 1
    ]
    assert asked and set(asked) <= targets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```bash\na b\n```\nc\n```python\nd\n```\n    e # f", ["a b", "e # f"]),
        ("```\n$ a \\\n  b\n```", ["a    b"]),
        ("text\n```sh\n```\n", []),
    ],
)
def test_code_is_found_where_it_stands(text, expected):
    assert list(code_lines(text)) == expected


def test_a_line_is_read_as_a_shell_would():
    assert stages('echo "a b" | python -m x.y run < in.txt > out.txt  # note | not') == [
        Stage(["echo", "a b"]),
        Stage(["python", "-m", "x.y", "run"], "in.txt", "out.txt"),
    ]

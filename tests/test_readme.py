"""Runs the commands of the README and of the guides, and checks the README's other claims."""

import re
from pathlib import Path

import pytest

from tests.command_runs import ROOT
from tests.shown_commands import (
    Stage,
    code_lines,
    commands_of,
    lines_of,
    parse_line,
    python_blocks,
    run_line,
    stages,
    table_commands,
    write_table,
)

README = "README.md"
# They show the fit and the exports of the README: a command that several of them show runs once.
SAME_RUN = (README, "docs/getting-started.md", "docs/how-to/classify.md")
SECOND = (
    *("how-to/distill", "how-to/speed", "how-to/long-texts"),
    *("how-to/python", "how-to/hyperparameter-search", "how-to/own-model"),
)
# Their fits and exports take minutes; the README has the main ones of them.
SLOW = (
    *("match", "tag", "finetune", "few-labels", "masked-lm", "documents"),
    *("calibration", "explain", "report", "heads", "compare", "workers", "large-data"),
)
# Commands of the README's table that take too long for a test; those of their guides are run or parsed too.
PARSED_ONLY = re.compile(r"-m training\.(launch|compare|benchmark) ")


def run_commands_and_code(page: str, done: set[str] | None = None) -> None:
    """Runs the commands and the Python code of a page, except commands that are `done`, and adds them."""
    done = set() if done is None else done
    commands, blocks = commands_of(page), python_blocks(page)
    assert commands or blocks
    for line in commands:
        if line not in done:
            run_line(line)
            done.add(line)
    names: dict = {}
    for block in blocks:
        for path in map(Path, re.findall(r'"([\w-]+\.csv)"', block)):
            if not path.exists():
                write_table(path)
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("page", SAME_RUN)
def test_every_run_that_a_page_uses_is_made_on_it(page):
    """The pages are tested in one folder, where a run of another page would not be missed."""
    made: set[str] = set()
    for line in commands_of(page):
        made |= set(re.findall(r"--out (runs/[\w-]+)", line))
        assert set(re.findall(r"runs/[\w-]+", line)) <= made, line
    assert made


@pytest.mark.second
def test_the_commands_and_the_python_code_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done: set[str] = set()
    for page in SAME_RUN:
        run_commands_and_code(page, done)
    commands = table_commands(README)
    assert len(commands) >= 15
    for line in commands:
        if PARSED_ONLY.search(line):
            parse_line(line)
        else:
            run_line(line, expects_output=False)


@pytest.mark.parametrize(
    "page",
    [
        *(pytest.param(f"docs/{each}.md", marks=pytest.mark.second) for each in SECOND),
        *(pytest.param(f"docs/how-to/{each}.md", marks=pytest.mark.slow) for each in SLOW),
    ],
)
# Keras' export to ONNX.
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")
def test_every_python_command_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_commands_and_code(page)


def test_the_commands_of_every_page_have_valid_flags(monkeypatch):
    monkeypatch.chdir(ROOT)
    pages = [README, *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]
    commands = [*table_commands(README), *(line for page in pages for line in commands_of(page))]
    # A run's config.toml exists after the run only.
    ours = [
        line for line in commands if re.search(r"-m (training|export|clients)\.(?!.*--config runs/)", line)
    ]
    assert len(ours) > 100
    for line in ours:
        parse_line(line)


def test_the_readme_has_at_most_150_lines():
    assert len((ROOT / README).read_text("utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", [README, "docs/getting-started.md", "CONTRIBUTING.md"])
def test_every_make_target_exists(page):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    shown = [
        words[1]
        for line in lines_of(page)
        if (words := line.split("#")[0].split())[:1] == ["make"] and len(words) > 1
    ]
    assert shown and set(shown) <= targets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```bash\na b\n```\nc\n```python\nd\n```\n    e # f", ["a b", "e # f"]),
        ("```\n$ a \\\n  b\n```", ["a    b"]),
        ("text\n```sh\n```\n", []),
    ],
)
def test_code_lines_are_found(text, expected):
    assert list(code_lines(text)) == expected


def test_a_line_is_parsed_like_a_shell_command():
    assert stages('echo "a b" | python -m x.y run < in.txt > out.txt  # note | not') == [
        Stage(["echo", "a b"]),
        Stage(["python", "-m", "x.y", "run"], "in.txt", "out.txt"),
    ]

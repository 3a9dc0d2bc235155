"""Console blocks of the documentation: each command prints what its page shows."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from export.commands import main as kmha
from tests.command_runs import ROOT, call, refused
from tests.shown_commands import command_module, module_of, stages

PAGES = ("docs/getting-started.md", "docs/how-to/classify.md", "docs/how-to/messages.md")
# Packages of the section on missing packages.
MISSING = ("ai_edge_litert", "tf2onnx", "tensorboard")


def transcript(page: str) -> list[tuple[str, str]]:
    """The commands of the console blocks of a page and what they print."""
    text = (ROOT / page).read_text("utf-8")
    shown = "".join(re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    return re.findall(r"^\$ (.*\n)((?:(?!\$ ).*\n)*)", shown, re.MULTILINE)


def output_of(command: str, is_refused: bool) -> str:
    """Returns what a command prints. A refused command writes no files and exits with status 2."""
    (*_, stage) = stages(command)
    module = module_of(stage)
    if module is None and stage.words[0] != "kmha":
        return subprocess.run(["bash", "-c", command], check=True, stdout=subprocess.PIPE, text=True).stdout
    main, words = (command_module(module).main, stage.words[3:]) if module else (kmha, stage.words[1:])
    stdin = Path(stage.stdin).read_bytes() if stage.stdin else b""
    if is_refused:
        return f"error: {refused(Path(), main, *words, stdin=stdin)}\n"
    outcome = call(main, *words, stdin=stdin)
    assert outcome.status == 0, outcome.err
    return outcome.err + outcome.out


@pytest.mark.parametrize("page", PAGES)
def test_each_command_prints_what_its_page_shows(news_run, tmp_path, monkeypatch, page):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(news_run.folder, "runs/news")
    shutil.copy(news_run.train, "news.csv")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in MISSING else find(name))
    commands = transcript(page)
    assert commands
    for command, output in commands:
        assert output_of(command, output.startswith("error: ")) == output, command


def test_console_blocks_of_all_pages_are_run():
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert {page for page in pages if transcript(page)} == set(PAGES)
    assert sum(output.startswith("error: ") for _, output in transcript(PAGES[-1])) == 19

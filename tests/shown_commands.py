"""Runs the commands of a page, in order, in one folder with small files."""

import csv
import dataclasses
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from export.commands import settings_of
from tests.command_runs import ROOT, TINY, call, news_rows
from tests.pair_rows import ranking_rows
from tests.tagged_sentences import tagged_sentences, write_conll
from training.cli.parser import parse
from training.config.config import FitConfig

SHELLS = ("", "bash", "sh", "shell", "console")
# A comment with one of these words marks a command that takes too long for a test. It is only parsed.
LONG = re.compile(r"\b(long|minutes?|hours?)\b")
FILE_FLAGS = ("--data", "--data.train", "--data.validation", "--data.test", "--labeled")


def code_lines(text: str) -> Iterator[str]:
    """Lines of shell code, fenced or indented, with continued ones joined."""
    fence: str | None = None
    for line in text.replace("\\\n", " ").splitlines():
        if match := re.match(r"\s*```(\w*)", line):
            fence = match[1] if fence is None else None
        elif (fence is None and line.startswith("    ")) or fence in SHELLS:
            yield line.strip().removeprefix("$ ")


@dataclasses.dataclass
class Stage:
    """One command of a pipe."""

    words: list[str]
    stdin: str | None = None
    stdout: str | None = None


def stages(line: str) -> list[Stage]:
    """Splits a line, which may use |, < and >, into its commands."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>")
    lexer.whitespace_split = True
    found, words = [Stage([])], iter(lexer)
    for word in words:
        if word == "|":
            found.append(Stage([]))
        elif word == "<":
            found[-1].stdin = next(words)
        elif word == ">":
            found[-1].stdout = next(words)
        else:
            found[-1].words.append(word)
    return found


def module_of(stage: Stage) -> str | None:
    is_python = (
        len(stage.words) > 2 and Path(stage.words[0]).name.startswith("python") and stage.words[1] == "-m"
    )
    return stage.words[2] if is_python else None


def command_module(name: str) -> Any:
    """The module that `python -m name` runs: of a package its `__main__`."""
    module = importlib.import_module(name)
    return importlib.import_module(f"{name}.__main__") if hasattr(module, "__path__") else module


def lines_of(page: str) -> list[str]:
    """The lines of code of a page of the project."""
    return list(code_lines((ROOT / page).read_text("utf-8")))


def commands_of(page: str) -> list[str]:
    """Code lines that run a Python module; a script with quotes over several lines has its own test."""
    whole = [line for line in lines_of(page) if _is_whole(line)]
    return [line for line in whole if any(module_of(stage) for stage in stages(line))]


def table_commands(page: str) -> list[str]:
    """Commands in the cells of a page's tables."""
    rows = [line for line in (ROOT / page).read_text("utf-8").splitlines() if line.startswith("|")]
    return [command for row in rows for command in re.findall(r"`(python -m [^`]+)`", row)]


def python_blocks(page: str) -> list[str]:
    """The fenced Python code of a page."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def _is_whole(line: str) -> bool:
    try:
        stages(line)
    except ValueError:
        return False
    return True


def write_pairs(path: Path) -> None:
    """Writes questions with candidates, or triplets, according to the file name."""
    rows: list[tuple] = [(*row[:2], str(row[2]), row[3]) for row in ranking_rows(16, 4, seed=len(path.name))]
    names: tuple[str, ...] = ("text_a", "text_b", "label", "query_id")
    if "triplets" in path.name:
        names = ("anchor", "positive", "negative")
        rows = [(row[0], f"{row[0]} again", row[1]) for row in rows if row[2] == "0"]
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])


def write_table(path: Path) -> None:
    """Writes pairs, or texts with both kinds of label column, according to the file name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".conll":
        write_conll(path, tagged_sentences(45, seed=len(path.name)))
        return
    if "pairs" in path.name or "triplets" in path.name:
        write_pairs(path)
        return
    rows = [(text, label, label) for text, label in news_rows(45, seed=len(path.name))]
    if path.suffix == ".txt":
        path.write_text("".join(f"{text}\n" for text, *_ in rows), encoding="utf-8")
        return
    with open(path, "w", newline="", encoding="utf-8") as file:
        if path.suffix in (".json", ".jsonl"):
            file.writelines(
                json.dumps(dict(zip(("text", "label", "labels"), row, strict=True))) + "\n" for row in rows
            )
        else:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([("text", "label", "labels"), *rows])


def prepare(arguments: list[str]) -> None:
    """Writes the input files of a command that do not exist yet."""
    words = [part for word in arguments for part in word.split("=", 1)]
    for flag, value in zip(words, words[1:], strict=False):
        if flag in FILE_FLAGS and not Path(value).exists():
            write_table(Path(value))
        if flag in ("--rank", "--texts", "--distill.texts") and not Path(value).exists():
            Path(value).write_text("soup and bread\nball\nnew bread\n")
        if flag == "--config" and not Path(value).exists():
            Path(value).parent.mkdir(parents=True, exist_ok=True)
            Path(value).write_bytes((ROOT / value).read_bytes())


def is_long(line: str, module: str, arguments: list[str]) -> bool:
    has_rows = any(word.split("=")[0].startswith("--data.t") for word in arguments)
    needs_rows = module == "training.fit" and "--help" not in arguments
    return bool(LONG.search(line.partition("#")[2])) or (needs_rows and not has_rows)


def tiny_flags(module: str, arguments: list[str]) -> list[str]:
    """Returns flags that make a fit or a comparison short; the sizes of a pretrained or named encoder stay."""
    if module == "training.compare":
        selected = [flag for flag in TINY if not re.search("learning-rate|report", flag)]
        return [*selected, "--rates=0.01", "--rounds=1"]
    if module not in ("training.fit", "training.launch"):
        return []
    if {"few.csv", "few_pairs.csv"} & set(arguments) and "--encoder.pretrained" in arguments:
        # The contrastive stage of a published encoder takes a minute.
        return ["--text.max-length=16", "--train.buckets=1", "--no-report", "--fewshot.mode=probe"]
    if any(word.startswith(("--encoder.pretrained", "--encoder.size")) for word in arguments):
        return [flag for flag in TINY if not flag.startswith(("--encoder.", "--text.vocabulary"))]
    if any(word.startswith("--classify.window") for word in arguments):
        return [flag for flag in TINY if not flag.startswith("--text.max-length")]
    return TINY


def parse_line(line: str) -> None:
    """Checks the flags of the commands of a line."""
    for stage in stages(line):
        if module := module_of(stage):
            _parse(command_module(module), stage.words[3:], module)


def _parse(command: Any, arguments: list[str], module: str) -> None:
    # The launcher's own flags, then those of the fit that it starts.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    parse(settings_of(command), arguments[:end], module)
    if end < len(arguments):
        parse(FitConfig, arguments[end + 1 :], module)


def run_line(line: str, expects_output: bool = True) -> None:
    """Runs the commands of a line, connected by pipes and files as in a shell.

    Flags make training short, missing input files are written, a command that is marked as long is only parsed.
    """
    data = b""
    for stage in stages(line):
        if stage.stdin is not None:
            if not Path(stage.stdin).exists():
                Path(stage.stdin).write_text("soup and bread\nball\n")
            data = Path(stage.stdin).read_bytes()
        module = module_of(stage)
        if module is None:
            # Any other command of a pipe returns its input.
            assert stage.words[0] in ("echo", "printf", "cat", "head", "jq"), line
            if stage.words[0] in ("echo", "printf"):
                data = (" ".join(stage.words[1:]) + "\n").encode()
            if stage.words[0] == "printf":
                data = data.rstrip(b"\n").replace(b"\\t", b"\t").replace(b"\\n", b"\n")
            continue
        command, arguments = command_module(module), stage.words[3:]
        prepare(arguments)
        if is_long(line, module, arguments):
            _parse(command, arguments, module)
            continue
        tiny = [] if "--help" in arguments else tiny_flags(module, arguments)
        if stage.stdout is not None and stage.stdout.endswith(".npy"):
            data = _bytes_of(stage, data)
        else:
            outcome = call(command.main, *arguments, *tiny, stdin=data)
            assert outcome.status == 0, f"{line}\n{outcome.err}"
            data = outcome.out.encode()
        if stage.stdout is not None:
            Path(stage.stdout).write_bytes(data)
    assert data or "#" in line or not expects_output, line


def _bytes_of(stage: Stage, stdin: bytes) -> bytes:
    """Returns the binary output of a command."""
    words = [sys.executable, *stage.words[1:]]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(words, input=stdin, stdout=subprocess.PIPE, check=True, env=environment).stdout

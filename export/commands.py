"""kmha COMMAND [OPTIONS]: one entry to the commands of `training` and `export`, which `python -m` runs too."""

import ast
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import io
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from kmha.errors import InputError, did_you_mean, shown
from kmha.version import package_version
from training.cli.parser import run

TRAINING = (
    "fit",
    "predict",
    "evaluate",
    "explain",
    "report",
    "embed",
    "calibrate",
    "suggest",
    "heads",
    "compare",
    "launch",
    "benchmark",
)
EXPORT = (
    "savedmodel",
    "tflite",
    "onnx",
    "huggingface",
    "verify",
    "answer",
    "explain",
    "batch",
    "benchmark",
)
MODULES = {name: f"training.{name}" for name in TRAINING} | {
    f"export {name}": f"export.{name}" for name in EXPORT
}
COMPLETION, SHELLS = "completion", ("bash", "zsh", "fish")
# Corrections of tyro's scripts: files where nothing else fits, such as a run folder; no lines of long help texts among
# the completions; files after an argument without a flag; folders that end in a slash.
_CORRECTIONS = (
    ("for completion in completions:", "for completion in completions or ['__TYRO_COMPLETE_FILES__']:"),
    ("print(completion)", "print(completion.splitlines()[0])"),
    ('compgen -f -- "$cur"', 'compgen -f -- "${COMP_WORDS[COMP_CWORD]}"'),
    ("complete -F", "complete -o filenames -F"),
)
_PACKAGES = ("savedmodel", "tflite", "onnx", "batch", "benchmark")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    count = 2 if words[:1] == ["export"] else 1
    name = " ".join(words[:count])
    if name in MODULES:
        return importlib.import_module(_file(name)).main(words[count:])
    if name == "--version":
        print(f"kmha {package_version()}")
        return 0
    if name == COMPLETION:
        return run(lambda: _print_completion(words[1:]))
    return run(lambda: _show_overview(name, words[count - 1 : count]))


def _show_overview(name: str, last: Sequence[str]) -> int:
    """Prints all commands; raises InputError for an unknown command."""
    if last and last[0] not in ("-h", "--help"):
        hint = did_you_mean(last[0], _names(name)) or "; kmha --help lists all"
        raise InputError(f"kmha: unknown command {name}{hint}")
    print(_overview())
    return 0


def settings_of(command: Any) -> type[Any]:
    """Returns the settings class of a command's module: its own, or else an imported one."""
    kinds = [
        value
        for name, value in vars(command).items()
        if name.endswith("Config") and isinstance(value, type) and dataclasses.is_dataclass(value)
    ]
    return min(kinds, key=lambda kind: kind.__module__ != command.__name__)


def _print_completion(shells: Sequence[str]) -> int:
    """Prints a script that completes commands and flags in a shell; raises InputError for other shells."""
    if len(shells) != 1 or shells[0] not in SHELLS:
        raise InputError(
            f"kmha {COMPLETION}: expected one of {', '.join(SHELLS)}, got {shown(' '.join(shells))}"
        )
    training, export = tyro.extras.SubcommandApp(), tyro.extras.SubcommandApp()
    for name in MODULES:
        app = export if name.startswith("export ") else training
        app.command(name=name.split()[-1])(settings_of(importlib.import_module(_file(name))))
    training.command(export, name="export")
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        training.cli(prog="kmha", args=["--tyro-write-completion", shells[0], "-"])
    print(functools.reduce(lambda text, each: text.replace(*each), _CORRECTIONS, script.getvalue()))
    return 0


def _names(name: str) -> list[str]:
    """The last words of the commands of the same group."""
    return [each.split()[-1] for each in MODULES if (" " in each) == (" " in name)]


def _file(name: str) -> str:
    """The module that has the command."""
    is_package = name.startswith("export ") and name.split()[1] in _PACKAGES
    return MODULES[name] + ".__main__" * is_package


def _overview() -> str:
    """The commands with the first sentence of each; their modules are read and not imported."""
    lines = ["usage: kmha COMMAND [OPTIONS]", ""]
    for name in MODULES:
        spec = importlib.util.find_spec(_file(name))
        assert spec is not None and spec.origin is not None
        documentation = ast.get_docstring(ast.parse(Path(spec.origin).read_text("utf-8"))) or ""
        sentence = re.split(r"[.:;] ", " ".join(documentation.split("\n\n")[1].split()))[0].rstrip(".")
        lines.append(f"  {name:<20}{textwrap.shorten(sentence, 90, placeholder=' …')}")
    return "\n".join(
        [
            *lines,
            "",
            "kmha COMMAND --help shows the options of a command, kmha --version the version.",
            f"kmha {COMPLETION} {'|'.join(SHELLS)} prints a script for the completion of commands and flags.",
        ]
    )

"""kmha COMMAND [OPTIONS]: one entry to the commands of `training` and `export`, which `python -m` runs too."""

import ast
import importlib
import importlib.util
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from kmha.errors import InputError, did_you_mean
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
_PACKAGES = ("savedmodel", "tflite", "onnx", "batch", "benchmark")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    count = 2 if words[:1] == ["export"] else 1
    name = " ".join(words[:count])
    if name in MODULES:
        return importlib.import_module(_file(name)).main(words[count:])
    return run(lambda: _show_overview(name, words[count - 1 : count]))


def _show_overview(name: str, last: Sequence[str]) -> int:
    """Prints all commands; raises InputError for an unknown command."""
    if last and last[0] not in ("-h", "--help"):
        hint = did_you_mean(last[0], _names(name)) or "; kmha --help lists all"
        raise InputError(f"kmha: unknown command {name}{hint}")
    print(_overview())
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
    return "\n".join([*lines, "", "kmha COMMAND --help shows the options of a command."])

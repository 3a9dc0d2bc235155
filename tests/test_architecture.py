"""The law of the house, read from the source with `ast`: what may import what, sizes, names, docstrings."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("kmha", "training", "export", "clients")
COMMANDS = (
    "training.fit",
    "training.launch",
    "training.evaluate",
    "training.predict",
    "training.embed",
    "training.explain",
    "training.report",
    "training.heads",
    "training.compare",
    "export.savedmodel",
    "export.batch",
    "export.tflite",
    "export.onnx",
    "export.huggingface",
    "export.answer",
    "export.explain",
    "export.verify",
    "clients.check",
    "clients.screenshot",
    "export.benchmark",
)
MAX_LINES = 300

FORBIDDEN_ABOVE = {
    "kmha": {"training", "export", "clients"},
    "training": {"export", "clients"},
    "export": {"clients"},
    "clients": set(),
}
BACKENDS = {"tensorflow", "tensorflow_text", "jax", "torch"}
UNSAFE_IMPORTS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNSAFE_ARGUMENTS = {"allow_pickle": True, "safe_mode": False}
NAMES_WITHOUT_CONCERN = {"util", "utils", "base", "common", "helper", "helpers", "misc"}
HEAVY = ("tensorflow", "tensorflow_text", "keras")

SOURCES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
every_source = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
every_command = pytest.mark.parametrize("command", COMMANDS)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_modules(tree: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    """Absolute dotted names of everything imported, also inside functions.

    `from a import b` gives a.b, since b may be a module; package resolves the dots of `from . import b`.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            source = ".".join((*parents, *filter(None, [node.module])))
            yield from (f"{source}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
            "import_module",
            "__import__",
        ):
            constants = (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant))
            yield from (value for value in constants if isinstance(value, str))


def imported_roots(path: Path) -> set[str]:
    package = path.relative_to(ROOT).parent.parts
    return {name.split(".")[0] for name in imported_modules(parse(path), package)}


def unsafe_calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            yield f"line {node.lineno}: {node.func.id}"
        for keyword in node.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if keyword.arg in UNSAFE_ARGUMENTS and value is UNSAFE_ARGUMENTS[keyword.arg]:
                yield f"line {node.lineno}: {keyword.arg}={value}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a.b as c", {"a.b"}),
        ("from a import b, c", {"a.b", "a.c"}),
        ("from . import b", {"kmha.layers.b"}),
        ("from ..text import b", {"kmha.text.b"}),
        ("def f():\n    import pickle", {"pickle"}),
        ("importlib.import_module('dill')", {"dill"}),
    ],
)
def test_imports_are_read_in_every_form(source, expected):
    assert set(imported_modules(ast.parse(source), ("kmha", "layers"))) == expected


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("eval('1')", 1),
        ("exec(code)", 1),
        ("numpy.load(path, allow_pickle=True)", 1),
        ("keras.saving.load_model(path, safe_mode=False)", 1),
        ("numpy.load(path, allow_pickle=False); model.eval()", 0),
    ],
)
def test_unsafe_calls_are_recognised(source, count):
    assert len(list(unsafe_calls(ast.parse(source)))) == count


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_holds_code(room):
    assert any(path.is_relative_to(ROOT / room) for path in SOURCES)


@every_source
def test_imports_run_one_way(path):
    room = path.relative_to(ROOT).parts[0]
    assert not imported_roots(path) & FORBIDDEN_ABOVE[room]


@pytest.mark.parametrize("room", ["layers", "models"])
def test_layers_and_models_know_no_backend(room):
    found = {path: imported_roots(path) & BACKENDS for path in (ROOT / "kmha" / room).rglob("*.py")}
    assert found
    assert not {path.name: names for path, names in found.items() if names}


@every_source
def test_nothing_runs_code_from_a_file(path):
    assert not imported_roots(path) & UNSAFE_IMPORTS
    assert not list(unsafe_calls(parse(path)))


@every_source
def test_files_stay_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@every_source
def test_modules_say_what_they_are(path):
    assert (ast.get_docstring(parse(path)) or "").strip()


@every_source
def test_names_state_a_concern(path):
    words = {*path.relative_to(ROOT).with_suffix("").parts}
    classes = [node.name for node in ast.walk(parse(path)) if isinstance(node, ast.ClassDef)]
    assert not {word.strip("_").lower() for word in words} & NAMES_WITHOUT_CONCERN
    assert not [name for name in classes if re.search(r"^_?Base(?![a-z])|(Manager|Helper)$", name)]


@every_command
def test_commands_open_with_their_usage(command):
    path = ROOT.joinpath(*command.split(".")).with_suffix(".py")
    assert path.is_file()
    assert (ast.get_docstring(parse(path)) or "").startswith(f"python -m {command}")


@every_command
def test_commands_start_light(command):
    """Help and a mistyped flag must answer at once: TensorFlow alone takes seconds to import."""
    program = f"import sys, {command}; print(*(name for name in {HEAVY} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not result.stdout.split()

"""Rules of the code base, read from the source with `ast`: imports, names, docstrings, safety.

Each rule is one test that reports every file that breaks it.
"""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kmha", "training", "export", "clients")
COMMANDS = (
    "training.fit",
    "training.launch",
    "training.evaluate",
    "training.predict",
    "training.embed",
    "training.explain",
    "training.report",
    "training.calibrate",
    "training.heads",
    "training.compare",
    "training.benchmark",
    "export.savedmodel",
    "export.batch",
    "export.tflite",
    "export.onnx",
    "export.huggingface",
    "export.answer",
    "export.explain",
    "export.verify",
    "export.benchmark",
    "clients.check",
    "clients.screenshot",
)
MOST_MODULES = 13

FORBIDDEN_ABOVE = {
    "kmha": {"training", "export", "clients"},
    "training": {"export", "clients"},
    "export": {"clients"},
    "clients": set(),
}
BACKENDS = {"tensorflow", "tensorflow_text", "jax", "torch"}
UNSAFE_IMPORTS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
UNSAFE_ARGUMENTS = {"allow_pickle": True, "safe_mode": False}
VAGUE_NAMES = {"util", "utils", "base", "common", "helper", "helpers", "misc"}
HEAVY = ("tensorflow", "tensorflow_text", "keras", "sklearn", "scipy")

SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8"), filename=str(path)) for path in SOURCES}


def name_of(path: Path) -> str:
    """The dotted name of a source file's module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in SOURCES}


def imported_modules(tree: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    """Absolute dotted names of everything imported, also inside functions and under TYPE_CHECKING.

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


def imports_of(path: Path) -> set[str]:
    return set(imported_modules(TREES[path], path.relative_to(ROOT).parent.parts))


def imported_roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports_of(path)}


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


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that reach each other."""

    def reached(start: str) -> set[str]:
        found, todo = set(), [start]
        while todo:
            for other in edges.get(todo.pop(), set()) - found:
                found.add(other)
                todo.append(other)
        return found

    reach = {node: reached(node) for node in edges}
    groups = {
        frozenset({node, *(other for other in reach[node] if node in reach.get(other, set()))})
        for node in edges
        if node in reach[node]
    }
    return [sorted(group) for group in groups]


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
def test_unsafe_calls_are_recognized(source, count):
    assert len(list(unsafe_calls(ast.parse(source)))) == count


def test_cycles_are_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]
    assert cycles({"a": {"b"}, "b": set()}) == []


def test_packages_do_not_import_packages_above_them():
    wrong = {
        name: found
        for name, path in MODULES.items()
        if (found := imported_roots(path) & FORBIDDEN_ABOVE[name.split(".")[0]])
    }
    assert not wrong


def test_no_circular_imports():
    edges = {}
    for name, path in MODULES.items():
        found = imports_of(path)
        # `from a import b` names a.b where b is a module, else the module a.
        edges[name] = {each if each in MODULES else each.rpartition(".")[0] for each in found} & set(MODULES)
        edges[name].discard(name)
    assert not cycles(edges)


def test_layers_and_models_import_no_backend():
    paths = [path for name, path in MODULES.items() if name.startswith(("kmha.layers.", "kmha.models."))]
    assert len(paths) > 15
    assert not {path.name: found for path in paths if (found := imported_roots(path) & BACKENDS)}


def test_no_module_executes_files():
    assert not {name for name, path in MODULES.items() if imported_roots(path) & UNSAFE_IMPORTS}
    assert not {name: found for name, path in MODULES.items() if (found := list(unsafe_calls(TREES[path])))}


def test_modules_have_docstrings():
    assert not [name for name, path in MODULES.items() if not (ast.get_docstring(TREES[path]) or "").strip()]


def test_names_state_a_concept():
    vague = {name for name in MODULES if {part.strip("_").lower() for part in name.split(".")} & VAGUE_NAMES}
    vague |= {
        f"{name}.{node.name}"
        for name, path in MODULES.items()
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.ClassDef) and re.search(r"^_?Base(?![a-z])|(Manager|Helper)$", node.name)
    }
    assert not vague


@pytest.mark.parametrize("package", ["training", "export"])
def test_the_top_level_of_a_package_has_few_modules(package):
    modules = [path for path in (ROOT / package).glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES


def test_packages_state_their_purpose_in_one_sentence():
    packages = {name: path for name, path in MODULES.items() if path.name == "__init__.py"}
    assert len(packages) > 30
    first_lines = {
        name: (ast.get_docstring(TREES[path]) or "").partition("\n")[0] for name, path in packages.items()
    }
    assert not {name for name, line in first_lines.items() if not line.endswith(".")}


def command_path(command: str) -> Path:
    """The file that `python -m command` runs."""
    folder = ROOT.joinpath(*command.split("."))
    return folder / "__main__.py" if folder.is_dir() else folder.with_suffix(".py")


def test_docstrings_of_commands_start_with_their_usage():
    wrong = [
        command
        for command in COMMANDS
        if not (ast.get_docstring(TREES[command_path(command)]) or "").startswith(f"python -m {command}")
    ]
    assert not wrong


def test_commands_start_without_heavy_imports():
    """Help and the error of a mistyped flag must be fast: TensorFlow alone takes seconds to import."""
    modules = [name_of(command_path(command)) for command in COMMANDS]
    program = (
        "import importlib, json, sys\n"
        "found = {}\n"
        f"for name in {modules}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = [each for each in {HEAVY} if each in sys.modules]\n"
        "    if heavy:\n"
        "        found[name] = heavy\n"
        "        break\n"
        "print(json.dumps(found))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {}


def test_onnxruntime_is_imported_only_where_its_telemetry_is_off():
    """`export/__init__.py`, which runs before every module of the package, turns it off."""
    assert "ORT_DISABLE_TELEMETRY" in (ROOT / "export" / "__init__.py").read_text(encoding="utf-8")
    users = {name for name, path in MODULES.items() if "onnxruntime" in imported_roots(path)}
    assert users and not {name for name in users if not name.startswith("export.")}


# Each has a lock of its folder, or its own name for each process.
NAMES_UNFINISHED_FILES = {
    "training.io.disk",
    "training.runs.run_folder",
    "training.runs.checkpoint_folder",
    "training.distillation.task",
}


def test_unfinished_files_have_no_fixed_name():
    """Two processes that write the same target would mix their files: use `training.io.disk.atomic_write`."""
    found = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.endswith((".partial", ".tmp", ".new")) and name not in NAMES_UNFINISHED_FILES
    }
    assert not found


def test_json_is_strict():
    """`json.dumps` writes NaN by default, which is not JSON: state `allow_nan`, or use `training.io.disk.to_json`."""
    calls = [
        f"{name}, line {node.lineno}"
        for name, path in MODULES.items()
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("json.dump", "json.dumps", "json.JSONEncoder")
        if not any(keyword.arg == "allow_nan" for keyword in node.keywords)
    ]
    assert not calls


# Processes of the project itself write to these.
READS_OWN_LINES = {"training.speed.flops", "training.speed.workload", "export.benchmark.worker"}


def test_lines_of_files_and_pipes_are_bounded():
    """A loop over a stream reads a line of any length: use `open_lines` or `bounded_lines`."""
    found = set()
    for name, path in MODULES.items():
        for node in ast.walk(TREES[path]):
            loops = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
            for loop in loops:
                source = ast.unparse(loop.iter)
                if re.fullmatch(
                    r"(enumerate\()?(file|stream|handle|sys\.stdin(\.buffer)?)\b(, start=\d+)?\)?", source
                ):
                    found.add(name)
    assert "export.benchmark.worker" in found
    # `training.io.datasets` names what `open_lines` yields.
    assert found <= READS_OWN_LINES | {"training.io.datasets"}


# Files that kmha has written itself, in a folder of its own, or that belong to the system or to a package.
READS_OWN_FILES = {
    "export.commands",
    "training.baselines.tagging",
    "training.comparison.folder",
    "training.data.sources",
    "training.distributed.collectives",
    "training.distributed.tf_config",
    "training.engine.consistency",
    "training.engine.loop",
    "training.html.page",
    "training.io.disk",
    "training.io.examples",
    "training.io.json_subprocess",
    "training.io.ragged_store",
    "training.job.train",
    "training.pruning.prune_run",
    "training.runs.checkpoint_folder",
    "training.runs.run_folder",
    "training.sklearn",
    "training.runtime.memory_estimate",
    "training.speed.profile",
    "training.speed.workload",
    "export.predictors.artifacts",
    "export.savedmodel.predictor",
    "export.savedmodel.write",
}
# Items of rows that `training.io.tables` has parsed.
PARSES_OTHER_JSON = {"training.tasks.tag.rows", "export.batch.rows"}


def test_files_of_unknown_origin_are_read_in_one_place():
    """A pipe blocks, and JSON of unknown origin raises many errors: use `kmha.input_files`."""
    found = set()
    for name, path in MODULES.items():
        for node in ast.walk(TREES[path]):
            if not isinstance(node, ast.Call):
                continue
            function, arguments = ast.unparse(node.func), ", ".join(map(ast.unparse, node.args))
            reads = function == "open" and not re.search(r"'[wax]b?'|os.devnull", arguments)
            reads |= function.endswith((".read_text", ".read_bytes"))
            parses = function in ("json.load", "json.loads", "tomllib.load", "tomllib.loads")
            if reads or parses:
                found.add(name)
    # Programs of users, tokenizers without dependencies, and measurements of the user's own files.
    others = {name for name in found if name.startswith(("clients.", "export.device.", "export.benchmark."))}
    expected = READS_OWN_FILES | PARSES_OTHER_JSON | {"kmha.input_files", "training.cli.parser"}
    assert found - others == expected

"""Files of a run, settings and rows with changes that a hostile author could make, and commands that read them."""

import copy
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import strategies as st

from tests.bundles import TEXTS, one_label_bundle
from tests.command_runs import Outcome, call, write_csv
from tests.kmha.bundle.damaged_runs import put
from training.cli.parser import parse, run
from training.config.config import FitConfig, settings
from training.config.validation import check_settings
from training.data.load import load_data
from training.evaluate import main as evaluate
from training.predict import main as predict
from training.report import main as report
from training.tasks.classify import ClassifyTask

VALUES = (
    *(None, True, "", "\x1b[2J", "a\0b", "\ud800", "x" * 5_000, "../x", "nan", [], {}, [[]], [None], {"": 1}),
    *(-1, 0, 1, 10**9, 10**18, 10**400, -(10**18), 0.5, -0.0, 1e308, float("nan"), float("inf")),
)
PIECES = (
    b"",
    b"\0",
    b"\xff",
    b"\n",
    b"\r",
    b'"',
    b",",
    b"[" * 2_000,
    b"\\ud800",
    b"9" * 400,
    b"\t",
    b"\x1b[2J",
    b"{",
)
DATA = {
    "a.csv": b"text,label\ngood bread,a\nold soup,b\nnew salt,a\nfine oven,b\ncold stock,a\nsmall loan,b\n",
    "a.tsv": b"text\tlabel\ngood bread\ta\nold soup\tb\nnew salt\ta\nfine oven\tb\n",
    "a.jsonl": b'{"text": "good bread", "label": "a"}\n{"text": "soup", "label": "b"}\n{"text": "x", "label": "a"}\n',
}
BUNDLE_FILES = ("bundle.json", "vocab.txt", "sample.jsonl", "model.keras", "config.json")


def _places(value: Any, place: tuple = ()) -> Iterator[tuple]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield (*place, name)
        yield from _places(inner, (*place, name))


@st.composite
def changed_values(draw: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Values with another one, or none, at one place."""
    values = copy.deepcopy(values)
    *parents, name = draw(st.sampled_from(list(_places(values))))
    inner = values
    for each in parents:
        inner = inner[each]
    if isinstance(inner, dict) and draw(st.booleans()) and draw(st.booleans()):
        del inner[name]
    else:
        inner[name] = draw(st.sampled_from(VALUES))
    return values


@st.composite
def changed_bytes(draw: Any, content: bytes) -> bytes:
    """Bytes of which a part is replaced."""
    start = draw(st.integers(0, len(content)))
    end = draw(st.sampled_from([start, start + 1, start + 20, len(content)]))
    return content[:start] + draw(st.sampled_from(PIECES)) + content[end:]


@st.composite
def changed_settings(draw: Any) -> bytes:
    """A TOML file of all settings with a change."""
    values = settings(FitConfig())
    if draw(st.booleans()):
        return draw(changed_bytes(tomli_w.dumps(values).encode()))
    try:
        return tomli_w.dumps(draw(changed_values(values))).encode("utf-8", "replace")
    except (TypeError, ValueError):  # no TOML value
        return b"[train]\nepochs = " + b"[" * 3_000


def read_settings(content: bytes, folder: Path) -> Outcome:
    """Reads and checks the settings of a fit, without the fit."""
    path = folder / "a.toml"
    path.write_bytes(content)

    def main(argv: Any) -> int:
        def command() -> int:
            check_settings(parse(FitConfig, argv, "python -m training.fit"))
            return 0

        return run(command)

    return call(main, "--config", path)


def read_rows(name: str, content: bytes, folder: Path) -> Outcome:
    """Reads, checks and splits the rows of a fit, without the fit."""
    path = folder / name
    path.write_bytes(content)
    (folder / "rows").mkdir(exist_ok=True)

    def main(argv: Any) -> int:
        def command() -> int:
            load_data(parse(FitConfig, argv, "python -m training.fit"), ClassifyTask(), folder / "rows")
            return 0

        return run(command)

    return call(main, "--data.train", path)


@st.composite
def changed_runs(draw: Any, content: dict[str, bytes]) -> tuple[str, bytes]:
    """A file of a run with a change; config.json is a part of model.keras."""
    name = draw(st.sampled_from(BUNDLE_FILES))
    if name in ("bundle.json", "config.json") and draw(st.booleans()):
        return name, json.dumps(draw(changed_values(json.loads(content[name])))).encode()
    return name, draw(changed_bytes(content[name]))


def run_files(folder: Path) -> dict[str, bytes]:
    """Saves a run; returns the content of its files."""
    one_label_bundle().save(folder)
    content = {name: (folder / name).read_bytes() for name in BUNDLE_FILES if (folder / name).exists()}
    with zipfile.ZipFile(folder / "model.keras") as archive:
        return content | {"config.json": archive.read("config.json")}


def read_run(original: dict[str, bytes], changed: tuple[str, bytes], folder: Path, command: str) -> Outcome:
    """Runs a command on a run with a changed file, whose hash fits."""
    name, content = changed
    for each, before in original.items():
        if each != "config.json":
            (folder / each).write_bytes(before)
    if name == "config.json":
        name, content = "model.keras", _with_config(original["model.keras"], content)
    if name == "bundle.json":
        (folder / name).write_bytes(content)
    else:
        put(folder, name, content)
    if command == "predict":
        return call(predict, folder, stdin=b"good bread\n")
    rows = write_csv(folder.parent / "rows.csv", [(text, "a") for text in TEXTS[:4]])
    if command == "evaluate":
        return call(evaluate, folder, "--data", rows)
    return call(report, folder, "--data", rows, "--out", folder.parent / "page.html")


def _with_config(model: bytes, config: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(model)) as archive, zipfile.ZipFile(written, "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, config if name == "config.json" else archive.read(name))
    return written.getvalue()


def check(outcome: Outcome) -> None:
    """Success, or one printable line and status 2."""
    assert outcome.status in (0, 2), outcome
    if outcome.status == 2:
        last = outcome.err.rstrip("\n").split("\n")[-1]
        assert last.startswith("error: ") and last.isprintable() and len(last) < 2_100, outcome.err

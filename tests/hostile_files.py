"""Files of a run, settings and rows with changes that a hostile author could make, and commands that read them."""

import contextlib
import copy
import io
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import strategies as st

from export.commands import main as kmha
from tests.bundles import BIO, make_tagger_bundle, masked_bundle, pair_bundle
from tests.command_runs import ROOT, TINY, Outcome, call, news_rows
from tests.kmha.bundle.damaged_runs import put
from training.cli.parser import parse, run
from training.config.config import FitConfig, settings
from training.config.validation import check_settings
from training.data.load import load_data
from training.tasks.classify import ClassifyTask

EARLIER = ROOT / "tests" / "earlier_run"

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
_ROWS = [("good bread", "food"), ("old bank", "money"), ("new ball", "sport"), *news_rows(9, seed=1)]
_SENTENCE = "the O\nold{0} B-LOC\nferry I-LOC\nleft O\n\nFerry{0} B-PER\n\n"
# Rows by the name of their file; the name starts with the task.
DATA = {
    "classify.csv": "".join(f"{text},{label}\n" for text, label in [("text", "label"), *_ROWS]).encode(),
    "classify.tsv": "".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *_ROWS]).encode(),
    "classify.jsonl": "".join(
        f'{{"text": "{text}", "label": "{label}"}}\n' for text, label in _ROWS
    ).encode(),
    "match.csv": b"text_a,text_b,label\n" + b"old soup,the soup,1\nold soup,salt,0\nnew ball,goal,1\n" * 3,
    "tag.conll": "".join(map(_SENTENCE.format, range(6))).encode(),
    "masked-lm.txt": "".join(f"{text}\n" for text, _ in _ROWS).encode(),
}
BUNDLE_FILES = ("bundle.json", "vocab.txt", "sample.jsonl", "model.keras")
RUN_FILES = (*BUNDLE_FILES, "metrics.json", "epochs.csv", "config.toml")
# A part of model.keras.
CONFIG = "config.json"

_TINY = " ".join(flag for flag in TINY if not flag.startswith("--no-report"))
# The arguments of commands that read a run and rows. {out} is a folder, {artifact} an ONNX file of the run of
# labels, {test} are other rows of it.
COMMANDS = {
    "fit": f"--task={{task}} --data.train={{data}} --out={{out}}/run --overwrite {_TINY}",
    "predict": "{run} --data {data} --out {out}/rows.jsonl --overwrite",
    "evaluate": "{run} --data {data}",
    "explain": "{run} --data {data} --rows 2 --draws 1",
    "report": "{run} --data {data} --out {out}/page.html",
    "embed": "{run} --format jsonl",
    "calibrate": "{run} --data {data}",
    "suggest": "{run} --texts {data}",
    "heads": "{run} --data {data}",
    "compare": "--candidates averages --rates 0.01 --lengths 8 --rounds 1 --train.epochs 1 --runs {run}"
    " --data.train {data} --data.test {test}",
    "export savedmodel": "{run} {out}/served",
    "export tflite": "{run} {out}/m.tflite --overwrite",
    "export onnx": "{run} {out}/m.onnx --overwrite",
    "export huggingface": "{run} {out}/bert --overwrite",
    "export verify": "{run} {artifact} --data {data} --rows 4",
    "export benchmark": "{run} {artifact} --texts {data} --seconds 0.05",
}


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
def changed_settings(draw: Any, values: dict[str, Any]) -> bytes:
    """A TOML file of settings with a change."""
    if draw(st.booleans()):
        return draw(changed_bytes(tomli_w.dumps(values).encode()))
    try:
        return tomli_w.dumps(draw(changed_values(values))).encode("utf-8", "replace")
    except (TypeError, ValueError):  # no TOML value
        return b"[train]\nepochs = " + b"[" * 3_000


def settings_of(*flags: str) -> dict[str, Any]:
    """All settings of a fit, as in a TOML file."""
    return settings(parse(FitConfig, flags, "python -m training.fit"))


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


class Runs:
    """Runs of all tasks, their rows and commands that read them, in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        shutil.copytree(EARLIER / "run", folder / "classify")
        pair_bundle().save(folder / "match")
        # As BERT, which export.huggingface writes.
        bert = {"norm": "post", "norm_epsilon": 1e-12, "positions": "learned"}
        make_tagger_bundle(BIO, **bert, ngram_buckets=0).save(folder / "tag")
        masked_bundle().save(folder / "masked-lm")
        for name in EARLIER.glob("model.*"):
            shutil.copy(name, folder)
        self.content = {
            task: self._files(folder / task) for task in ("classify", "match", "tag", "masked-lm")
        }

    @staticmethod
    def _files(run: Path) -> dict[str, bytes]:
        content = {name: (run / name).read_bytes() for name in RUN_FILES if (run / name).exists()}
        with zipfile.ZipFile(run / "model.keras") as archive:
            return content | {CONFIG: archive.read(CONFIG)}

    def _restore(self, task: str, name: str) -> Path:
        """Writes all original files of a run and the rows of a name."""
        for each, content in self.content[task].items():
            if each != CONFIG:
                (self.folder / task / each).write_bytes(content)
        (self.folder / name).write_bytes(DATA[name])
        return self.folder / task

    def call(self, command: str, name: str, *flags: object) -> Outcome:
        """Calls a command with the run and the rows of the task that a file name starts with."""
        task, stdin = name.partition(".")[0], b"good bread\n"
        places = {
            "task": task,
            "run": self.folder / task,
            "data": self.folder / name,
            "out": self.folder / "out",
        }
        arguments = (
            COMMANDS[command]
            .format(**places, artifact=self.folder / "model.onnx", test=EARLIER / "test.csv")
            .split()
        )
        (self.folder / "cwd").mkdir(exist_ok=True)
        # A changed path may be relative.
        with contextlib.chdir(self.folder / "cwd"):
            return call(kmha, *command.split(), *arguments, *flags, stdin=stdin)

    def call_with_run(self, command: str, name: str, file: str, content: bytes) -> Outcome:
        """Calls a command with a run of which a file is changed and has the hash of the manifest."""
        run = self._restore(name.partition(".")[0], name)
        if file == CONFIG:
            file, content = "model.keras", _with_config((run / "model.keras").read_bytes(), content)
        if file in BUNDLE_FILES[1:]:
            put(run, file, content)
        else:
            (run / file).write_bytes(content)
        flags = ("--encoder.pretrained", run) if command == "fit" else ()
        return self.call(command, name, *flags)

    def call_with_rows(self, command: str, name: str, content: bytes) -> Outcome:
        """Calls a command with changed rows."""
        self._restore(name.partition(".")[0], name)
        (self.folder / name).write_bytes(content)
        return self.call(command, name)

    def call_with_settings(self, content: bytes) -> Outcome:
        """Fits with a changed TOML file."""
        (self.folder / "a.toml").write_bytes(content)
        rows = self._restore("classify", "classify.csv").with_name("classify.csv")
        flags = "--config", self.folder / "a.toml", "--data.train", rows, "--out", self.folder / "out/run"
        with contextlib.chdir(self.folder):
            return call(kmha, "fit", *flags, "--overwrite")


@st.composite
def changed_runs(draw: Any, runs: Runs) -> tuple[str, str, bytes]:
    """The name of a file of rows, and a changed file of the run of its task: its name and content."""
    name = draw(st.sampled_from([name for name in DATA if not name.endswith((".tsv", ".jsonl"))]))
    content = runs.content[name.partition(".")[0]]
    file = draw(st.sampled_from(list(content)))
    if file.endswith(".json") and draw(st.booleans()):
        return name, file, json.dumps(draw(changed_values(json.loads(content[file])))).encode()
    return name, file, draw(changed_bytes(content[file]))


@st.composite
def changed_rows(draw: Any) -> tuple[str, bytes]:
    """The name and the changed content of a file of rows."""
    name = draw(st.sampled_from(list(DATA)))
    return name, draw(changed_bytes(DATA[name]))


def _with_config(model: bytes, config: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(model)) as archive, zipfile.ZipFile(written, "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, config if name == "config.json" else archive.read(name))
    return written.getvalue()


def check(outcome: Outcome) -> None:
    """Success, or one printable line and status 2; or status 1: a model that differs, or a training that diverged."""
    failed = '"passed": false' in outcome.out or "error: training diverged, " in outcome.err
    assert outcome.status in (0, 2) or (outcome.status == 1 and failed), outcome
    if outcome.status == 2:
        last = outcome.err.rstrip("\n").split("\n")[-1]
        assert last.startswith("error: ") and last.isprintable() and len(last) < 2_100, outcome.err

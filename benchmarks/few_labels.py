"""python -m benchmarks.few_labels cells --data NAME=TRAIN.csv,TEST.csv … --out FILE.jsonl [--rows 4 8 16 64]

Draws rows of each label, trains with `training.fit --encoder.pretrained` and its defaults, and fits logistic regression
(C 10) on unit vectors of the frozen encoder. Prints means and standard errors of the test accuracy. `--setfit-python
PYTHON` adds SetFit (`benchmarks/setfit_cell.py`), and the mean difference of kmha and SetFit on the same draws.

    python -m benchmarks.few_labels suggest --data NAME=TRAIN.csv,TEST.csv … --out FILE.jsonl --target ACCURACY

Counts the labels that a target accuracy takes. It starts from 4 rows of each label and adds texts of a pool of training
rows, selected by `training.suggest` or at random; their labels are revealed, and `training.fit` trains on all of them.

Results are JSON lines in --out; those that are there already are not computed again. Tables are printed at the end.
Other flags are of `training.fit`.
"""

import argparse
import csv
import dataclasses
import functools
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from kmha.quiet import import_tensorflow

FIT, FROZEN, SETFIT = "training.fit", "frozen", "setfit"
ROOT = Path(__file__).resolve().parent.parent
FROZEN_STRENGTH = 10.0
FIRST_ROWS = 4
MAX_LENGTH = 128

Rows = list[tuple[str, str]]  # text and label
# From labeled rows to the run and its test accuracy.
Fit = Callable[[tuple[tuple[str, str], ...]], tuple[Path, float]]


def read_rows(path: Path) -> Rows:
    """Rows of a CSV with the columns text and label."""
    csv.field_size_limit(2**27)
    with open(path, newline="", encoding="utf-8") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


def write_rows(path: Path, rows: Rows) -> Path:
    """Writes such a CSV."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def draw(rows: Rows, per_label: int, seed: int) -> np.ndarray:
    """Row numbers of a random draw of so many rows of each label, int64 [N]; all rows of a label that has fewer."""
    random = np.random.default_rng(seed)
    labels = np.array([label for _, label in rows])
    drawn = []
    for label in sorted(set(labels.tolist())):
        found = np.flatnonzero(labels == label)
        drawn.append(random.choice(found, min(per_label, len(found)), replace=False))
    return np.concatenate(drawn)


def test_sample(rows: Rows, most: int) -> Rows:
    """The same random rows in each run."""
    return [rows[row] for row in np.random.default_rng(0).permutation(len(rows))[:most]]


@dataclasses.dataclass(frozen=True)
class DataSet:
    """A data set of --data."""

    name: str
    train: Rows
    test: Rows

    @classmethod
    def read(cls, value: str, test_rows: int) -> "DataSet":
        """Reads NAME=TRAIN,TEST."""
        name, files = value.split("=", 1)
        train, test = (read_rows(Path(path)) for path in files.split(","))
        return cls(name, train, test_sample(test, test_rows))


class Results:
    """JSON lines in a file, by key; those of other settings are ignored."""

    def __init__(self, path: Path, settings: dict[str, Any]):
        self._path, self._settings = path, settings
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        self._by_key: dict[str, dict[str, Any]] = {
            each["key"]: each for each in map(json.loads, lines) if each.get("settings") == settings
        }

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._by_key[key]

    def add(self, key: str, values: dict[str, Any]) -> None:
        """Adds a result and writes it."""
        self._by_key[key] = {"key": key, **values, "settings": self._settings}
        line = json.dumps(self._by_key[key])
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, file=sys.stderr, flush=True)


def mean_and_error(values: Sequence[float]) -> str:
    """Mean, standard error and number of values."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{np.mean(values):.3f} ± {error:.3f} ({len(values)})"


def write_both(train: Rows, test: Rows, folder: Path) -> dict[str, Path]:
    """Writes the rows of both parts into a folder."""
    return {
        name: write_rows(folder / f"{name}.csv", rows) for name, rows in (("train", train), ("test", test))
    }


def setfit_cell(
    python: str, checkpoint: str, train: Rows, test: Rows, seed: int, folder: Path
) -> dict[str, Any]:
    """Accuracy and seconds of SetFit, from the same checkpoint in a process of another environment."""
    from kmha.pretrained.sources import PACKAGES, installed_folder

    files = write_both(train, test, folder)
    source = installed_folder(checkpoint) if checkpoint in PACKAGES else checkpoint
    found = subprocess.run(
        [
            *(python, str(ROOT / "benchmarks/setfit_cell.py"), str(source)),
            *(str(files["train"]), str(files["test"]), str(seed)),
        ],
        check=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    return json.loads(found.stdout.decode().splitlines()[-1])


def fit_cell(flags: Sequence[str], train: Rows, test: Rows, seed: int, folder: Path) -> dict[str, Any]:
    """Scores and processor time of one fit in a process of its own; `flags` are of training.fit."""
    data = [f"--data.{name}={path}" for name, path in write_both(train, test, folder).items()]
    quick = ["--no-report", "--no-baseline", f"--train.seed={seed}", f"--out={folder / 'run'}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "training.fit", *flags, *data, *quick],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    metrics = json.loads((folder / "run" / "metrics.json").read_text("utf-8"))
    return {
        "accuracy": metrics["test"]["accuracy"],
        "ece": metrics["test"]["ece"],
        # Without these from 100 rows a label on, and with --fewshot off.
        "stage": metrics.get("fewshot", {}).get("stage"),
        "losses": metrics.get("fewshot", {}).get("losses"),
        "training_seconds": metrics["cost"]["seconds"]["training"],
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
    }


class FrozenVectors:
    """Unit vectors of texts by the frozen encoder; each text is encoded once."""

    def __init__(self, checkpoint: str):
        from kmha.inference.retrieval import TextVectors
        from kmha.pretrained.sources import find_checkpoint
        from kmha.pretrained.weights import load_text_encoder

        found = find_checkpoint(checkpoint)
        self._encode = TextVectors(load_text_encoder(found, min(MAX_LENGTH, found.config.max_length)))
        self._known: dict[str, np.ndarray] = {}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [R, D]."""
        new = sorted({text for text in texts if text not in self._known})
        self._known.update(zip(new, self._encode(new), strict=True))
        return np.stack([self._known[text] for text in texts])


def frozen_cell(vectors: FrozenVectors, train: Rows, test: Rows) -> dict[str, Any]:
    """Accuracy of logistic regression on frozen vectors."""
    from training.fewshot.linear_head import apply_head, fit_head

    labels = {label: number for number, label in enumerate(sorted({label for _, label in train}))}
    # A test row whose label the training rows lack counts as an error, as in a fit.
    targets, expected = (np.array([labels.get(label, -1) for _, label in rows]) for rows in (train, test))
    inputs, evaluated = (vectors([text for text, _ in rows]) for rows in (train, test))
    logits = apply_head(evaluated, fit_head(inputs, targets, len(labels), FROZEN_STRENGTH))
    return {"accuracy": float((logits.argmax(axis=1) == expected).mean())}


def cells(options: argparse.Namespace, sets: list[DataSet], results: Results) -> None:
    """The command `cells`."""
    vectors = FrozenVectors(options.checkpoint) if FROZEN in options.methods else None
    table: dict[tuple[str, int], dict[str, list[float]]] = {}
    for method, rows, seed, each in product(options.methods, options.rows, options.seeds, sets):
        key = f"{method} {each.name} {rows} {seed}"
        if key not in results:
            train = [each.train[row] for row in draw(each.train, rows, seed)]
            with tempfile.TemporaryDirectory(prefix="kmha-") as temporary:
                folder = Path(temporary)
                if vectors is not None and method == FROZEN:
                    found = frozen_cell(vectors, train, each.test)
                elif method == SETFIT:
                    python, checkpoint = options.setfit_python, options.checkpoint
                    found = setfit_cell(python, checkpoint, train, each.test, seed, folder)
                else:
                    found = fit_cell(options.fit, train, each.test, seed, folder)
            results.add(key, found)
        cell = table.setdefault((each.name, rows), {})
        cell.setdefault(method, []).append(results[key]["accuracy"])
    for (name, rows), cell in table.items():
        shown = [f"{method} {mean_and_error(found)}" for method, found in cell.items()]
        for other in (FROZEN, SETFIT):
            if FIT in cell and other in cell:
                differences = [own - its for own, its in zip(cell[FIT], cell[other], strict=True)]
                shown.append(f"{FIT} - {other} {mean_and_error(differences)}")
        print(name, rows, *shown, sep=" | ")


def select_randomly(run: Path, labeled: Rows, texts: Sequence[str], count: int, seed: int) -> list[str]:
    """Random texts."""
    order = np.random.default_rng([seed, 19]).permutation(len(texts))
    return [texts[place] for place in order[:count].tolist()]


def select_by_suggestion(run: Path, labeled: Rows, texts: Sequence[str], count: int, seed: int) -> list[str]:
    """The texts that `training.suggest` prints for a run."""
    with tempfile.TemporaryDirectory(prefix="kmha-") as folder:
        files = {
            "labeled": write_rows(Path(folder) / "labeled.csv", labeled),
            "texts": write_rows(Path(folder) / "texts.csv", [(text, "") for text in texts]),
        }
        found = subprocess.run(
            [
                *(sys.executable, "-m", "training.suggest", str(run)),
                *(f"--{name}={path}" for name, path in files.items()),
                *(f"--count={count}", f"--seed={seed}"),
            ],
            check=True,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
    lines = io.StringIO(found.stdout.decode("utf-8"), newline="")
    return [row["text"] for row in csv.DictReader(lines)]


SELECTIONS = {"suggest": select_by_suggestion, "random": select_randomly}


def rounds(
    way: str, first: Rows, pool: Rows, per_round: int, seed: int, fit: Fit
) -> Iterator[tuple[int, float]]:
    """Yields the number of labels and the test accuracy of each round, until no text is left."""
    labeled, labels = first, dict(pool)
    while True:
        run, accuracy = fit(tuple(labeled))
        yield len(labeled), accuracy
        chosen = SELECTIONS[way](run, labeled, list(labels), per_round, seed + len(labeled)) if labels else []
        if not chosen:
            return
        labeled = [*labeled, *((text, labels.pop(text)) for text in chosen)]


def suggest_with_seed(each: DataSet, seed: int, options: argparse.Namespace, results: Results) -> None:
    """Adds the curve of each way of selecting from one draw."""
    drawn = draw(each.train, FIRST_ROWS, seed)
    rest = np.setdiff1d(np.arange(len(each.train)), drawn)
    places = np.random.default_rng([seed, 23]).permutation(rest)[: options.pool]
    first, pool = ([each.train[place] for place in found] for found in (drawn, places))
    with tempfile.TemporaryDirectory(prefix="kmha-") as folder:
        # All ways share the first round.
        @functools.cache
        def fit(labeled: tuple[tuple[str, str], ...]) -> tuple[Path, float]:
            place = Path(tempfile.mkdtemp(dir=folder))
            found = fit_cell(options.fit, list(labeled), each.test, seed, place)
            return place / "run", found["accuracy"]

        for way in options.ways:
            key = f"{way} {each.name} {seed}"
            if key not in results:
                found = rounds(way, first, pool, options.per_round, seed, fit)
                results.add(key, {"curve": curve(found, options)})


def suggest(options: argparse.Namespace, sets: list[DataSet], results: Results) -> None:
    """The command `suggest`."""
    for each in sets:
        for seed in options.seeds:
            suggest_with_seed(each, seed, options, results)
        for way in options.ways:
            curves = [results[f"{way} {each.name} {seed}"]["curve"] for seed in options.seeds]
            print_curves(f"{each.name} | {way}", curves, options.target)


def curve(found: Iterator[tuple[int, float]], options: argparse.Namespace) -> list[tuple[int, float]]:
    """The rounds until the target is reached, or until there are enough labels."""
    result = []
    for labels, accuracy in found:
        result.append((labels, round(accuracy, 4)))
        reached = len(result) > options.rounds and max(score for _, score in result) >= options.target
        if reached or labels + options.per_round > options.most:
            break
    return result


def print_curves(title: str, curves: list[list[tuple[int, float]]], target: float) -> None:
    """Prints the labels needed in each run, and the mean accuracy at the numbers of labels that all runs have."""
    needed = [next((labels for labels, score in curve if score >= target), None) for curve in curves]
    shown = [
        str(labels) if labels else f"over {curve[-1][0]}"
        for labels, curve in zip(needed, curves, strict=True)
    ]
    common = min(map(len, curves))
    print(title, f"labels for {target}: {', '.join(shown)}", sep=" | ")
    for column in range(common):
        scores = [curve[column][1] for curve in curves]
        print(title, f"{curves[0][column][0]} labels", mean_and_error(scores), sep=" | ")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("cells", "suggest"))
    parser.add_argument("--data", nargs="+", required=True, metavar="NAME=TRAIN,TEST")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    parser.add_argument("--checkpoint", default="minilm", help="name or folder")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--test-rows", type=int, default=1000)
    group = parser.add_argument_group("cells")
    group.add_argument("--rows", nargs="+", type=int, default=[4, 8, 16, 64], help="of a label")
    group.add_argument(
        "--methods", nargs="+", choices=(FROZEN, FIT, SETFIT), help="default: all that can run"
    )
    group.add_argument("--setfit-python", help="the Python of an environment with SetFit")
    group = parser.add_argument_group("suggest")
    group.add_argument("--target", type=float, default=0.8, help="accuracy")
    group.add_argument("--ways", nargs="+", default=list(SELECTIONS), help="of selecting")
    group.add_argument("--pool", type=int, default=1500, help="texts to select from")
    group.add_argument(
        "--per-round", type=int, default=25, help="texts that are labeled between two trainings"
    )
    group.add_argument("--rounds", type=int, default=0, help="rounds after the first, also past the target")
    group.add_argument("--most", type=int, default=300, help="labels")
    options, flags = parser.parse_known_args(argv)
    options.fit = [f"--encoder.pretrained={options.checkpoint}", *flags]
    if not options.methods:
        options.methods = [FROZEN, FIT, *([SETFIT] if options.setfit_python else [])]
    if SETFIT in options.methods and not options.setfit_python:
        parser.error("--methods setfit: expected --setfit-python")
    import_tensorflow()
    sets = [DataSet.read(value, options.test_rows) for value in options.data]
    names = ["test_rows"]
    if options.command == "suggest":
        names += ["target", "pool", "per_round", "rounds", "most"]
    settings = {name: getattr(options, name) for name in names} | {"fit": options.fit}
    {"cells": cells, "suggest": suggest}[options.command](options, sets, Results(options.out, settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""python -m benchmarks.data_sets scores --folder DATA --out RESULTS [--names trec mrpc …] [--seeds 0 1 2]

Trains the default model of each data set with `training.fit` and prints test scores of the model, of its linear path
alone and of the baseline, with 95 % intervals of the differences. Over all data sets, the differences divided by their
standard errors are combined by Stouffer's method.

    python -m benchmarks.data_sets defaults --folder DATA --out RESULTS [--rows 4000] [--test-rows 2000]

Tests how default settings are chosen by leaving one data set out: the settings with the lowest validation error, as a
share of that of the default, on average over the other data sets, are tried on this one and compared with the default
on its test rows.

A data set is a folder with train, test and perhaps dev, each .csv, .csv.gz or .conll. Runs are written to RESULTS and
not trained again.
"""

import argparse
import csv
import gzip
import itertools
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from kmha.quiet import import_tensorflow

# With fewer training rows, scores are means over --seeds.
FEW_ROWS = 10_000
# Flags for training.fit that are tried in place of the default; epochs are a factor.
VARIANTS: dict[str, dict[str, float]] = {
    "default": {},
    "half the epochs": {"epochs": 0.5},
    "twice the epochs": {"epochs": 2},
    "half the learning rate": {"--optimizer.learning-rate": 5e-4},
    "dropout 0.1": {"--encoder.dropout": 0.1},
}


class DataSet(NamedTuple):
    """How a data set is trained and scored."""

    metric: str
    flags: tuple[str, ...] = ()


SEVERAL = ("--data.label-column=labels",)
MATCH = ("--task=match",)
TAG = ("--task=tag",)
SETS = {
    "news_zh": DataSet("accuracy"),
    "ag_news": DataSet("accuracy"),
    "trec": DataSet("accuracy"),
    "sst2": DataSet("accuracy"),
    "reviews": DataSet("accuracy"),
    "goemotions": DataSet("macro_f1", SEVERAL),
    "reuters21578": DataSet("micro_f1", SEVERAL),
    "20newsgroups": DataSet("accuracy"),
    "sick": DataSet("accuracy", MATCH),
    "mrpc": DataSet("accuracy", MATCH),
    "wikiqa": DataSet("map", MATCH),
    "sts_zh": DataSet("accuracy", MATCH),
    "ud_ewt": DataSet("token_accuracy", (*TAG, "--data.label-column=2")),
    "wnut17": DataSet("span_f1", TAG),
    "resume_ner": DataSet("span_f1", TAG),
}
# Classification and matching, for `defaults`.
CHOSEN_ON = (
    "news_zh",
    "ag_news",
    "trec",
    "sst2",
    "goemotions",
    "reuters21578",
    "20newsgroups",
    "sick",
    "mrpc",
)


def open_table(path: Path) -> Any:
    """Opens a CSV, which may be gzipped, as text."""
    opened = gzip.open if path.suffix == ".gz" else open
    return opened(path, "rt", encoding="utf-8", newline="")


def data_set(name: str, files: Mapping[str, Path]) -> DataSet:
    """A data set by name; of one that is not known, the columns of its test file determine the task and the metric."""
    if name in SETS:
        return SETS[name]
    with open_table(files["test"]) as file:
        columns, *rows = itertools.islice(csv.reader(file), 100)
    if "text_b" in columns:
        if "query_id" in columns:
            return DataSet("map", MATCH)
        is_graded = any("." in row[columns.index("label")] for row in rows)
        return DataSet("spearman" if is_graded else "accuracy", MATCH)
    return DataSet("macro_f1", SEVERAL) if "labels" in columns else DataSet("accuracy")


def data_files(folder: Path, name: str) -> dict[str, Path]:
    """The files of a data set by part; none for the sample of reviews."""
    files = {}
    for part, stem in (("train", "train"), ("validation", "dev"), ("test", "test")):
        found = sorted((folder / name).glob(f"{stem}.*"))
        if found:
            files[part] = found[0]
    if "validation" in files and "test" not in files:
        files["test"] = files.pop("validation")
    return files


def sample_rows(path: Path, most: int, target: Path) -> Path:
    """Writes a header and at most so many random rows of a CSV."""
    with open_table(path) as file:
        header, *rows = csv.reader(file)
    order = np.random.default_rng(0).permutation(len(rows))[:most]
    with open(target, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *(rows[row] for row in order)])
    return target


def fit(files: Mapping[str, Path], run: Path, flags: Iterable[str]) -> dict[str, Any]:
    """The metrics of a run; it is trained if it does not exist."""
    if not run.exists():
        data = [f"--data.{part}={path}" for part, path in files.items()]
        subprocess.run(
            [sys.executable, "-m", "training.fit", *data, *flags, "--no-report", f"--out={run}"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=Path(__file__).resolve().parent.parent,
        )
    return json.loads((run / "metrics.json").read_text("utf-8"))


class Difference(NamedTuple):
    """A difference of two scores of the same rows, and its standard error."""

    value: float
    error: float

    @classmethod
    def read(cls, metrics: Mapping[str, Any], other: str, metric: str) -> "Difference":
        """The model's score minus that of "linear_path" or "baseline"; the interval has 95 %."""
        found = metrics[other]["comparison"][metric]
        low, high = found["interval"]
        return cls(found["difference"], (high - low) / (2 * norm.ppf(0.975)))

    @classmethod
    def mean(cls, parts: Sequence["Difference"]) -> "Difference":
        """Of runs with different seeds: they score the same rows, so the error does not shrink."""
        return cls(*(float(np.mean(column)) for column in zip(*parts, strict=True)))


def combine(differences: Sequence[Difference]) -> tuple[float, float]:
    """Stouffer's z of differences of several data sets, and its two-sided p; without differences with no error."""
    ratios = [each.value / each.error for each in differences if each.error]
    z = sum(ratios) / math.sqrt(max(1, len(ratios)))
    return z, float(2 * norm.sf(abs(z)))


def scores(options: argparse.Namespace) -> None:
    """The command `scores`."""
    found: dict[str, list[Difference]] = {"linear_path": [], "baseline": []}
    print("data", "metric", "seeds", "model", "linear path, difference", "baseline, difference", sep=" | ")
    for name in options.names or SETS:
        files, runs = data_files(options.folder, name), []
        data = data_set(name, files)
        for seed in options.seeds:
            if runs and runs[0]["data"]["train_rows"] >= FEW_ROWS:
                break
            flags = (*data.flags, f"--train.seed={seed}")
            runs.append(fit(files, options.out / f"{name}-{seed}", flags))
        cells = []
        for other, differences in found.items():
            differences.append(Difference.mean([Difference.read(run, other, data.metric) for run in runs]))
            low, high = (differences[-1].value + side * 1.96 * differences[-1].error for side in (-1, 1))
            mean = np.mean([run[other][data.metric] for run in runs])
            cells.append(f"{mean:.4f}, {differences[-1].value:+.4f} ({low:+.4f} to {high:+.4f})")
        values = [run[run["judged_on"]][data.metric] for run in runs]
        shown = ", ".join(f"{value:.4f}" for value in values)
        print(name, data.metric, len(runs), f"{np.mean(values):.4f} ({shown})", *cells, sep=" | ", flush=True)
    for other, differences in found.items():
        z, p = combine(differences)
        print(f"all {len(differences)} data sets, model minus {other}: z {z:.2f}, p {p:.2g}")


def compare_runs(run: Path, other: Path, test: Path, metric: str) -> dict[str, Any]:
    """The paired comparison of two runs on a test file; see `compare_resampled`."""
    from kmha.bundle.bundle import Bundle
    from training.evaluation.evaluator import predict_file
    from training.io.examples import ColumnOverrides
    from training.metrics.paired import compare_resampled

    def resampled(path: Path) -> Any:
        bundle = Bundle.load(path)
        with tempfile.TemporaryDirectory(prefix="kmha-") as folder:
            task, part, predictions = predict_file(bundle, test, ColumnOverrides(), Path(folder))
            decision = {"thresholds": bundle.thresholds}
            return task.resampled(part, bundle.labels, predictions, decision)

    return compare_resampled(resampled(run), resampled(other), "default", "choice")[metric]


def best_variant(errors: Mapping[str, Mapping[str, float]], names: Iterable[str]) -> str:
    """The variant with the lowest geometric mean of its validation error as a share of the default's."""
    names = list(names)
    return min(
        VARIANTS,
        key=lambda variant: sum(math.log(errors[name][variant] / errors[name]["default"]) for name in names),
    )


def defaults(options: argparse.Namespace) -> None:
    """The command `defaults`."""
    options.out.mkdir(parents=True, exist_ok=True)
    errors: dict[str, dict[str, float]] = {}
    names, tests = options.names or CHOSEN_ON, {}
    for name in names:
        files = {
            part: sample_rows(
                path,
                options.test_rows if part == "test" else options.rows,
                options.out / f"{name}-{part}.csv",
            )
            for part, path in data_files(options.folder, name).items()
        }
        tests[name], errors[name], epochs = files["test"], {}, 0
        for variant, values in VARIANTS.items():
            flags = [f"{flag}={value}" for flag, value in values.items() if flag.startswith("--")]
            if "epochs" in values:
                flags.append(f"--train.epochs={max(1, round(values['epochs'] * epochs))}")
            metrics = fit(
                files, run_folder(options.out, name, variant), [*SETS[name].flags, *flags, "--no-baseline"]
            )
            epochs = epochs or len(metrics["history"])
            errors[name][variant] = max(1e-4, 1 - metrics["validation"][SETS[name].metric])
    print("data", "chosen on the others", "best here", "difference from the default (test)", sep=" | ")
    for name in names:
        chosen = best_variant(errors, (other for other in names if other != name))
        best = min(errors[name], key=lambda variant: errors[name][variant])
        verdict = "the default"
        if chosen != "default":
            own, default = (run_folder(options.out, name, variant) for variant in (chosen, "default"))
            found = compare_runs(own, default, tests[name], SETS[name].metric)
            low, high = found["interval"]
            verdict = f"{found['difference']:+.4f} ({low:+.4f} to {high:+.4f}), {found['verdict']}"
        print(name, chosen, best, verdict, sep=" | ", flush=True)
    for variant in VARIANTS:
        ratios = [errors[name][variant] / errors[name]["default"] for name in names]
        print(
            variant, "validation error as a share of the default's:", f"{np.exp(np.mean(np.log(ratios))):.3f}"
        )


def run_folder(folder: Path, name: str, variant: str) -> Path:
    """The run of a variant."""
    return folder / f"{name}-{variant.replace(' ', '-')}"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("scores", "defaults"))
    parser.add_argument("--folder", type=Path, required=True, help="a folder for each data set")
    parser.add_argument("--out", type=Path, required=True, help="for runs")
    parser.add_argument("--names", nargs="+", help="also of other folders, with `scores`")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rows", type=int, default=4000, help="of training, with `defaults`")
    parser.add_argument("--test-rows", type=int, default=2000, help="with `defaults`")
    options = parser.parse_args(argv)
    for name in set(options.names or ()) - set(SETS):
        if options.command == "defaults" or "test" not in data_files(options.folder, name):
            parser.error(f"--names: expected one of {', '.join(SETS)}, or a folder with `scores`, got {name}")
    csv.field_size_limit(2**27)
    import_tensorflow()
    {"scores": scores, "defaults": defaults}[options.command](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Report blocks of the data and of the run: rows, labels, text lengths, duplicated texts; command, time and memory."""

import dataclasses
import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np

from kmha.errors import format_names
from training.cli.parser import table_flags
from training.config.config import FitConfig, flatten, settings
from training.config.defaults import resolve_config
from training.io.examples import Subset
from training.reporting import figures
from training.reporting.blocks import Block, Code, Note, Table, format_percent
from training.reporting.matplotlib_style import can_draw
from training.reporting.report_data import ReportData, row_location, truncate

MAX_LABELS, MAX_TEXTS = 60, 10
_COUNTS = {
    "train_rows": "training rows",
    "validation_rows": "validation rows",
    "test_rows": "test rows",
    "dropped_in_test": "rows dropped because their text is in the test rows",
    "dropped_in_validation": "training rows dropped because their text is in the validation rows",
    "repeated_train_rows": "training rows that repeat an earlier text and its label",
    "conflicting_train_rows": "training rows whose text also has another label",
    "near_copies": "training rows whose text is a near copy of another",
    "empty_texts": "rows with an empty text",
}

_STAGES = {
    "data": "reading and checking rows",
    "tokens": "tokenizing",
    "teacher": "teacher predictions",
    "training": "training",
    "judging": "calibration and evaluation",
    "baseline": "baseline",
}


def data_blocks(report_data: ReportData) -> Iterator[Block]:
    """Counts, labels and hashes."""
    summary: dict[str, Any] = report_data.metrics.get("data", {})
    if summary:
        counts = [(title, f"{summary[name]:,}") for name, title in _COUNTS.items() if name in summary]
        yield Table("Rows", ("rows", "number"), counts)
        classes = sorted(summary["class_counts"].items(), key=lambda item: -item[1])
        total = sum(count for _, count in classes)
        more = f"; the {MAX_LABELS} most frequent of {len(classes)}" if len(classes) > MAX_LABELS else ""
        rows = [(name, f"{count:,}", format_percent(count / total)) for name, count in classes[:MAX_LABELS]]
        yield Table(f"Labels of the training rows{more}", ("label", "number", "share"), rows)
        for part in ("validation", "test"):
            if only := summary[f"labels_only_in_{part}"]:
                names = format_names(f"{name} ({rows})" for name, rows in only.items())
                yield Note(f"Labels that only {part} rows have, counted as errors: {names}.")
    origins = report_data.details.get("data")
    if isinstance(origins, dict):
        names = ((part, str(each.get("name")), each.get("sha256")) for part, each in origins.items())
        rows = [(part, name, str(digest or "–")) for part, name, digest in names]
        yield Table("Files", ("part", "file", "SHA-256"), rows, wrapped=frozenset((1, 2)))


def length_blocks(report_data: ReportData) -> Iterator[Block]:
    """Text lengths in tokens, and how many texts were truncated."""
    lengths = {name: each for name, each in report_data.lengths.items() if len(each)}
    if lengths and can_draw():
        unit = "a window" if report_data.kind in ("tag", "masked-lm") else "a text"
        yield figures.length_histogram(lengths, report_data.max_tokens, unit)
    rows = []
    for name, counts in report_data.metrics.get("tokens", {}).items():
        long = next((k for k in ("truncated_rows", "windowed_rows", "cut_rows") if k in counts), None)
        texts = max(1, counts["rows"])
        unknown = format_percent(counts["unknown_tokens"] / max(1, counts["tokens"]))
        shortened = "" if long is None else f"{counts[long]:,} ({format_percent(counts[long] / texts)})"
        rows.append((name, f"{counts['rows']:,}", f"{counts['tokens'] / texts:.1f}", unknown, shortened))
    if rows:
        titles = {"tag": "read in several windows", "masked-lm": "split into pieces"}
        title = titles.get(report_data.kind, "truncated")
        caption = (
            "Tokens of all texts, including rows that were dropped or held out; the model reads at most"
            f" {report_data.max_tokens} at once"
        )
        yield Table(caption, ("part", "texts", "tokens per text", "unknown tokens", title), rows)


def duplicate_blocks(report_data: ReportData) -> Iterator[Block]:
    """Texts that several training rows have, those with different labels first."""
    if report_data.train is None or report_data.kind == "masked-lm":
        return
    order, starts, sizes, conflicts = _duplicates(report_data.train)
    if not len(starts):
        yield Note("No text appears twice in the training rows.")
        return
    yield Note(
        f"{len(starts):,} texts appear {sizes.sum():,} times in the training rows; {conflicts.sum():,} of them have"
        " different labels. Texts are compared without white space at their ends."
    )
    for caption, chosen in (("Texts with different labels", conflicts), ("Most repeated texts", ~conflicts)):
        places = np.flatnonzero(chosen)
        groups = [order[starts[each] : starts[each] + sizes[each]] for each in places[:MAX_TEXTS]]
        more = f", {MAX_TEXTS} of {len(places):,}" if len(places) > MAX_TEXTS else ""
        rows = [_duplicate_cells(report_data.train, group) for group in groups]
        columns = ("text", "rows", "labels", "first location")
        yield Table(f"{caption}{more}", columns, rows, frozenset((0,)), frozenset((2,)))


def _duplicates(train: Subset) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Finds the texts of several rows, most frequent first.

    The results are the rows, int64, grouped by text; of each repeated text the index of its first row in them and its
    number of rows, int64, and whether these have different labels, bool.
    """
    digests, labels = train.examples.digests[train.rows], train.examples.label_digests()[train.rows]
    order = np.argsort(digests, kind="stable")
    new = np.concatenate([[True], np.diff(digests[order]) != 0]) if len(order) else np.zeros(0, np.bool_)
    starts = np.flatnonzero(new)
    sizes = np.diff(starts, append=len(order))
    differs = labels[order] != np.repeat(labels[order][starts], sizes)
    conflicts = np.add.reduceat(differs, starts) > 0 if len(order) else new
    repeated = np.flatnonzero(sizes > 1)
    repeated = repeated[np.argsort(-sizes[repeated], kind="stable")]
    return train.rows[order], starts[repeated], sizes[repeated], conflicts[repeated]


def _duplicate_cells(train: Subset, rows: np.ndarray) -> tuple[str, ...]:
    """Text, number of rows, labels with their counts, and first location of the rows of one text."""
    fields = range(len(train.examples.texts))
    text = " · ".join(truncate(train.examples.read_texts(rows[:1], field)[0]) for field in fields)
    ids, counts = train.examples.local_labels(rows)
    ends = np.cumsum(counts)
    sets: dict[str, int] = {}
    for first, end in zip(ends - counts, ends, strict=True):
        names = truncate(" ".join(train.examples.label_names[each] for each in ids[first:end])) or "–"
        sets[names] = sets.get(names, 0) + 1
    labels = ", ".join(f"{name} ×{count}" if len(sets) > 1 else name for name, count in sets.items())
    return text, str(len(rows)), labels, row_location(train, int(rows[0]))


def rerun_command(
    config: FitConfig,
    in_memory: bool = False,
    changes: dict[str, dict[str, Any]] | None = None,
    out: str = "runs/again",
) -> str:
    """The command that trains a run again, of rows in memory the call; settings that differ from their defaults.

    `changes` are other settings, by section and name.
    """
    config = dataclasses.replace(config, out=None, overwrite=False, resume=False, json=False)
    defaults = FitConfig(task=config.task)
    # A pretrained encoder changes some defaults, so all of its settings are listed.
    defaults = defaults if config.encoder.pretrained else resolve_config(defaults)
    task = {} if config.task == FitConfig().task else {"task": config.task}
    given: dict[str, Any] = task | _non_defaults(settings(config), settings(defaults))
    for section, values in (changes or {}).items():
        given[section] = given.get(section, {}) | values
    if in_memory:
        keywords = {name.replace(".", "__"): value for name, value in flatten(given).items()}
        parts = {
            "data__train": "data",
            "data__validation": "validation=validation",
            "data__test": "test=test",
        }
        rows = [shown for name, shown in parts.items() if keywords.pop(name, None)]
        return f"train({', '.join([*rows, *(f'{name}={value!r}' for name, value in keywords.items())])})"
    flags = table_flags(given, FitConfig, "settings")
    return shlex.join(["python", "-m", "training.fit", *flags, "--out", out])


def _non_defaults(table: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in table.items():
        if isinstance(value, dict):
            value = _non_defaults(value, defaults[name])
        if value != defaults.get(name) and value != {}:
            found[name] = value
    return found


def reproducibility_blocks(report_data: ReportData) -> Iterator[Block]:
    """The command, its time and memory, and the versions."""
    trained = report_data.details.get("trained")
    if isinstance(trained, dict):
        yield Note(f"Trained on {trained.get('date')}.")
    if report_data.command:
        yield Note("This command trains the run again on the same rows (compare the hashes above):")
        yield Code(report_data.command)
    metrics = report_data.metrics
    cost: dict[str, Any] = metrics.get("cost", {})
    if cost:
        seconds = {title: cost["seconds"].get(name) for name, title in _STAGES.items()}
        seconds["total"] = metrics.get("seconds")
        rows = [(title, _duration(value)) for title, value in seconds.items() if value is not None]
        yield Table("Time", ("stage", "time"), rows)
        rows = [("peak memory of the process", _format_size(cost["peak_memory_bytes"]))]
        devices = cost.get("devices", {})
        rows += [(f"peak memory of {name}", _format_size(size)) for name, size in devices.items()]
        rows += [("processor cores", str(cost["cores"])), ("number of weights", f"{cost['weights']:,}")]
        by_part = cost.get("bytes_by_part", {})
        rows += [(f"weights of the {part}", _format_size(size)) for part, size in by_part.items()]
        rows += [(name, _format_size(size)) for name, size in report_data.files.items()]
        yield Table("Memory and size", ("item", "size"), rows)
    if report_data.versions:
        versions = ", ".join(f"{name} {version}" for name, version in report_data.versions.items())
        yield Note(f"Versions: {versions}.")
    yield Note("metrics.json has all numbers, config.toml all settings, bundle.json all hashes.")


def _format_size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

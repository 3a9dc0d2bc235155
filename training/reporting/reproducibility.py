"""Report blocks of the command that trains a run again, its time, memory and package versions."""

import dataclasses
import shlex
from collections.abc import Iterator
from typing import Any

from training.cli.parser import table_flags
from training.config.config import FitConfig, settings
from training.config.defaults import resolve_config
from training.reporting.blocks import Block, Code, Note, Table
from training.reporting.report_data import ReportData

_STAGES = {
    "data": "reading and checking rows",
    "tokens": "tokenizing",
    "teacher": "teacher predictions",
    "training": "training",
    "judging": "calibration and evaluation",
    "baseline": "baseline",
}


def rerun_command(config: FitConfig) -> str:
    """The command that trains a run again; settings that differ from their defaults are flags."""
    config = dataclasses.replace(config, out=None, overwrite=False, resume=False)
    defaults = FitConfig(task=config.task)
    # A pretrained encoder changes some defaults, so all of its settings are listed.
    defaults = defaults if config.encoder.pretrained else resolve_config(defaults)
    task = {} if config.task == FitConfig().task else {"task": config.task}
    flags = table_flags(task | _non_defaults(settings(config), settings(defaults)), FitConfig, "settings")
    return shlex.join(["python", "-m", "training.fit", *flags, "--out", "runs/again"])


def _non_defaults(table: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in table.items():
        if isinstance(value, dict):
            value = _non_defaults(value, defaults[name])
        if value != defaults.get(name) and value != {}:
            found[name] = value
    return found


def reproducibility_blocks(report_data: ReportData) -> Iterator[Block | None]:
    """The command, its time and memory, and the versions."""
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
        rows = [("peak memory of the process", _megabytes(cost["peak_memory_bytes"]))]
        rows += [
            (f"peak memory of {name}", _megabytes(size)) for name, size in cost.get("devices", {}).items()
        ]
        rows += [("processor cores", str(cost["cores"])), ("weights", f"{cost['weights']:,}")]
        rows += [(name, _megabytes(size)) for name, size in report_data.files.items()]
        yield Table("Memory and size", ("item", "size"), rows)
    if report_data.versions:
        versions = ", ".join(f"{name} {version}" for name, version in report_data.versions.items())
        yield Note(f"Versions: {versions}.")
    yield Note("metrics.json has all numbers, config.toml all settings, bundle.json all hashes.")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

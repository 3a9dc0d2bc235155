"""How the run was made and can be made again, and what it cost."""

import dataclasses
import shlex
from collections.abc import Iterator
from typing import Any

from training.cli.toml_file import table_flags
from training.config.config import FitConfig, settings
from training.config.defaults import resolve_task_defaults
from training.reporting.blocks import Block, Code, Note, Table
from training.reporting.report_data import ReportData

_STAGES = {
    "data": "reading and checking rows",
    "tokens": "cutting texts into tokens",
    "teacher": "asking the teacher",
    "training": "training",
    "judging": "calibrating and judging",
    "baseline": "the baseline",
}


def rerun_command(config: FitConfig) -> str:
    """The command that makes a run again: what is not as usual, as flags.

    Args:
        config: Its settings.
    """
    config = dataclasses.replace(config, out=None, overwrite=False, resume=False)
    defaults = FitConfig(task=config.task)
    # What an encoder starts from decides some settings: then all are named.
    defaults = defaults if config.encoder.pretrained else resolve_task_defaults(defaults)
    task = {} if config.task == FitConfig().task else {"task": config.task}
    flags = table_flags(task | _others(settings(config), settings(defaults)), FitConfig, "settings")
    return shlex.join(["python", "-m", "training.fit", *flags, "--out", "runs/again"])


def _others(table: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """What of a table is other than usual."""
    found = {}
    for name, value in table.items():
        if isinstance(value, dict):
            value = _others(value, defaults[name])
        if value != defaults.get(name) and value != {}:
            found[name] = value
    return found


def making(report_data: ReportData) -> Iterator[Block | None]:
    """The command, what it cost, and the versions."""
    if report_data.command:
        yield Note("This makes the run again, with the same rows (compare the hashes above):")
        yield Code(report_data.command)
    cost: dict[str, Any] = report_data.metrics.get("cost", {})
    if cost:
        rows = [
            (what, _duration(cost["seconds"][name]))
            for name, what in _STAGES.items()
            if name in cost["seconds"]
        ]
        if "seconds" in report_data.metrics:
            rows.append(("all together", _duration(report_data.metrics["seconds"])))
        yield Table("Time", ("what", "time"), rows)
        yield Table("Memory and size", ("what", "size"), _sizes(report_data, cost))
    if report_data.versions:
        yield Note(
            "Made with "
            + ", ".join(f"{name} {version}" for name, version in report_data.versions.items())
            + "."
        )
    yield Note("metrics.json has every figure, config.toml every setting, bundle.json every hash.")


def _sizes(report_data: ReportData, cost: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("most memory of the process", _megabytes(cost["peak_memory_bytes"]))]
    rows += [(f"most memory of {name}", _megabytes(size)) for name, size in cost.get("devices", {}).items()]
    rows.append(("processor cores", str(cost["cores"])))
    rows.append(("weights", f"{cost['weights']:,}"))
    rows += [(name, _megabytes(size)) for name, size in report_data.files.items()]
    return rows


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"

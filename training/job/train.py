"""Training from Python: `train`."""

import contextlib
import dataclasses
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kmha.errors import InputError
from training.cli.exceptions import Interrupted
from training.cli.parser import parse, table_flags, toml_flags
from training.config.config import FitConfig, settings
from training.data.in_memory import object_source
from training.distributed.tf_config import TF_CONFIG, parse_tf_config
from training.job.run import fit
from training.runs.run_folder import REPORT, resolve_resume

if TYPE_CHECKING:
    from kmha.bundle.bundle import Bundle


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """The result of `train`."""

    bundle: "Bundle"
    metrics: dict[str, Any]  # the values of metrics.json
    report: str | None  # report.html, a self-contained page; None without one


def train(
    data: Any = None,
    task: str | None = None,
    validation: Any = None,
    test: Any = None,
    out: Path | str | None = None,
    config: FitConfig | Path | str | None = None,
    **keywords: Any,
) -> TrainingResult:
    """Trains a model, as `python -m training.fit` does, and returns it.

    Progress is logged by the logger `kmha` to stderr.

    Args:
        data: Training rows: a path; a pandas or Polars data frame, a PyArrow table, a Hugging Face data set or a
            dictionary of columns; (texts, labels); a list, an iterable or a `tf.data.Dataset` of rows (see
            `training.data.in_memory`). Columns are named as in files. None: those of the settings, else the sample.
        task: "classify", "match", "tag" or "masked-lm". None: as in `config`, else "classify".
        validation: Validation rows, in any of these forms. None: a fraction of the training rows is held out.
        test: Test rows, in any of these forms.
        out: The run folder to write. None: nothing is left on disk.
        config: Settings: a `FitConfig` or a TOML file.
        **keywords: More settings, which override those of `config`. The names are those of the flags with `_` for `-`
            and `__` for the dot: `encoder__size="tiny"` is `--encoder.size tiny`. None: the default.

    Raises:
        InputError: Settings or rows cannot be used; the messages name the flags.
        KeyboardInterrupt: A signal stopped the run; with `out` there may be a checkpoint for `resume=True`.
        TrainingDiverged: The loss was not finite.
        CheckpointWriteError: A checkpoint could not be written.
    """
    cluster = parse_tf_config(os.environ.get(TF_CONFIG))
    if cluster is not None and cluster.count > 1:
        raise InputError(
            f"{TF_CONFIG}: expected one worker, got {cluster.count}; use python -m training.fit for several"
        )
    given = resolve_keywords(config, {"task": task, **keywords})
    paths, sources = {}, {}
    for part, rows in (("train", data), ("validation", validation), ("test", test)):
        if isinstance(rows, str | Path):
            paths[part] = Path(rows)
        elif rows is not None:
            sources[part] = object_source(rows, part, given.task)
            paths[part] = Path(sources[part].name)
    given = dataclasses.replace(given, data=dataclasses.replace(given.data, **paths))
    with contextlib.ExitStack() as stack:
        if out is None:
            out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kmha-"))) / "run"
        given = resolve_resume(dataclasses.replace(given, out=Path(out)))
        try:
            metrics = fit(given, sources)
        except Interrupted as stop:
            raise KeyboardInterrupt(str(stop)) from None
        assert metrics is not None
        from kmha.bundle.bundle import Bundle

        report = given.out_folder() / REPORT
        return TrainingResult(
            Bundle.load(given.out_folder()), metrics, report.read_text("utf-8") if report.exists() else None
        )


def resolve_keywords(config: FitConfig | Path | str | None, keywords: dict[str, Any]) -> FitConfig:
    """Settings in keywords such as `encoder__size`, which override those of a config; raises InputError."""
    table: dict[str, Any] = {}
    for name, value in keywords.items():
        *sections, last = name.split("__")
        place = table
        for section in sections:
            place = place.setdefault(section, {})
        if value is not None:
            place[last] = _toml_value(value)
    if isinstance(config, FitConfig):
        flags = table_flags(settings(config), FitConfig, "config")
    else:
        flags = [] if config is None else toml_flags(Path(config), FitConfig)
    return parse(FitConfig, [*flags, *table_flags(table, FitConfig, "settings")], "train")


def _toml_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    # NumPy's numbers, as searches of hyperparameters draw them.
    return value.item() if hasattr(value, "item") else value

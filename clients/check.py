"""python -m clients.check [RUN --data FILE] [--rows 200] [--allow-missing] [--folder build/clients]

Exports a run in every format, runs each export in third-party programs and compares the predictions: a table
on stdout. Exit status 1 if a client's predictions differ from the run's, or if a client could not run.
"""  # noqa: D415

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from export.checks.exportable import check_single_texts
from kmha.errors import InputError
from training.cli.bounds import Count
from training.cli.parser import FAILED, parse, run

logger = logging.getLogger("kmha")

Client = Literal["browser", "mediapipe", "triton", "grpc"]
CLIENTS: tuple[Client, ...] = ("browser", "mediapipe", "triton", "grpc")
FILL = Path(__file__).resolve().parents[1] / "examples" / "browser" / "fill.py"


@dataclass(frozen=True)
class CheckConfig:
    """Runs an exported run in third-party programs and compares the predictions."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Run folder of training.fit; default: train a small English run on generated rows."""
    data: Path | None = None
    """Labeled rows to predict: .csv, .tsv or .jsonl, also .gz; required with RUN."""
    rows: Count = 200
    """Number of rows to predict, spread evenly over the file."""
    clients: tuple[Client, ...] = CLIENTS
    """Clients to run."""
    allow_missing: bool = False
    """Report a client that cannot run on this machine, but do not fail."""
    folder: Path = Path("build/clients")
    """Folder for the exports, the environments and the small run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _check(parse(CheckConfig, argv, "python -m clients.check")))


def _check(config: CheckConfig) -> int:
    if (config.run is None) != (config.data is None):
        present = "RUN" if config.data is None else "--data"
        raise InputError(f"expected RUN and --data, or neither, got {present} alone")
    if config.run is not None:
        check_single_texts(config.run, "clients.check")
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from clients.comparison import any_failed, result_table
    from clients.sample_run import train_sample_run
    from kmha.bundle.bundle import Bundle

    folder = config.folder.resolve()
    if config.run is None or config.data is None:
        run_folder, data = train_sample_run(folder / "run")
    else:
        run_folder, data = config.run, config.data
    bundle = Bundle.load(run_folder)
    exported = _export(bundle, sample_texts(bundle, data, config.rows), folder)
    results = []
    for result in _results(exported, config.clients):
        logger.info(f"{result.client}: {result.problem or 'agrees'}")
        results.append(result)
    print(result_table(results))
    return FAILED if any_failed(results, config.allow_missing) else 0


def _export(bundle, texts: Sequence[str], folder: Path) -> Any:
    from clients.exported_run import export_run
    from clients.programs import load_program

    return export_run(bundle, texts, folder, load_program(FILL).fill)


def _results(exported, clients: Sequence[str]) -> Iterator[Any]:
    from clients.browser import browser_results
    from clients.mediapipe_tasks import mediapipe_result
    from clients.model_servers import grpc_result, triton_result

    if "mediapipe" in clients:
        yield mediapipe_result(exported)
    if "browser" in clients:
        yield from browser_results(exported)
    if "triton" in clients:
        yield triton_result(exported)
    if "grpc" in clients:
        yield grpc_result(exported)


def sample_texts(bundle, data: Path, rows: int) -> list[str]:
    """At most `rows` texts of a file, spread evenly over it.

    Raises:
        InputError: The file cannot be used.
    """
    import numpy as np

    from training.io.tables import read_rows

    column = bundle.details.get("columns", {}).get("text", "text")
    texts = [str(row.values[column]) for row in read_rows(data, [column])]
    chosen = np.linspace(0, len(texts) - 1, min(rows, len(texts))).round().astype(int)
    return [texts[index] for index in chosen]


if __name__ == "__main__":
    sys.exit(main())

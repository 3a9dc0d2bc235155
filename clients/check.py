"""python -m clients.check [RUN --data FILE] [--rows 200] [--allow-missing] [--folder build/clients]

Exports a run in every format and asks it through programs that other people wrote: a table on stdout; exit 1 where one
answers other than the run, or could not be run.
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
    """Asks an exported run through programs that other people wrote."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Run folder that training.fit wrote; without one, a small English one is trained on rows made up here."""
    data: Path | None = None
    """Labelled rows to answer: .csv, .tsv or .jsonl, also .gz; goes with RUN."""
    rows: Count = 200
    """Answer this many of them, spread over the file."""
    clients: tuple[Client, ...] = CLIENTS
    """Which to ask."""
    allow_missing: bool = False
    """A client that cannot be had here is told, and no failure."""
    folder: Path = Path("build/clients")
    """Holds the exports, the environments and the small run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _check(parse(CheckConfig, argv, "python -m clients.check")))


def _check(config: CheckConfig) -> int:
    if (config.run is None) != (config.data is None):
        given = "RUN" if config.data is None else "--data"
        raise InputError(f"expected RUN and --data, or neither, got {given} alone")
    if config.run is not None:
        check_single_texts(config.run, "clients.check")
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from clients.outcome import failed, table
    from clients.small_run import small_run
    from kmha.bundle.bundle import Bundle

    folder = config.folder.resolve()
    if config.run is None or config.data is None:
        run_folder, data = small_run(folder / "run")
    else:
        run_folder, data = config.run, config.data
    bundle = Bundle.load(run_folder)
    texts = some_texts(bundle, data, config.rows)
    material = _exported(bundle, texts, folder)
    outcomes = []
    for outcome in _outcomes(material, config.clients):
        logger.info(f"{outcome.client}: {outcome.problem or 'agrees'}")
        outcomes.append(outcome)
    print(table(outcomes))
    return FAILED if failed(outcomes, config.allow_missing) else 0


def _exported(bundle, texts: Sequence[str], folder: Path) -> Any:
    from clients.material import prepared
    from clients.programs import loaded_program

    return prepared(bundle, texts, folder, loaded_program(FILL).fill)


def _outcomes(material, clients: Sequence[str]) -> Iterator[Any]:
    from clients import browser, grpc_stubs, mediapipe_python, triton

    if "mediapipe" in clients:
        yield mediapipe_python.outcome(material)
    if "browser" in clients:
        yield from browser.outcomes(material)
    if "triton" in clients:
        yield triton.outcome(material)
    if "grpc" in clients:
        yield grpc_stubs.outcome(material)


def some_texts(bundle, data: Path, rows: int) -> list[str]:
    """Texts of a file, evenly spread over it.

    Args:
        bundle: Says what the columns were called in training.
        data: The file.
        rows: Most texts.

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

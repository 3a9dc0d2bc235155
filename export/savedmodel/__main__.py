"""python -m export.savedmodel RUN FOLDER

Exports a run as a SavedModel for TensorFlow Serving: FOLDER/<next version>/, and the server's settings in FOLDER.
docs/how-to/serving.md describes how to serve and query it.
"""  # noqa: D415

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from export.checks import check_exportable
from training.cli.parser import parse, run


@dataclass(frozen=True)
class SavedModelConfig:
    """Exports a run as a SavedModel for TensorFlow Serving."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Folder of the served model; a new version is added to it."""
    xla: bool = False
    """Add a signature predict_ids_xla, compiled once for each batch size and length."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _export(parse(SavedModelConfig, argv, "python -m export.savedmodel")))


def _export(config: SavedModelConfig) -> int:
    check_exportable(config.run)
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from export.savedmodel.write import write_savedmodel
    from kmha.bundle.bundle import Bundle

    print(write_savedmodel(Bundle.load(config.run), config.out, config.xla))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Workers of the benchmark: how they are started, and how their models get into the system's cache."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from training.io.json_subprocess import WorkerProcess

_ROOT = Path(__file__).resolve().parent.parent.parent


def start_worker(kind: str, path: str, threads: int, sizes: dict[str, Any] | None = None) -> WorkerProcess:
    """Starts a worker for a model.

    Args:
        kind: As in `export.benchmark.timed`.
        path: Of the model.
        threads: That it may compute with.
        sizes: Of an encoder, for kinds that build one.
    """
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    # TensorFlow and OpenMP take their threads from here, the other runtimes by argument.
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    return WorkerProcess(
        [
            sys.executable,
            "-m",
            "export.benchmark.worker",
            kind,
            path,
            str(threads),
            json.dumps(sizes or {}),
        ],
        {
            **dict.fromkeys(names, str(threads)),
            "PYTHONPATH": os.pathsep.join(paths),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
    )


def read_through(path: Path) -> None:
    """Reads all files at a path once, so that every model is loaded from the system's cache."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with open(file, "rb") as stream:
                while stream.read(1 << 20):
                    pass

"""python -m training.launch [--workers N] [--restarts N] -- FLAGS OF training.fit

Trains with several processes on this machine: starts training.fit for each worker with its TF_CONFIG, and stops all
workers when one fails. Shows stdout of the chief worker, and stderr of all workers with their numbers.
"""  # noqa: D415

import dataclasses
import logging
import sys
from collections.abc import Sequence
from typing import Annotated

from kmha.errors import InputError
from training.cli.bounds import Count, Range
from training.cli.parser import FAILED, parse, run
from training.config.config import FitConfig
from training.distributed.local_launcher import LocalWorkers, device_environments, free_addresses
from training.runs.run_folder import can_resume

logger = logging.getLogger("kmha")

_SEPARATOR = "--"


@dataclasses.dataclass(frozen=True)
class LaunchConfig:
    """Trains with several processes on this machine; the flags of training.fit follow after --."""

    workers: Count = 2
    """Number of worker processes; the CPU cores or the GPUs are divided among them."""
    restarts: Annotated[int, Range(at_least=0)] = 0
    """How many times to restart all workers from the last checkpoint after a worker failed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    separator = words.index(_SEPARATOR) if _SEPARATOR in words else len(words)
    return run(lambda: _launch(words[:separator], words[separator + 1 :] if separator < len(words) else None))


def _launch(own: list[str], flags: list[str] | None) -> int:
    config = parse(LaunchConfig, own, "python -m training.launch")
    if flags is None:
        raise InputError("expected the flags of training.fit after --, got no --")
    # Reports wrong flags once, not in each worker.
    fit = parse(FitConfig, flags, "python -m training.fit")
    devices = device_environments(config.workers)
    for restart in range(config.restarts + 1):
        # Resumes only from a checkpoint that this command wrote.
        resumes = restart > 0 and can_resume(fit) and not fit.resume
        processes = LocalWorkers(free_addresses(config.workers), [*flags, *["--resume"] * resumes], devices)
        status = processes.run()
        if status != FAILED or processes.stopped:
            return status
        if restart < config.restarts:
            start = "from the last checkpoint" if can_resume(fit) else "anew, there is no checkpoint yet"
            logger.info(f"starts all workers again, {start} (restart {restart + 1} of {config.restarts})")
    return FAILED


if __name__ == "__main__":
    sys.exit(main())

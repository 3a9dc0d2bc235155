"""Coordination of the workers of a job; the base class serves a process that trains alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class Coordinator:
    """Coordinates the workers of a job, here a single one. All workers call the same methods in the same order."""

    index: int = 0  # 0 is the chief worker, which alone evaluates and writes files
    count: int = 1  # of workers
    strategy: Any = None  # the distribution strategy; None: the settings choose it

    @property
    def is_chief(self) -> bool:
        """Whether this is the chief worker."""
        return self.index == 0

    def broadcast(self, what: str, make: Callable[[], Any]) -> Any:
        """Returns on every worker the JSON value that the chief worker computes."""
        return make()

    def all_gather(self, what: str, value: Any) -> list[Any]:
        """Returns the JSON values of all workers, in the order of the workers."""
        return [value]

    def any_signaled(self, signals: Sequence[int], now: bool = False) -> list[int]:
        """Returns the signals that any worker received, the same on all workers; call it after each batch.

        With `now` the other workers are queried at once; otherwise about once a second.
        """
        return list(signals)

    def copy_from_chief(self, folder: Path) -> None:
        """Copies the files of a folder from the chief worker to the others."""


SINGLE_WORKER = Coordinator()

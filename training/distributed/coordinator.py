"""The protocol by which the workers of a job coordinate, and its implementation for a single process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol


class Coordinator(Protocol):
    """Coordinates the workers of a job. All workers call the same methods in the same order.

    Attributes:
        index: Index of this worker; 0 is the chief worker, which alone evaluates and writes files.
        count: Number of workers.
        strategy: The distribution strategy; None: the settings choose it.
    """

    index: int
    count: int
    strategy: Any

    @property
    def is_chief(self) -> bool:
        """Whether this is the chief worker."""
        ...

    def broadcast(self, what: str, make: Callable[[], Any]) -> Any:
        """Returns on every worker the JSON value that the chief worker computes."""
        ...

    def all_gather(self, what: str, value: Any) -> list[Any]:
        """Returns the JSON values of all workers, in the order of the workers."""
        ...

    def any_signaled(self, signals: Sequence[int], now: bool = False) -> list[int]:
        """Returns the signals that any worker received, the same on all workers; call it after each batch.

        Args:
            signals: Signals that this worker received.
            now: Whether to query the other workers now; otherwise about once a second.
        """
        ...

    def copy_from_chief(self, folder: Path) -> None:
        """Copies the files of a folder from the chief worker to the others."""
        ...


class SingleWorker:
    """The coordinator of a process that trains alone."""

    index, count, strategy, is_chief = 0, 1, None, True

    def broadcast(self, what: str, make: Callable[[], Any]) -> Any:
        """Returns the value."""
        return make()

    def all_gather(self, what: str, value: Any) -> list[Any]:
        """Returns a list of the value."""
        return [value]

    def any_signaled(self, signals: Sequence[int], now: bool = False) -> list[int]:
        """Returns the signals."""
        return list(signals)

    def copy_from_chief(self, folder: Path) -> None:
        """Does nothing."""


SINGLE_WORKER = SingleWorker()

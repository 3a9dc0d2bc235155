"""What the workers of a job ask of one another; a process that trains alone asks itself."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol


class Coordinator(Protocol):
    """The workers of a job, as one of them sees them. All call the same methods in the same order.

    Attributes:
        index: Of this worker; 0 is the chief, which alone judges and writes.
        count: How many workers there are.
        strategy: Where they compute; None leaves it to the settings.
    """

    index: int
    count: int
    strategy: Any

    @property
    def is_chief(self) -> bool:
        """Whether this worker judges and writes."""
        ...

    def broadcast(self, what: str, make: Callable[[], Any]) -> Any:
        """What the chief makes, on every worker; JSON values.

        Args:
            what: A name for it.
            make: Called on the chief alone.
        """
        ...

    def all_gather(self, what: str, value: Any) -> list[Any]:
        """What each worker has by that name, in their order; JSON values."""
        ...

    def any_signaled(self, signals: Sequence[int], now: bool = False) -> list[int]:
        """The signals by which all workers stop here, because one of them has got one; call it after each batch.

        Args:
            signals: Those that this worker has got.
            now: Asks the others now, and not only about once a second.
        """
        ...

    def copy_from_chief(self, folder: Path) -> None:
        """Makes the files of a folder those of the chief."""
        ...


class SingleWorker:
    """The crew of a process that trains alone."""

    index, count, strategy, is_chief = 0, 1, None, True

    def broadcast(self, what: str, make: Callable[[], Any]) -> Any:
        """What is made."""
        return make()

    def all_gather(self, what: str, value: Any) -> list[Any]:
        """The value."""
        return [value]

    def any_signaled(self, signals: Sequence[int], now: bool = False) -> list[int]:
        """The signals."""
        return list(signals)

    def copy_from_chief(self, folder: Path) -> None:
        """Nothing."""


SINGLE_WORKER = SingleWorker()

"""What the steps of one run share: settings, folders, workers and time measurement."""

import dataclasses
from pathlib import Path

from training.config.config import ResolvedConfig
from training.distributed.coordinator import SINGLE_WORKER, Coordinator
from training.runtime.resource_usage import Cost


@dataclasses.dataclass
class RunContext:
    """Shared state of the steps of a run.

    Attributes:
        config: All settings.
        folder: The unfinished run folder, for the checkpoint and logs.
        scratch: Temporary folder for rows and token ids.
        coordinator: The workers that train together.
        cost: Measures the time of the steps.
    """

    config: ResolvedConfig
    folder: Path
    scratch: Path
    coordinator: Coordinator = SINGLE_WORKER
    cost: Cost = dataclasses.field(default_factory=Cost)

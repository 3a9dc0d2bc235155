"""Exceptions that end a run without a model; this module does not import TensorFlow."""


class Interrupted(Exception):
    """The run received a stop signal; a checkpoint was saved."""


class TrainingDiverged(Exception):
    """The loss is NaN or infinite."""


class CheckpointWriteError(Exception):
    """A checkpoint could not be written; earlier checkpoints are unchanged."""


class WorkerLost(Exception):
    """Another worker of the job failed, so this worker cannot continue."""


class NotChief(Exception):
    """Training is finished and this worker is not the chief, which does the remaining work."""

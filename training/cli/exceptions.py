"""Ways a run can end without a model; apart from the loop, so that naming them does not import TensorFlow."""


class Interrupted(Exception):
    """The run was told to stop; a checkpoint has been written."""


class TrainingDiverged(Exception):
    """The loss is no longer a number."""


class CheckpointWriteError(Exception):
    """A checkpoint could not be written; those before it stand."""


class WorkerLost(Exception):
    """Another worker of the job is gone, so that this one cannot go on."""


class NotChief(Exception):
    """This worker has trained with the others; what is left to do the chief does."""

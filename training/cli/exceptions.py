"""Ways a run can end without a model; apart from the loop, so that naming them does not import TensorFlow."""


class Stopped(Exception):
    """The run was told to stop; a checkpoint has been written."""


class Diverged(Exception):
    """The loss is no longer a number."""


class Unwritten(Exception):
    """A checkpoint could not be written; those before it stand."""


class WorkerLost(Exception):
    """Another worker of the job is gone, so that this one cannot go on."""


class Dismissed(Exception):
    """This worker has trained with the others; what is left to do the chief does."""

"""Ways an export can end without an artefact, apart from wrong input."""


class Differs(Exception):
    """What was written does not answer like the bundle; the message is one line."""

"""Ways an export can end without an artefact, apart from wrong input."""


class CheckError(Exception):
    """What was made is not what it must be, or answers other than its bundle; the message is one line."""

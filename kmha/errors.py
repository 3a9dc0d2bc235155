"""The one error that means "your input is wrong": commands print it in one line and exit with 2."""


class InputError(ValueError):
    """Input that cannot be used.

    The message is one line. It names the file and line or the flag, what was wanted and what was given.
    """

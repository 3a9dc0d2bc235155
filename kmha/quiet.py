"""Imports TensorFlow without its startup messages."""

import contextlib
import os
import sys
from collections.abc import Callable


@contextlib.contextmanager
def _stderr_closed():
    """Redirects file descriptor 2 to the null device: C++ code writes there before it reads any log level."""
    if sys.stderr is None:  # in services without stderr
        yield
        return
    sys.stderr.flush()
    original = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(original, 2)
        os.close(original)
        os.close(null)


def import_tensorflow(start: Callable[[], object] | None = None) -> None:
    """Imports TensorFlow and Keras once, without messages; an ImportError is raised as usual.

    Commands call this before they use a model. TF_CPP_MIN_LOG_LEVEL=0 in the environment keeps the messages. `start`
    initializes TensorFlow, if this needs more than the first op; it is always called.
    """
    is_imported = sys.modules.get("tensorflow") is not None
    if is_imported or os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "0":
        if not is_imported:
            import keras  # noqa: F401
            import tensorflow  # noqa: F401
        if start is not None:
            start()
        return
    with _stderr_closed():
        import keras  # noqa: F401
        import tensorflow as tf

        # The first op starts the CPU client, which writes another message.
        (start or (lambda: tf.constant(0)))()

"""Imports TensorFlow without its start-up noise."""

import contextlib
import os
import sys
from collections.abc import Callable


@contextlib.contextmanager
def _stderr_closed():
    """Sends the process's file descriptor 2 to nowhere: the C++ side writes there before any log level counts."""
    if sys.stderr is None:  # Started without one, as services are.
        yield
        return
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def import_tensorflow(start: Callable[[], object] | None = None) -> None:
    """Imports TensorFlow and Keras quietly, once; an ImportError still comes through.

    Commands call this before they touch a model. An explicit TF_CPP_MIN_LOG_LEVEL=0 keeps the messages.

    Args:
        start: Starts TensorFlow where that takes more than its first op; always called.
    """
    known = sys.modules.get("tensorflow") is not None
    if known or os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "0":
        if not known:
            import keras  # noqa: F401
            import tensorflow  # noqa: F401
        if start is not None:
            start()
        return
    with _stderr_closed():
        import keras  # noqa: F401
        import tensorflow as tf

        # The first op starts the CPU client, which logs once more.
        (start or (lambda: tf.constant(0)))()

"""Imports TensorFlow without its startup messages."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def without_messages() -> Iterator[None]:
    """Redirects file descriptor 2 to the null device: C++ code writes there before it reads any log level.

    TF_CPP_MIN_LOG_LEVEL=0 in the environment keeps the messages.
    """
    # In services without stderr it is None.
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") == "0" or sys.stderr is None:
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
    """Imports TensorFlow and Keras once, `without_messages`; an ImportError is raised.

    Commands call this before they use a model. `start` initializes TensorFlow, if this needs more than the first op; it
    is always called.
    """
    if sys.modules.get("tensorflow") is not None:
        if start is not None:
            start()
        return
    with without_messages():
        import keras  # noqa: F401
        import tensorflow as tf

        # The first op starts the CPU client, which writes another message.
        (start or (lambda: tf.constant(0)))()

"""The settings of a classifier that reads long documents in windows, and whether they go together."""

from typing import TYPE_CHECKING

from kmha.document_windows import WindowShape
from kmha.errors import InputError

if TYPE_CHECKING:
    from training.tasks.classify.task import ClassifyTask

# Part of a window that the next one reads again, where nobody says how much: one in so many tokens.
DEFAULT_SHARE = 4


def window_shape(task: "ClassifyTask") -> WindowShape | None:
    """The windows that a task's settings describe; None: texts are read whole.

    Raises:
        InputError: They leave a window nothing of its own.
    """
    if not task.window:
        return None
    # A quarter of a very small window may be all that it has room for.
    defaults = min(task.window // DEFAULT_SHARE, task.window - 3)
    return WindowShape(task.window, defaults if task.window_overlap is None else task.window_overlap)


def check_windows(task: "ClassifyTask", max_length: int) -> None:
    """Refuses settings of windows that cannot be, or that nothing would come of.

    Args:
        task: The settings.
        max_length: Tokens of the longest text.

    Raises:
        InputError: Names the flag.
    """
    if not task.window:
        for flag, given in (
            ("window-overlap", task.window_overlap),
            ("window-pooling", task.window_pooling if task.window_pooling != "mean" else None),
        ):
            if given is not None:
                raise InputError(f"--classify.{flag}: expected --classify.window beside it, got none")
        return
    if task.window < 3:
        raise InputError(f"--classify.window: expected 3 or more, or 0 for none, got {task.window}")
    if task.window > max_length:
        raise InputError(
            f"--classify.window: expected at most the {max_length} tokens of --text.max-length, got {task.window}"
        )
    room = task.window - 2
    if task.window_overlap is not None and task.window_overlap >= room:
        raise InputError(
            f"--classify.window-overlap: expected less than the {room} tokens that a window of {task.window} reads of a"
            f" text, got {task.window_overlap}"
        )

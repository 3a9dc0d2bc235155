"""Training and evaluation of models: command modules and packages, one concept each.

`train` trains from Python. It is imported on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.job.train import train as train

__all__ = ["train"]


def __getattr__(name: str) -> Any:
    if name == "train":
        from training.job.train import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

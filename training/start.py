"""A trained model that a training goes on with, where it does not begin with a new one."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Start:
    """What stands in place of a new model.

    Attributes:
        preprocessor: Cuts texts for the model.
        labels: Names in the order of its outputs.
        build: Makes the model, under the dtype policy and in the strategy's scope that it is called in.
        details: JSON values that its bundle keeps, beside those of every fit.
    """

    preprocessor: Any
    labels: list[str]
    build: Callable[[], Any]
    details: dict[str, Any]

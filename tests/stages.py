"""Parameters of tests, divided into the two stages of docs/decisions/015-tests-in-two-stages.md."""

from collections.abc import Iterable
from typing import Any

import pytest


def with_stages(cases: Iterable, first: Iterable) -> list[Any]:
    """All cases as parameters; those that are not in `first` are in the second stage. Tuples are several values."""
    first = set(first)
    return [case if case in first else _second(case) for case in cases]


def _second(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.second)

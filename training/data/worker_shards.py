"""Assigns the rows of each batch to workers: every row to one worker, lists of candidates whole."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from training.data.pair_batches import list_homes


def shares(source: Any, plans: Sequence[Any], index: int, count: int) -> list[Any]:
    """Returns the plans of worker `index` of `count`, which then reads only its own rows from disk.

    Workers can have different numbers of rows of a batch, because sums are weighted by row. The lists of `source`, if
    any, stay whole.
    """
    return [_share(getattr(source, "lists", None), plan, index, count) for plan in plans]


def _share(lists: np.ndarray | None, plan: Any, index: int, count: int) -> Any:
    if lists is None:
        rows = plan.rows[index::count]
    else:
        rows = plan.rows[list_homes(lists[plan.rows], count) == index]
    return dataclasses.replace(plan, rows=rows, capacity=max(-(-plan.capacity // count), len(rows)))

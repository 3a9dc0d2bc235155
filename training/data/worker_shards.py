"""Which rows of a batch are a worker's own: every row is one worker's, and lists of candidates stay whole."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from training.data.pair_batches import list_homes


def shares(source: Any, plans: Sequence[Any], index: int, count: int) -> list[Any]:
    """The plans of a worker, which then reads only its own rows from disk.

    Workers need not have equally many rows of a batch: what they add up is weighted by row.

    Args:
        source: Whose plans they are; may have `lists`.
        plans: Of batches of all workers together.
        index: Of the worker.
        count: Of workers.
    """
    return [_share(getattr(source, "lists", None), plan, index, count) for plan in plans]


def _share(lists: np.ndarray | None, plan: Any, index: int, count: int) -> Any:
    if lists is None:
        rows = plan.rows[index::count]
    else:
        rows = plan.rows[list_homes(lists[plan.rows], count) == index]
    return dataclasses.replace(plan, rows=rows, capacity=max(-(-plan.capacity // count), len(rows)))

"""A model without its weakest heads and feed-forward rows."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from training.pruning.blocks import Group, groups_of
from training.pruning.importance import Importance
from training.pruning.sliced import sliced
from training.pruning.weakest import kept_parts

Counts = dict[str, int]


@dataclasses.dataclass(frozen=True)
class Cut:
    """A model that has lost parts.

    Attributes:
        build: Makes it, under the dtype policy that it is called under.
        heads: How many it has, "before" and "after".
        rows: The same of feed-forward rows.
    """

    build: Callable[[], Any]
    heads: Counts
    rows: Counts


def cut_model(model: Any, groups: Sequence[Group], found: Sequence[Importance], share: float) -> Cut:
    """A model without a share of its heads and of its feed-forward rows.

    Args:
        model: A built one.
        groups: Its blocks.
        found: What the parts of each block are worth, in the order of the groups' blocks.
        share: In (0, 1).
    """
    heads, head_counts = _kept(groups, [each.heads for each in found], share)
    rows, row_counts = _kept(groups, [each.rows for each in found], share)
    return Cut(sliced(model, groups, heads, rows), head_counts, row_counts)


def _kept(groups: Sequence[Group], worth: Sequence[Any], share: float) -> tuple[Any, Counts]:
    rest = iter(worth)
    kept = kept_parts([[next(rest) for _ in group.blocks] for group in groups], share)
    after = sum(len(block) for group in kept for block in group)
    return kept, {"before": sum(map(len, worth)), "after": after}


def weight_counts(model: Any) -> tuple[int, int]:
    """How many weights a model has, and how many of them its blocks have."""
    layers = [block.layer for group in groups_of(model) for block in group.blocks]
    return _numbers(model), sum(map(_numbers, layers))


def _numbers(layer: Any) -> int:
    # Random generators are no weights.
    return sum(math.prod(each.shape) for each in layer.weights if "seed_generator" not in each.path)

"""Padded batches of text pairs, grouped by both lengths; a list of candidates can be in one batch."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from kmha.features import TextInputs
from training.config.config import TrainSection
from training.data.length_buckets import bucket_lengths, filled_up, list_homes
from training.data.text_batches import Source, padded_ids
from training.io.ragged_store import RaggedStore

FILLER_QUERY = -1
CELLS_A_BUCKET = 4


@dataclasses.dataclass(frozen=True)
class PairPlan:
    """The rows of one batch and the padded length of each input."""

    rows: np.ndarray  # int64 [B]
    lengths: tuple[int, ...]
    capacity: int  # rows of a full batch of these lengths

    @property
    def row_tokens(self) -> int:
        """Padded tokens of a row."""
        return sum(self.lengths)


@dataclasses.dataclass(eq=False)
class PairSource(Source):
    """Batches of one part of the pairs."""

    inputs: Sequence[TextInputs]
    tokens: Sequence[RaggedStore]  # for each input, the token ids of all rows of an example set
    rows: np.ndarray  # row numbers of the first and second text of each pair, int64 [R, 2]
    targets: np.ndarray  # value, query number and further loss targets, float32 [R, 2 or more]
    weights: np.ndarray  # float32 [R]
    lists: np.ndarray | None = (
        None  # list id of each row [R]; rows of a list stay in one batch and one replica
    )
    full_shapes: bool = False  # as in `BatchSource`; otherwise batches are padded to their longest rows
    divisor: int = 1  # number of replicas that share a batch

    def __post_init__(self):
        self.feature_names = [name for given in self.inputs for name in (given.ids, given.mask)]
        columns = [
            ragged_store.lengths[self.rows[:, given.text]]
            for given, ragged_store in zip(self.inputs, self.tokens, strict=True)
        ]
        self.input_lengths = np.stack(columns, axis=1).astype(np.int64)  # [R, inputs]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row in all inputs together, int64 [R]."""
        return self.input_lengths.sum(axis=1)

    @property
    def text_lengths(self) -> np.ndarray:
        """Tokens of each text at the first granularity, int64 [2 R]."""
        return self.input_lengths[:, :2].ravel()

    def buckets(
        self, others: Sequence["PairSource"], most: int = TrainSection.buckets
    ) -> list[tuple[int, ...]]:
        """Padded lengths for the rows of this and other sources, in ascending order."""
        # Without XLA, no shape is compiled, so more combinations are free.
        most = most if self.full_shapes else CELLS_A_BUCKET * most
        return length_cells(np.concatenate([each.input_lengths for each in (self, *others)]), most)

    def plans(
        self,
        buckets: Sequence[tuple[int, ...]],
        batch_tokens: int,
        most_rows: int,
        rng: np.random.Generator | None,
    ) -> list[PairPlan]:
        """See `Source`; a list stays in one batch, even if it exceeds the limits."""
        units = _units(self.lists, len(self.rows), rng)
        sizes = [len(unit) for unit in units]
        starts = np.cumsum([0, *sizes[:-1]])
        lengths = np.maximum.reduceat(self.input_lengths[np.concatenate(units)], starts, axis=0)
        cells = np.array(buckets)
        homes = _homes(lengths, cells)
        if homes.max() == len(cells):
            cells = np.concatenate([cells, [np.maximum(lengths.max(axis=0), cells.max(axis=0))]])
        waiting = [np.flatnonzero(homes == index).tolist() for index in range(len(cells))]
        plans: list[PairPlan] = []
        for index, cell in enumerate(cells):
            capacity = max(1, min(most_rows, batch_tokens // int(cell.sum())))
            batches, rest = _packed(waiting[index], sizes, capacity)
            # Rows that do not fill a batch move to the next bucket that fits them.
            larger = np.flatnonzero(np.all(cells[index + 1 :] >= cell, axis=1))
            if rest and len(larger):
                waiting[index + 1 + larger[0]][:0] = rest
            elif rest:
                batches.append(rest)
            plans += [self._plan([units[unit] for unit in batch], cell, capacity) for batch in batches]
        if rng is not None:
            plans = [plans[i] for i in rng.permutation(len(plans))]
        return plans

    def batch_plan(self, rows: np.ndarray) -> PairPlan:
        """See `Source`."""
        return self._plan([rows], self.input_lengths[rows].max(axis=0), len(rows))

    def _plan(self, units: list[np.ndarray], cell: np.ndarray, capacity: int) -> PairPlan:
        rows = np.concatenate(units)
        longest = self.input_lengths[rows].max(axis=0)
        lengths = np.maximum(longest, cell) if self.full_shapes else longest
        return PairPlan(rows, tuple(lengths.tolist()), max(capacity, len(rows)))

    def batch(self, plan: PairPlan) -> dict:
        """Returns one batch as NumPy arrays: "features", "targets", "weights"."""
        places, count = self._places(plan)
        features = {}
        for given, ragged_store, length in zip(self.inputs, self.tokens, plan.lengths, strict=True):
            flat, lengths = ragged_store.gather(self.rows[plan.rows, given.text])
            ids, mask = padded_ids(flat, lengths, len(lengths), length, given.part.padding_id)
            features[given.ids] = _spread(ids, places, count, given.part.padding_id)
            features[given.mask] = _spread(mask, places, count, 0)
        targets = _spread(self.targets[plan.rows], places, count, 0)
        filled = np.ones(count, bool)
        filled[places] = False
        targets[filled, 1] = FILLER_QUERY
        return {
            "features": features,
            "targets": targets,
            "weights": _spread(self.weights[plan.rows], places, count, 0),
        }

    def _places(self, plan: PairPlan) -> tuple[np.ndarray, int]:
        """Position of each row of a plan in its batch, and the number of rows of the batch."""
        rows = len(plan.rows)
        if self.lists is None or self.divisor == 1:
            count = plan.capacity if self.full_shapes else rows
            return np.arange(rows), filled_up(count, self.divisor)
        # A list must not be split between replicas.
        homes = list_homes(self.lists[plan.rows], self.divisor)
        share = max(1, int(np.bincount(homes, minlength=1).max()))
        if self.full_shapes:
            share = max(share, math.ceil(plan.capacity / self.divisor))
        places = np.zeros(rows, int)
        for replica in range(self.divisor):
            own = np.flatnonzero(homes == replica)
            places[own] = replica * share + np.arange(len(own))
        return places, share * self.divisor

    def different_ids(self, granularity: int) -> Iterator[np.ndarray]:
        """Token ids of the distinct texts at a granularity, int32 [B, T], padded with 0."""
        seen: set[bytes] = set()
        for given, ragged_store in list(zip(self.inputs, self.tokens, strict=True))[2 * granularity :][:2]:
            rows = np.unique(self.rows[:, given.text])
            for first in range(0, len(rows), 4096):
                flat, lengths = ragged_store.gather(rows[first : first + 4096])
                texts = np.split(flat, np.cumsum(lengths)[:-1])
                fresh = [text for text in texts if not (text.tobytes() in seen or seen.add(text.tobytes()))]
                if fresh:
                    sizes = np.array([len(text) for text in fresh])
                    yield padded_ids(np.concatenate(fresh), sizes, len(fresh), int(sizes.max()), 0)[0]


def length_cells(lengths: np.ndarray, most: int) -> list[tuple[int, ...]]:
    """At most so many ascending padded lengths: buckets of the first text, each with buckets of the second.

    The two texts of the first granularity come first in `lengths`, integers [R, inputs]. Each further input gets the
    length of its longest row.
    """
    firsts = bucket_lengths(lengths[:, 0], max(1, math.isqrt(most)))
    homes = np.searchsorted(firsts, lengths[:, 0])
    cells = []
    for index, first in enumerate(firsts):
        own = lengths[homes == index]
        if not len(own):
            continue
        seconds = bucket_lengths(own[:, 1], max(1, most // len(firsts)))
        places = np.searchsorted(seconds, own[:, 1])
        for place, second in enumerate(seconds):
            rows = own[places == place]
            if len(rows):
                cells.append((first, second, *(int(each) for each in rows[:, 2:].max(axis=0))))
    return cells


def _units(lists: np.ndarray | None, rows: int, rng: np.random.Generator | None) -> list[np.ndarray]:
    """Row numbers that stay together, in random order or in the order of their first rows."""
    if lists is None:
        order = np.arange(rows) if rng is None else rng.permutation(rows)
        return list(order[:, None])
    by_list = np.argsort(lists, kind="stable")
    units = np.split(by_list, np.flatnonzero(np.diff(lists[by_list])) + 1)
    if rng is None:
        return sorted(units, key=lambda unit: unit[0])
    return [units[i] for i in rng.permutation(len(units))]


def _homes(lengths: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Index of the first cell that fits each unit, or the number of cells if none fits; integers [units]."""
    fits = np.all(lengths[:, None] <= cells[None], axis=2)
    return np.where(np.any(fits, axis=1), fits.argmax(axis=1), len(cells))


def _packed(units: list[int], sizes: list[int], capacity: int) -> tuple[list[list[int]], list[int]]:
    """Batches of about `capacity` rows, with at least one unit each, and the remaining units."""
    batches: list[list[int]] = []
    batch: list[int] = []
    count = 0
    for unit in units:
        if batch and count + sizes[unit] > capacity:
            batches.append(batch)
            batch, count = [], 0
        batch.append(unit)
        count += sizes[unit]
    if count >= capacity:
        batches.append(batch)
        batch = []
    return batches, batch


def _spread(values: np.ndarray, places: np.ndarray, count: int, filler: int) -> np.ndarray:
    """Places the rows of an array at `places` among `count` rows and fills the others."""
    if len(values) == count and np.array_equal(places, np.arange(count)):
        return values
    result = np.full((count, *values.shape[1:]), filler, values.dtype)
    result[places] = values
    return result

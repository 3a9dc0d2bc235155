"""Splits examples into training, validation and test rows without common texts.

Texts of the test set are dropped from training and validation, and texts of a given validation set from training.
Without a given validation set, a fraction of the training rows is held out. Copies of a text stay together, or near
copies, or all rows of a query.
Of large data, samples are held out.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kmha.errors import InputError, format_names
from training.io.examples import ExampleSet, Subset

_NO_ROWS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class DataSummary:
    """Row counts of a run; `dataclasses.asdict` converts it to JSON."""

    train_rows: int
    validation_rows: int
    test_rows: int
    dropped_in_test: int  # training and validation rows whose text is in the test set
    dropped_in_validation: int  # other training rows whose text is in the given validation set
    repeated_train_rows: int  # retained rows that repeat text and labels, before holding out
    conflicting_train_rows: int  # retained rows whose text also has other labels, before holding out
    empty_texts: int  # retained rows of all sets with an empty or whitespace-only text
    labels_only_in_validation: dict[str, int]  # validation rows of each label without training rows
    labels_only_in_test: dict[str, int]
    class_counts: dict[str, int]  # training rows of each label
    near_copies: int = 0  # retained rows whose text is a near copy of another, before holding out
    left_out_of_validation: int = 0  # rows of the given validation set that are not used, for large data


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The rows of each part; int32 arrays in ascending order."""

    labels: list[str]  # of the training rows, sorted: the classes of the model
    train_rows: np.ndarray
    validation_rows: np.ndarray  # of the given validation set, otherwise of the training set
    test_rows: np.ndarray
    summary: DataSummary


def split(
    train: ExampleSet,
    validation: ExampleSet | None,
    test: ExampleSet | None,
    *,
    validation_fraction: float,
    seed: int,
    multi_label: bool,
    classes: bool = True,
    whole_queries: bool = False,
    near_copies: np.ndarray | None = None,
    one_label: bool = False,
    single_rows: bool = False,
) -> Split:
    """Selects the training, validation and test rows.

    Args:
        train: The training set.
        validation: The given validation set; None to hold one out.
        test: The test set, if any.
        validation_fraction: Fraction of the training rows to hold out, in [0, 1), stratified by (rarest) label. Rows
            of one text stay together, and each label keeps training rows.
        seed: Random seed of the held-out rows.
        multi_label: Whether rows can have any number of labels; otherwise each has one.
        classes: Whether labels are class names, each of two training rows or more; otherwise they are numbers.
        whole_queries: Whether all rows of a query stay together, in place of all rows of a text.
        near_copies: Equal for training rows whose texts stay together, uint64 [rows]; None: only equal texts.
        one_label: Whether all training rows can have the same label.
        single_rows: Whether a label can have only one training row.

    Raises:
        InputError: The fraction or the labels of a row are invalid, or no rows are left.
    """
    if not 0 <= validation_fraction < 1:
        raise InputError(f"validation fraction: expected a number in [0, 1), got {validation_fraction}")
    if not multi_label:
        for examples in (train, validation, test):
            _check_one_label(examples)

    in_test = _standing_in(train, test)
    in_validation = _standing_in(train, validation) & ~in_test
    rows = np.flatnonzero(~(in_test | in_validation))
    _check_rows(
        train, rows, multi_label or not classes or single_rows, one_label, dropped=len(train) - len(rows)
    )
    dropped_in_test = int(in_test.sum())

    label_digests = train.label_digests()[rows]
    order = np.lexsort((label_digests, train.digests[rows]))
    text_starts = _starts(train.digests[rows][order])
    text_sizes = np.diff(text_starts, append=len(rows))
    if validation is None:
        ids, counts = train.local_labels(rows)
        by, starts = order, text_starts
        if whole_queries:
            by = np.argsort(train.queries[rows], kind="stable")
            starts = _starts(train.queries[rows][by])
        elif near_copies is not None:
            by = np.lexsort((label_digests, train.digests[rows], near_copies[rows]))
            starts = _starts(near_copies[rows][by])
        chosen = held_out(
            ids if classes else np.zeros_like(ids), counts, by, starts, validation_fraction, seed
        )
        train_rows, validation_rows, evaluated = rows[~chosen], rows[chosen], train
    else:
        evaluated = validation
        validation_in_test = _standing_in(validation, test)
        dropped_in_test += int(validation_in_test.sum())
        train_rows, validation_rows = rows, np.flatnonzero(~validation_in_test)
        if not len(validation_rows):
            raise InputError(
                f"{validation.origin}: expected validation rows, got only texts that are also in the test set"
            )
    test_rows = _NO_ROWS if test is None else np.arange(len(test), dtype=np.int32)

    class_counts = _class_counts(train, train_rows) if classes else {}
    pair_count = len(_starts(train.digests[rows][order], label_digests[order]))
    first, last = label_digests[order][text_starts], label_digests[order][text_starts + text_sizes - 1]
    summary = DataSummary(
        train_rows=len(train_rows),
        validation_rows=len(validation_rows),
        test_rows=len(test_rows),
        dropped_in_test=dropped_in_test,
        dropped_in_validation=int(in_validation.sum()),
        repeated_train_rows=len(rows) - pair_count,
        conflicting_train_rows=int(text_sizes[first != last].sum()),
        empty_texts=sum(each.empty_texts for each in (train, validation, test) if each is not None),
        labels_only_in_validation=_unknown(_class_counts(evaluated, validation_rows), class_counts, classes),
        labels_only_in_test={}
        if test is None
        else _unknown(_class_counts(test, test_rows), class_counts, classes),
        class_counts=class_counts,
    )
    return Split(
        list(class_counts), train_rows.astype(np.int32), validation_rows.astype(np.int32), test_rows, summary
    )


def _standing_in(examples: ExampleSet, others: ExampleSet | None) -> np.ndarray:
    """Marks the rows whose texts are also in another set, bool [rows]."""
    if others is None:
        return np.zeros(len(examples), np.bool_)
    return np.isin(examples.digests, others.digests)


def _starts(*keys: np.ndarray) -> np.ndarray:
    """Start of each run of equal entries in arrays sorted together, int64."""
    new = np.zeros(len(keys[0]), np.bool_)
    new[:1] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)


def _check_one_label(examples: ExampleSet | None) -> None:
    if examples is None:
        return
    counts = examples.local_labels(np.arange(len(examples)))[1]
    wrong = np.flatnonzero(counts != 1)
    if len(wrong):
        given = "none" if counts[wrong[0]] == 0 else f"{counts[wrong[0]]} labels"
        raise InputError(f"{examples.place(int(wrong[0]))}: expected exactly one label, got {given}")


def _check_rows(
    train: ExampleSet, rows: np.ndarray, lonely_labels: bool, one_label: bool, dropped: int
) -> None:
    if not len(rows):
        reason = f"got only texts of the test or validation set ({dropped})" if dropped else "got none"
        raise InputError(f"{train.origin}: expected training rows, {reason}")
    after = f" after dropping the texts of other sets ({dropped} rows)" if dropped else ""
    counts = _class_counts(train, rows)
    if not one_label and len(np.unique(train.label_digests()[rows])) < 2:
        given = f"only {format_names(map(repr, counts))}" if counts else "no label"
        # Several labels a row, or tags: rows may share more than one.
        given += " in every row" if len(counts) > 1 else ""
        raise InputError(
            f"{train.origin}: expected training rows with two different labels or more, got {given}{after}"
        )
    lonely = [] if lonely_labels else [name for name, count in counts.items() if count == 1]
    if lonely:
        ids, _ = train.local_labels(rows)
        row = int(rows[np.flatnonzero(ids == train.label_names.index(lonely[0]))[0]])
        others = f" (and {len(lonely) - 1} more such labels)" if len(lonely) > 1 else ""
        raise InputError(
            f"{train.place(row)}: expected two training rows or more for each label, "
            f"got one for {lonely[0]!r}{after}{others}"
        )


def _class_counts(examples: ExampleSet, rows: np.ndarray) -> dict[str, int]:
    """Counts the rows of each label in these rows, sorted by label name."""
    counts = np.bincount(examples.local_labels(rows)[0], minlength=len(examples.label_names)).tolist()
    return {name: count for name, count in sorted(zip(examples.label_names, counts, strict=True)) if count}


def _unknown(counts: dict[str, int], known: dict[str, int], classes: bool) -> dict[str, int]:
    return {name: count for name, count in counts.items() if classes and name not in known}


def held_out(
    ids: np.ndarray,
    counts: np.ndarray,
    order: np.ndarray,
    text_starts: np.ndarray,
    fraction: float,
    seed: int,
) -> np.ndarray:
    """Selects rows to hold out: stratified by label, with all rows of a text together; bool [rows].

    Each label gives its share of rows, rounded so that the total is right and as close as its texts allow. Each label
    keeps a training row. If the fraction is not 0, at least one row is held out where possible.

    Args:
        ids: Concatenated label ids of all rows, int32 [sum(counts)], from 0.
        counts: Labels of each row, int32 [rows]. A multi-label row counts for its rarest label.
        order: Rows sorted so that rows of one text are adjacent, int64 [rows].
        text_starts: Start of each text in `order`, int64 [texts].
        fraction: Fraction of rows to hold out, in [0, 1).
        seed: Random seed.
    """
    num_rows = len(counts)
    if fraction == 0:
        return np.zeros(num_rows, np.bool_)
    random = np.random.default_rng(seed)
    sizes = np.diff(text_starts, append=num_rows)
    _, strata = np.unique(rarest_label(ids, counts)[order[text_starts]], return_inverse=True)
    stratum_rows = np.bincount(strata, weights=sizes).astype(np.int64)
    targets = _shares(stratum_rows, fraction, random)

    # Frequent texts come last, so that one text does not use up the share of its label.
    bulky = np.where(sizes > np.maximum(1, targets[strata] // 10), sizes, 0)
    by_stratum = np.lexsort((random.permutation(len(sizes)), bulky, strata))
    sizes, strata = sizes[by_stratum], strata[by_stratum]
    before = np.cumsum(sizes) - sizes
    is_first = np.diff(strata, prepend=-1) != 0
    before -= before[is_first][strata]
    is_last = np.append(is_first[1:], True)
    taken = (2 * before + sizes <= 2 * targets[strata]) & ~is_last
    if not taken.any():
        # Every text exceeds its label's share: hold out one anyway, but at most a third of all rows.
        spared = np.where(is_last | (3 * sizes > num_rows), num_rows + 1, sizes)
        taken[spared.argmin()] = spared.min() <= num_rows

    texts = np.zeros(len(sizes), np.bool_)
    texts[by_stratum] = taken
    chosen = np.zeros(num_rows, np.bool_)
    chosen[order] = np.repeat(texts, np.diff(text_starts, append=num_rows))
    return _give_back_lost_labels(chosen, ids, counts, order, text_starts)


def random_folds(groups: np.ndarray, count: int, seed: Sequence[int]) -> np.ndarray:
    """The fold of each row, int64 [R]; rows of equal groups [R] are in one fold, and few groups have fewer folds."""
    names, group = np.unique(groups, return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(names)) % count)[group]


def rarest_label(ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The rarest label of each row, int64 [rows]; the lower id in a tie, -1 without labels; see `held_out`."""
    by_rarity = np.argsort(np.bincount(ids), kind="stable")
    rank = np.empty(len(by_rarity), np.int64)
    rank[by_rarity] = np.arange(len(by_rarity))
    rarest = np.full(len(counts), -1, np.int64)
    labeled = counts > 0
    if labeled.any():
        starts = (np.cumsum(counts) - counts)[labeled]
        rarest[labeled] = by_rarity[np.minimum.reduceat(rank[ids], starts)]
    return rarest


def _shares(stratum_rows: np.ndarray, fraction: float, random: np.random.Generator) -> np.ndarray:
    """Rows to hold out per stratum by largest remainder, at most all but one, int64 [strata]."""
    quotas = stratum_rows * fraction
    most = stratum_rows - 1
    shares = np.minimum(np.floor(quotas).astype(np.int64), most)
    expected = max(1, round(float(quotas.sum()))) - int(shares.sum())
    remainders = np.where(shares < most, quotas - shares, -1.0)
    first = np.lexsort((random.permutation(len(quotas)), -remainders))[: max(0, expected)]
    shares[first[remainders[first] >= 0]] += 1
    return shares


def _give_back_lost_labels(
    chosen: np.ndarray, ids: np.ndarray, counts: np.ndarray, order: np.ndarray, text_starts: np.ndarray
) -> np.ndarray:
    """Returns texts to training whose labels would have no training row left, bool [rows]."""
    row_of = np.repeat(np.arange(len(counts)), counts)
    trained = np.bincount(ids, weights=~chosen[row_of])
    lost = (trained == 0) & (np.bincount(ids) > 0)
    if not lost.any():
        return chosen
    text_of = np.empty(len(counts), np.int64)
    text_of[order] = np.repeat(np.arange(len(text_starts)), np.diff(text_starts, append=len(counts)))
    lost_labels, places = np.unique(np.where(lost[ids], ids, -1), return_index=True)
    returned = text_of[row_of[places[lost_labels >= 0]]]
    return chosen & ~np.isin(text_of, returned)


@dataclasses.dataclass(frozen=True)
class Large:
    """Limits for large data: more than `rows` training rows. The seed is that of samples and of the row order."""

    rows: int
    seed: int

    def is_large(self, part: Subset) -> bool:
        """Whether the number of training rows exceeds the limit."""
        return len(part.rows) > self.rows

    @property
    def stretch_rows(self) -> int:
        """Maximum rows per stretch: the rows whose token ids are on disk while the next stretch is tokenized."""
        return max(1, self.rows // 2)

    @property
    def sample_rows(self) -> int:
        """Rows in the sample for vocabulary training, and the maximum of validation rows."""
        return max(1, self.rows // 10)

    def sampled(self, part: Subset) -> Subset:
        """The rows for vocabulary training: a random sample in file order for large data, otherwise all."""
        if not self.is_large(part):
            return part
        rng = np.random.default_rng([self.seed, 11])
        chosen = rng.choice(len(part.rows), self.sample_rows, replace=False, shuffle=False)
        return dataclasses.replace(part, rows=part.rows[np.sort(chosen)])


def with_fewer_validation_rows(parts: Split, large: Large) -> Split:
    """Limits a given validation set of large data to a random tenth of the row limit, for frequent evaluation."""
    rows = parts.validation_rows
    if len(parts.train_rows) <= large.rows or len(rows) <= large.sample_rows:
        return parts
    sample = np.sort(np.random.default_rng([large.seed, 17]).choice(rows, large.sample_rows, replace=False))
    summary = dataclasses.replace(
        parts.summary, validation_rows=len(sample), left_out_of_validation=len(rows) - len(sample)
    )
    return dataclasses.replace(parts, validation_rows=sample, summary=summary)


def held_out_fraction(fraction: float, rows: int, large_rows: int) -> float:
    """Validation fraction; for more than `large_rows` rows it is reduced, as if there were `large_rows` rows."""
    return fraction * min(1.0, large_rows / max(1, rows))

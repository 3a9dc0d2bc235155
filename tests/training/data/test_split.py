import json
import types
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kmha.errors import InputError
from tests.command_runs import news_rows, write_csv
from training.config.config import DataSection, FitConfig
from training.data.load import describe, load_data
from training.data.split import Large, Split, held_out, held_out_fraction, rarest_label, split
from training.io.examples import Example, ExampleSet, Subset, write_examples
from training.tasks.classify import ClassifyTask

Table = list[tuple[str, tuple[str, ...]]]


def write(folder: Path, name: str, table: Table) -> ExampleSet:
    rows = enumerate(table, start=2)
    examples = (Example((text,), labels, f"{name}.csv:{line}") for line, (text, labels) in rows)
    return write_examples(examples, folder / name)


def divide(
    folder: Path,
    train: Table,
    validation: Table | None = None,
    test: Table | None = None,
    fraction: float = 0.25,
    seed: int = 0,
    multi_label: bool = False,
) -> Split:
    return split(
        write(folder, "train", train),
        None if validation is None else write(folder, "dev", validation),
        None if test is None else write(folder, "test", test),
        validation_fraction=fraction,
        seed=seed,
        multi_label=multi_label,
    )


def single(*pairs: str) -> Table:
    """Reads "text/label" pairs."""
    return [(pair.split("/")[0], (pair.split("/")[1],)) for pair in pairs]


some_texts = st.sampled_from([*(f"text {number}" for number in range(30)), " text 1", "text 2\n"])
one_label = st.sampled_from("xy").map(lambda label: (label,))
any_labels = st.lists(st.sampled_from("uvwxyz"), max_size=3).map(tuple)


@st.composite
def three_sets(draw) -> tuple[bool, Table, Table | None, Table | None]:
    """Draws multi_label and training, validation and test tables that have texts in common."""
    multi_label = draw(st.booleans())
    row = st.tuples(some_texts, any_labels if multi_label else one_label)
    evaluated = st.none() | st.lists(row, max_size=8)
    return multi_label, draw(st.lists(row, min_size=6, max_size=40)), draw(evaluated), draw(evaluated)


@settings(max_examples=200)
@given(drawn=three_sets(), fraction=st.floats(0, 0.99), seed=st.integers(0, 9))
def test_the_split_is_a_partition_that_shares_no_text(tmp_path_factory, drawn, fraction, seed):
    multi_label, train, validation, test = drawn
    folder = tmp_path_factory.mktemp("split")
    try:
        parts = divide(folder, train, validation, test, fraction, seed, multi_label)
    except InputError:
        return
    evaluated = train if validation is None else validation
    summary = parts.summary

    def texts(table: Table | None, rows: np.ndarray) -> list[str]:
        return [(table or [])[row][0].strip() for row in rows]

    train_texts, validation_texts = texts(train, parts.train_rows), texts(evaluated, parts.validation_rows)
    test_texts = texts(test, parts.test_rows)
    assert parts.test_rows.tolist() == list(range(len(test or [])))
    assert not set(train_texts) & set(validation_texts)
    assert not set(test_texts) & {*train_texts, *validation_texts}
    assert parts.train_rows.dtype == parts.validation_rows.dtype == parts.test_rows.dtype == np.int32

    retained = [row for row, (text, _) in enumerate(train) if text.strip() not in test_texts]
    dropped_in_test = len(train) - len(retained)
    if validation is None:
        assert sorted([*parts.train_rows, *parts.validation_rows]) == retained
        assert summary.dropped_in_validation == 0
    else:
        all_validation = {text.strip() for text, _ in validation}
        left = [row for row in retained if train[row][0].strip() not in all_validation]
        assert parts.train_rows.tolist() == left
        assert summary.dropped_in_validation == len(retained) - len(left)
        assert parts.validation_rows.tolist() == [
            row for row, (text, _) in enumerate(validation) if text.strip() not in test_texts
        ]
        dropped_in_test += len(validation) - len(parts.validation_rows)
        retained = left
    assert summary.dropped_in_test == dropped_in_test

    pairs = [(train[row][0].strip(), frozenset(train[row][1])) for row in retained]
    assert summary.repeated_train_rows == len(pairs) - len(set(pairs))
    sets_of_text = Counter(text for text, _ in set(pairs))
    assert summary.conflicting_train_rows == sum(sets_of_text[text] > 1 for text, _ in pairs)

    assert parts.labels == sorted({label for row in retained for label in train[row][1]})
    assert summary.class_counts == Counter(label for row in parts.train_rows for label in set(train[row][1]))
    assert list(summary.class_counts) == parts.labels
    test_labels = Counter(label for _, labels in test or [] for label in set(labels))
    assert summary.labels_only_in_test == {
        label: count for label, count in test_labels.items() if label not in parts.labels
    }
    assert len(parts.train_rows) == summary.train_rows
    assert len(parts.validation_rows) == summary.validation_rows


@given(
    counts=st.lists(st.integers(2, 40), min_size=2, max_size=6),
    fraction=st.floats(0.01, 0.9),
    seed=st.integers(0, 9),
)
def test_each_label_gives_its_share_to_within_one_row(tmp_path_factory, counts, fraction, seed):
    labels = [f"label {index}" for index, count in enumerate(counts) for _ in range(count)]
    train = [(f"text {row}", (label,)) for row, label in enumerate(labels)]
    parts = divide(tmp_path_factory.mktemp("split"), train, fraction=fraction, seed=seed)
    held = Counter(labels[row] for row in parts.validation_rows)
    for index, count in enumerate(counts):
        assert abs(held[f"label {index}"] - count * fraction) <= 1 + 1e-9
    if all(count * (1 - fraction) >= 1 for count in counts):
        assert len(parts.validation_rows) == max(1, round(len(labels) * fraction))


def test_labels_with_repeated_texts_give_about_their_share(tmp_path):
    random = np.random.default_rng(0)
    train = [(f"text {random.integers(600)}", (f"{number % 3}",)) for number in range(3000)]
    parts = divide(tmp_path, train, fraction=0.2)
    assert len(parts.validation_rows) == pytest.approx(600, abs=60)


def test_the_seed_determines_the_split(tmp_path):
    train = [(f"text {row}", (f"{row % 3}",)) for row in range(60)]
    rows = [divide(tmp_path, train, seed=seed).validation_rows.tolist() for seed in (1, 1, 2)]
    assert rows[0] == rows[1] != rows[2]


def test_rows_with_several_labels_are_held_out_by_their_rarest_label(tmp_path):
    train = [(f"text {row}", ("often", "rare") if row % 10 == 0 else ("often",)) for row in range(200)]
    parts = divide(tmp_path, train, fraction=0.2, multi_label=True)
    held = [train[row][1] for row in parts.validation_rows]
    assert len(held) == 40 and sum("rare" in labels for labels in held) == 4


def test_a_label_with_one_row_stays_in_training_where_rows_have_several(tmp_path):
    train: Table = [(f"text {row}", ("a",) if row % 2 else ("b",)) for row in range(40)]
    train.append(("odd", ("a", "once")))
    for seed in range(10):
        parts = divide(tmp_path, train, fraction=0.5, seed=seed, multi_label=True)
        assert "once" in parts.labels and 40 in parts.train_rows


def test_labels_that_training_lacks_are_counted_and_not_an_error(tmp_path):
    train = single("1/a", "2/a", "3/b", "4/b")
    parts = divide(tmp_path, train, single("5/c", "6/a"), single("7/d", "8/d", "9/a"))
    assert parts.labels == ["a", "b"]
    assert parts.summary.labels_only_in_validation == {"c": 1}
    assert parts.summary.labels_only_in_test == {"d": 2}


def test_empty_texts_are_counted_and_retained(tmp_path):
    parts = divide(tmp_path, single("/a", " /b", "x/a", "y/b", "v/a", "w/b"), None, single("z/a", "\t/a"))
    assert parts.summary.empty_texts == 3
    assert parts.summary.dropped_in_test == 2
    parts = divide(tmp_path, single("/a", " /a", "x/b", "y/b"), fraction=0)
    assert parts.summary.empty_texts == 2 and len(parts.train_rows) == 4


def test_the_summary_is_json(tmp_path):
    summary = asdict(divide(tmp_path, single("1/a", "2/a", "3/b", "4/b", "5/b")).summary)
    assert json.loads(json.dumps(summary)) == summary


@pytest.mark.parametrize(
    "train, validation, test, message",
    [
        (single("1/a", "2/a"), None, None, "train.csv: expected training rows with two different.*only 'a'$"),
        (single("1/a", "2/a", "3/b", "3/b"), None, single("3/b"), "only 'a' after dropping .*2 rows"),
        (
            single("1/a", "2/b", "3/a"),
            None,
            None,
            "train.csv:3: expected two training rows or more.*got one for 'b'$",
        ),
        (
            single("1/a", "2/b", "3/a", "4/b"),
            None,
            single("4/a"),
            "train.csv:3: .*'b' after dropping the texts of other sets",
        ),
        (single("1/a", "2/b", "3/c"), None, None, "train.csv:2: .*'a'.*and 2 more such labels"),
        (
            single("1/a", "2/b"),
            single("1/a"),
            single("2/a"),
            "expected training rows, got only texts of the test or validation set",
        ),
        (
            single("1/a", "2/a", "3/b", "4/b"),
            single("9/a"),
            single("9/a"),
            "dev.csv: expected validation rows",
        ),
        ([], None, None, "expected training rows, got none"),
        ([("1", ("a",)), ("2", ())], None, None, "train.csv:3: expected exactly one label, got none"),
        ([("1", ("a",))], None, [("2", ("a", "b"))], "test.csv:2: expected exactly one label, got 2 labels"),
    ],
)
def test_unusable_training_rows_are_refused(tmp_path, train, validation, test, message):
    with pytest.raises(InputError, match=message) as caught:
        divide(tmp_path, train, validation, test)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("labels", [(), ("a",), ("a", "b")])
def test_rows_that_all_have_the_same_labels_are_refused(tmp_path, labels):
    message = "expected training rows with two different labels or more"
    with pytest.raises(InputError, match=message) as caught:
        divide(tmp_path, [("1", labels), ("2", labels)], multi_label=True)
    assert str(caught.value).endswith("in every row") == (len(labels) > 1)


def test_one_label_is_enough_if_some_rows_lack_it(tmp_path):
    assert divide(tmp_path, [("1", ("a",)), ("2", ())], fraction=0, multi_label=True).labels == ["a"]


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_a_fraction_out_of_range_is_refused(tmp_path, fraction):
    with pytest.raises(InputError, match="validation fraction"):
        divide(tmp_path, single("1/a", "2/b"), fraction=fraction)


def pairs(folder: Path, rows: list[tuple[str, str, str]]) -> ExampleSet:
    """Rows of query, second text and label."""
    examples = (
        Example((f"question {query}", text), (label,), f"pairs.csv:{line}", query)
        for line, (query, text, label) in enumerate(rows, start=2)
    )
    return write_examples(examples, folder, num_texts=2)


@example(sizes=[2, 3, 2, 3], fraction=0.125, seed=1)
@given(
    sizes=st.lists(st.integers(2, 7), min_size=4, max_size=15),
    fraction=st.floats(0.1, 0.5),
    seed=st.integers(0, 9),
)
def test_whole_queries_stay_on_one_side(tmp_path_factory, sizes, fraction, seed):
    rows = [
        (f"q{query}", f"{query} {number}", str(int(number == 0)))
        for query, size in enumerate(sizes)
        for number in range(size)
    ]
    # In random order: the rows of a query need not be adjacent.
    rows = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
    examples = pairs(tmp_path_factory.mktemp("pairs"), rows)
    options: dict = {
        "validation_fraction": fraction,
        "seed": seed,
        "multi_label": False,
        "whole_queries": True,
    }
    parts = split(examples, None, None, **options)
    assert sorted([*parts.train_rows, *parts.validation_rows]) == list(range(len(rows)))
    sides = [{rows[row][0] for row in part} for part in (parts.train_rows, parts.validation_rows)]
    assert not sides[0] & sides[1]
    assert all(sides)
    again = split(examples, None, None, **options)
    np.testing.assert_array_equal(again.validation_rows, parts.validation_rows)


def test_numeric_labels_need_not_occur_twice(tmp_path):
    rows = [(str(number), f"text {number}", f"{number / 7:.3f}") for number in range(40)]
    examples = pairs(tmp_path, rows)
    options: dict = {"validation_fraction": 0.25, "seed": 0, "multi_label": False}
    parts = split(examples, None, None, classes=False, **options)
    assert (len(parts.train_rows), len(parts.validation_rows)) == (30, 10)
    assert parts.labels == [] and parts.summary.class_counts == {}
    assert parts.summary.labels_only_in_validation == {} == parts.summary.labels_only_in_test
    with pytest.raises(InputError, match="expected two training rows or more for each label"):
        split(examples, None, None, **options)


def test_one_label_is_enough_if_negatives_are_generated(tmp_path):
    train = pairs(tmp_path / "train", [(str(number), f"text {number}", "1") for number in range(4)])
    evaluated = pairs(tmp_path / "judged", [("a", "x", "1"), ("a", "y", "0")])
    options: dict = {"validation_fraction": 0.25, "seed": 0, "multi_label": False}
    parts = split(train, evaluated, None, one_label=True, **options)
    assert len(parts.train_rows) == 4
    assert parts.summary.labels_only_in_validation == {"0": 1}
    with pytest.raises(
        InputError, match="expected training rows with two different labels or more, got only '1'"
    ):
        split(train, evaluated, None, **options)


def test_training_pairs_are_dropped_only_if_both_texts_match(tmp_path):
    train = pairs(
        tmp_path / "train",
        [
            ("a", "x", "1"),
            ("a", "y", "0"),
            ("b", "x", "0"),
            ("b", "z", "1"),
            ("c", "w", "1"),
            ("c", "v", "0"),
        ],
    )
    test = pairs(tmp_path / "test", [("a", "x", "1"), ("b", "y", "0")])
    parts = split(train, None, test, validation_fraction=0, seed=0, multi_label=False)
    assert parts.summary.dropped_in_test == 1
    assert parts.train_rows.tolist() == [1, 2, 3, 4, 5]


def single_labels(labels: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(labels, np.int32), np.ones(len(labels), np.int32)


def distinct(count: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(count), np.arange(count)


def test_the_rarest_label_of_a_row():
    ids = np.array([0, 1, 0, 2, 0, 1], np.int32)
    counts = np.array([2, 0, 2, 1, 1], np.int32)
    assert rarest_label(ids, counts).tolist() == [1, -1, 2, 0, 1]


def test_rows_without_any_label():
    nothing = np.zeros(0, np.int32), np.zeros(10, np.int32)
    assert rarest_label(*nothing).tolist() == [-1] * 10
    assert held_out(*nothing, *distinct(10), 0.3, 0).sum() == 3


def test_a_small_share_of_many_small_labels_is_not_lost_to_rounding():
    labels = np.repeat(np.arange(50), 4).tolist()
    assert held_out(*single_labels(labels), *distinct(200), 0.1, 0).sum() == 20


@pytest.mark.parametrize("fraction", [0.0, 1e-9, 0.5, 0.999999])
def test_each_label_keeps_a_row_and_one_row_is_held_out(fraction):
    labels = [0] * 3 + [1] * 30
    chosen = held_out(*single_labels(labels), *distinct(33), fraction, 5)
    assert set(np.array(labels)[~chosen].tolist()) == {0, 1}
    assert chosen.any() == (fraction > 0)


def test_a_very_frequent_text_does_not_use_up_the_share():
    sizes = np.array([500, *[1] * 500])
    starts = np.cumsum(sizes) - sizes
    for seed in range(10):
        chosen = held_out(*single_labels([0] * 1000), np.arange(1000), starts, 0.1, seed)
        assert chosen.sum() == 100 and not chosen[:500].any()


def test_every_row_is_held_out_with_some_seeds():
    labels = [0, 1] * 10
    times = sum(held_out(*single_labels(labels), *distinct(20), 0.3, seed).astype(int) for seed in range(200))
    assert (np.asarray(times) > 30).all() and (np.asarray(times) < 90).all()


def test_no_label_is_held_out_completely():
    # Label 2 occurs with other labels only, on texts that count for label 0 or 1.
    ids = np.array([0, 2, 0, 2] + [0, 1] * 20, np.int32)
    counts = np.array([2, 2] + [1] * 40, np.int32)
    ids, counts = np.concatenate([ids, [0] * 3]).astype(np.int32), np.concatenate([counts, [1] * 3])
    for seed in range(50):
        chosen = held_out(ids, counts, *distinct(len(counts)), 0.5, seed)
        row_of = np.repeat(np.arange(len(counts)), counts)
        assert set(ids[~chosen[row_of]].tolist()) == {0, 1, 2}


def part(rows: int) -> Subset:
    return Subset(types.SimpleNamespace(), np.arange(rows) * 3)  # pyright: ignore  (no row is read)


def test_a_sample_is_drawn_of_large_data_only():
    large = Large(rows=100, seed=1)
    assert large.sampled(part(100)).rows.tolist() == (np.arange(100) * 3).tolist()
    drawn = large.sampled(part(101)).rows
    assert len(set(drawn.tolist())) == large.sample_rows == 10
    assert set(drawn.tolist()) < set((np.arange(101) * 3).tolist()) and (np.diff(drawn) > 0).all()
    assert drawn.tolist() == large.sampled(part(101)).rows.tolist()
    assert drawn.tolist() != Large(rows=100, seed=2).sampled(part(101)).rows.tolist()


@pytest.mark.parametrize(("rows", "held_out"), [(50, 5), (100, 10), (101, 10), (10_000, 10), (0, 0)])
def test_validation_rows_do_not_grow_past_the_limit(rows, held_out):
    assert rows * held_out_fraction(0.1, rows, 100) == pytest.approx(held_out, abs=1e-9)


def test_a_sample_of_a_large_validation_file_is_evaluated(tmp_path):
    files = {
        name: write_csv(
            tmp_path / f"{name}.csv", [(f"{text} {place}", label) for place, (text, label) in rows]
        )
        for name, rows in (
            ("train", enumerate(news_rows(50, 0))),
            ("validation", enumerate(news_rows(30, 1), start=100)),
        )
    }
    for large_rows, evaluated in ((50, 30), (40, 4)):
        config = FitConfig(
            data=DataSection(train=files["train"], validation=files["validation"], large_rows=large_rows)
        )
        data = load_data(config, ClassifyTask(), tmp_path / str(large_rows))
        assert len(set(data.validation.rows.tolist())) == data.summary.validation_rows == evaluated
        assert len(data.train.rows) == 50
        left_out = "26 validation rows left out: of large data a sample is evaluated"
        assert (left_out in describe(data)) == (evaluated == 4)

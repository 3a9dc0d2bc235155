import numpy as np

from tests.command_runs import news_rows
from training.io.example_store import Example, write_examples
from training.io.types import Subset
from training.job import train_and_evaluate as kept
from training.job.train_and_evaluate import length_percentiles, sample_texts


def part(tmp_path, rows, count=None):
    examples = write_examples(
        (Example((text,), (label,), f"rows:{number}") for number, (text, label) in enumerate(rows)), tmp_path
    )
    return Subset(examples, np.arange(len(rows) if count is None else count))


def test_sample_is_drawn_from_the_part_and_depends_on_the_seed(tmp_path):
    rows = [(f"text {number}", "a") for number in range(1000)]
    some = part(tmp_path, rows, 600)
    first = sample_texts(some, 1)
    assert len(first) == len(set(first)) == kept.SAMPLE_ROWS
    assert set(first) <= {text for text, _ in rows[:600]}
    assert first == sample_texts(some, 1) != sample_texts(some, 2)


def test_sample_of_a_small_part_has_all_rows_and_truncated_texts(tmp_path):
    rows = [*news_rows(5, seed=1), ("x" * 10_000, "food")]
    texts = sample_texts(part(tmp_path, rows), 0)
    assert texts == [text[: kept.SAMPLE_CHARACTERS] for text, _ in rows]


def test_percentiles_are_lengths_of_texts():
    lengths = np.array([3] * 98 + [50, 99])
    assert length_percentiles(lengths) == {"p50": 3, "p90": 3, "p99": 99, "p100": 99}


def test_sample_of_pairs(tmp_path):
    rows = [*((f"a {number}", f"b {number}") for number in range(9)), ("x" * 10_000, "")]
    examples = write_examples((Example(pair, ("1",), "") for pair in rows), tmp_path, num_texts=2)
    found = sample_texts(Subset(examples, np.arange(10)), 0)
    assert found == [*rows[:9], ("x" * kept.SAMPLE_CHARACTERS, "")]

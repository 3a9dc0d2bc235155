import types

import numpy as np
import pytest

from tests.command_runs import news_rows, write_csv
from training.config.config import DataSection, FitConfig
from training.data.large_data import Large, held_out_fraction
from training.data.load import describe, load_data
from training.io.types import Subset
from training.tasks.classify import ClassifyTask


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


def test_of_a_large_validation_file_a_sample_is_judged(tmp_path):
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

"""Files of pairs, from their columns to the parts of a fit."""

from pathlib import Path
from typing import Any

import pytest

from kmha.errors import InputError
from tests.command_runs import write_csv
from tests.pair_rows import paraphrase_rows, ranking_rows
from training.config.config import DataSection, FitConfig
from training.data.load import Data, describe, load_data
from training.io.examples import Columns
from training.tasks.match.task import MatchTask

PAIRS, RANKED = ("text_a", "text_b", "label"), ("text_a", "text_b", "label", "query_id")


def load(folder: Path, task: MatchTask | None = None, **data) -> Data:
    return load_data(
        FitConfig(task="match", data=DataSection(**data)), task or MatchTask(), folder / "scratch"
    )


def pair_file(path: Path, rows, header=PAIRS) -> Path:
    return write_csv(path, [tuple(map(str, row)) for row in rows], header)


def test_pairs_are_read_split_and_counted(tmp_path):
    rows = paraphrase_rows(40, seed=0)
    data = load(tmp_path, train=pair_file(tmp_path / "a.csv", [*rows, rows[0], ("", " ", 1)]))
    assert data.labels == ["score"] and data.columns == Columns("text_a", "label", text_b="text_b")
    assert isinstance(data.task, MatchTask) and (data.task.target, data.task.best_by) == (
        "binary",
        "accuracy",
    )
    texts = sorted(
        pair for part in data.parts.values() for pair in zip(part.texts(0), part.texts(1), strict=True)
    )
    assert texts == sorted([*((a, b) for a, b, _ in rows), rows[0][:2], ("", " ")])
    assert (data.summary.repeated_train_rows, data.summary.empty_texts) == (1, 1)
    assert (
        describe(data)[0]
        == f"{len(data.train.rows)} training, {len(data.validation.rows)} validation, 0 test rows"
    )


def test_rankings_are_held_out_by_query(tmp_path):
    path = pair_file(tmp_path / "a.csv", ranking_rows(20, 4, seed=0), RANKED)
    data = load(tmp_path, train=path)
    assert data.task.metric == "map"
    assert not set(data.train.texts(0)) & set(data.validation.texts(0))
    assert len(data.validation.rows) % 4 == 0


def test_triplets_are_twice_as_many_pairs(tmp_path):
    rows = [(f"question {n}", f"right {n}", f"wrong {n}") for n in range(12)]
    data = load(tmp_path, train=pair_file(tmp_path / "a.csv", rows, ("anchor", "positive", "negative")))
    assert isinstance(data.task, MatchTask) and data.task.loss == "triplet"
    assert sum(len(part.rows) for part in data.parts.values()) == 24
    assert not set(data.train.texts(0)) & set(data.validation.texts(0))
    assert data.columns.named == {
        "text": "anchor", "text_b": "positive", "wrong": "negative", "separator": "|"
    }  # fmt: skip


def test_a_query_column_that_was_named_must_be_there(tmp_path):
    path = pair_file(tmp_path / "a.csv", paraphrase_rows(9, seed=0))
    with pytest.raises(InputError, match="--data.query-column: expected a column qid"):
        load(tmp_path, train=path, query_column="qid")


def test_the_first_text_may_be_the_query(tmp_path):
    path = pair_file(tmp_path / "a.csv", [row[:3] for row in ranking_rows(12, 3, seed=1)])
    data = load(tmp_path, train=path, query_column="text_a")
    assert data.task.metric == "map"


def test_training_rows_may_all_be_right_with_a_validation_file(tmp_path):
    right = [(a, b, 1) for a, b, _ in paraphrase_rows(12, seed=0)]
    train = pair_file(tmp_path / "right.csv", right)
    both = pair_file(tmp_path / "both.csv", paraphrase_rows(12, seed=1))
    for task in (MatchTask(form="bi", loss="contrastive"), MatchTask(hard_negatives="bm25")):
        assert len(load(tmp_path, task, train=train, validation=both).train.rows) == 12
        with pytest.raises(
            InputError, match="right.csv: expected training rows with two different labels or more"
        ):
            load(tmp_path, task, train=train)
    with pytest.raises(
        InputError, match="right.csv: expected training rows with two different labels or more"
    ):
        load(tmp_path, train=train, validation=both)


def test_columns_may_have_any_name(tmp_path):
    rows = [tuple(map(str, row)) for row in paraphrase_rows(20, seed=0)]
    path = pair_file(tmp_path / "a.csv", rows, ("sentence1", "sentence2", "quality"))
    names: dict[str, Any] = {
        "text_column": "sentence1",
        "text_b_column": "sentence2",
        "label_column": "quality",
    }
    data = load(tmp_path, train=path, **names)
    assert data.columns == Columns("sentence1", "quality", text_b="sentence2")
    with pytest.raises(InputError, match="--data.label-column: expected a column label, got sentence1"):
        load(tmp_path, train=path, text_column="sentence1", text_b_column="sentence2")


@pytest.mark.parametrize(("queries", "fits"), [(1, False), (2, False), (11, True)])
def test_a_query_is_held_out_where_there_are_enough_others(tmp_path, queries, fits):
    path = pair_file(tmp_path / "a.csv", ranking_rows(queries, 4, seed=0), RANKED)
    if fits:
        assert len(load(tmp_path, train=path).validation.rows) == 4
        return
    with pytest.raises(
        InputError, match="a.csv: expected rows to hold out for validation, none can be spared; give"
    ):
        load(tmp_path, train=path)

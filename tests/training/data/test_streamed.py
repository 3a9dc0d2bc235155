"""Large data: fits with more training rows than the limit."""

import json
import os
import re
import signal

import numpy as np
import pytest

from tests.command_runs import NO_DROPOUT, TINY, call, news_rows, write_csv
from training.config.config import TextSection
from training.data.inputs import Stretches, make_preprocessor
from training.data.split import Large
from training.data.text_batches import tokenize_examples
from training.engine.train_step import TrainingStep
from training.fit import main
from training.io.examples import Example, Subset, write_examples
from training.runs.checkpoint_folder import newest_valid_checkpoint, read_progress
from training.tasks.classify import ClassifyTask

TIMED = ("tokens_per_second", "tokens_per_cpu_second", "input_wait_share")


def metrics_of(run):
    return json.loads((run / "metrics.json").read_text("utf-8"))


def history_of(run):
    return [
        {name: value for name, value in each.items() if name not in TIMED}
        for each in metrics_of(run)["history"]
    ]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """Ninety training rows in parts of 20, sorted by label."""
    folder = tmp_path_factory.mktemp("large")
    train = write_csv(folder / "train.csv", sorted(news_rows(94, seed=0), key=lambda row: row[1]))
    test = write_csv(folder / "test.csv", news_rows(20, seed=1))
    given = [f"--data.train={train}", f"--data.test={test}", "--data.large-rows=40", "--no-calibrate"]
    return [*TINY, *NO_DROPOUT, *given, "--train.batch-rows=8"]


@pytest.fixture(scope="module")
def unbroken(flags, tmp_path_factory):
    run = tmp_path_factory.mktemp("unbroken") / "run"
    return run, call(main, *flags, f"--out={run}")


def test_large_data_is_trained_in_parts_with_an_evaluation_after_each(unbroken):
    run, outcome = unbroken
    assert outcome.status == 0, outcome.err
    metrics = metrics_of(run)
    # As many rows are held out as from 40 rows.
    assert (metrics["data"]["train_rows"], metrics["data"]["validation_rows"]) == (90, 4)
    assert metrics["parts_of_epoch"] == 5
    assert [each["epoch"] for each in metrics["history"]] == list(range(10))
    assert metrics["tokens"]["train"]["rows"] == 18 and metrics["tokens"]["validation"]["rows"] == 4
    assert re.search(
        r"^90 training rows are read in 5 parts an epoch, .* the first has 18:$", outcome.err, re.M
    )
    assert re.findall(r"^epoch (\d)/2, part (\d)/5: ", outcome.err, re.M) == [
        (str(epoch), str(part)) for epoch in (1, 2) for part in (1, 2, 3, 4, 5)
    ]
    # A file sorted by label can be trained on: its rows are mixed over the whole file.
    assert metrics["test"]["accuracy"] > 0.8
    assert "90 training rows" in metrics["baseline"]["description"]


@pytest.mark.second
def test_an_interrupted_run_resumes_within_a_part(flags, unbroken, tmp_path, monkeypatch):
    step, seen = TrainingStep.__call__, []

    def counted(self, batch):
        seen.append(None)
        if len(seen) == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "__call__", counted)
        stopped = call(main, *flags, f"--out={tmp_path / 'run'}")
    assert stopped.status == 130 and "--resume to continue" in stopped.err
    newest = newest_valid_checkpoint(tmp_path / "run.partial" / "checkpoint")
    assert newest is not None
    progress = read_progress(newest)
    assert progress["epoch"] == 2 and progress["batch"] == 2
    resumed = call(main, *flags, f"--out={tmp_path / 'run'}", "--resume")
    assert resumed.status == 0, resumed.err
    for mine, theirs in zip(history_of(tmp_path / "run"), history_of(unbroken[0]), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)


ROWS = 50


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory):
    """A part of some rows of a set, its preprocessor, and all its tokens."""
    folder = tmp_path_factory.mktemp("stretches")
    examples = write_examples((Example((t,), (y,), "") for t, y in news_rows(ROWS, seed=0)), folder / "rows")
    part = Subset(examples, np.arange(0, ROWS, 2))
    preprocessor = make_preprocessor(TextSection("word", max_length=8), [part], ClassifyTask())
    return part, preprocessor, tokenize_examples(examples, preprocessor, folder / "all")


def test_every_epoch_has_every_row_once_in_another_order(tokenized, tmp_path):
    part, preprocessor, _ = tokenized
    stretches = Stretches(part, preprocessor, Large(rows=16, seed=0), tmp_path)
    assert stretches.per_epoch == 4  # of at most 8 rows
    epochs = [[stretches.rows(4 * epoch + each).tolist() for each in range(4)] for epoch in range(2)]
    for rows in epochs:
        assert sorted(sum(rows, [])) == part.rows.tolist()
        assert {len(each) for each in rows} == {6, 7}
    assert epochs[0] != epochs[1]
    again = Stretches(part, preprocessor, Large(rows=16, seed=0), tmp_path)
    assert again.rows(5).tolist() == epochs[1][1]
    assert Stretches(part, preprocessor, Large(rows=16, seed=1), tmp_path).rows(5).tolist() != epochs[1][1]


def test_a_stretch_has_the_tokens_of_its_rows_and_leaves_no_file(tokenized, tmp_path):
    part, preprocessor, (whole, counts) = tokenized
    stretches = Stretches(part, preprocessor, Large(rows=16, seed=0), tmp_path)
    met = 0
    for number, then in ((0, None), (0, 1), (1, 2), (2, 3), (3, None)):
        rows, ragged_store, found = stretches.take(number, then)
        for mine, theirs in zip(ragged_store.gather(np.arange(len(rows))), whole.gather(rows), strict=True):
            assert np.array_equal(mine, theirs)
        met += found.tokens if then or number else 0
    stretches.close()
    assert met == whole.lengths[part.rows].sum() < counts.tokens
    assert list(tmp_path.iterdir()) == []


def test_errors_of_background_tokenization_are_raised_by_take(tokenized, tmp_path):
    part, preprocessor, _ = tokenized
    stretches = Stretches(part, preprocessor, Large(rows=16, seed=0), tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        stretches.take(0)
    stretches.close()

"""`train`: settings as keywords, rows in memory, a run folder on request only."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kmha import Bundle
from kmha.errors import InputError
from tests.command_runs import news_rows, run_script, write_csv
from training import train
from training.cli.exceptions import Interrupted
from training.config.config import EncoderSection, FitConfig
from training.distributed.tf_config import TF_CONFIG
from training.job import train as module
from training.job.train import resolve_keywords

FRAME = pd.DataFrame(news_rows(60, seed=1), columns=["text", "label"])
NEW_ROWS = news_rows(21, seed=2)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """The result for a data frame and a test file; all temporary files were in one folder."""
    folder = tmp_path_factory.mktemp("train")
    test = write_csv(folder / "test.csv", NEW_ROWS)
    before = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        result = train(FRAME, test=test, encoder__size="none")
    finally:
        tempfile.tempdir = before
    assert [path.name for path in folder.iterdir()] == ["test.csv"]
    return result


def test_the_bundle_predicts_and_the_metrics_are_those_of_the_test_rows(result):
    texts, labels = zip(*NEW_ROWS, strict=True)
    predicted = [prediction["label"] for prediction in result.bundle.predict(texts)]
    accuracy = np.mean([one == other for one, other in zip(predicted, labels, strict=True)])
    assert result.metrics["test"]["accuracy"] == pytest.approx(accuracy) and accuracy > 0.8
    assert result.bundle.details["data"]["train"] == {"name": "train DataFrame", "sha256": None}


def test_the_report_has_the_call_that_trains_again(result):
    assert result.report.startswith("<!doctype html>")
    assert "train(data, test=test, encoder__size=&#39;none&#39;" in result.report


def test_a_run_folder_is_written_on_request(result, tmp_path, capsys):
    config = FitConfig(encoder=EncoderSection(size="none"), report=False)
    rows = list(zip(FRAME["text"], FRAME["label"], strict=True))
    again = train(rows, out=tmp_path / "run", config=config, baseline=False)
    assert "54 training, 6 validation" in capsys.readouterr().err
    assert again.report is None and "baseline" not in again.metrics
    expected = result.bundle.probabilities(["soup and a ball"])
    np.testing.assert_array_equal(Bundle.load(tmp_path / "run").probabilities(["soup and a ball"]), expected)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text("utf-8")) == again.metrics
    with pytest.raises(InputError, match="train list: expected a name that ends in"):
        train(config=tmp_path / "run" / "config.toml")


def test_keywords_are_flags_and_override_a_config(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text('task = "tag"\n[encoder]\nsize = "tiny"\nngram_orders = [2]\n[train]\nseed = 3\n')
    keywords = {"train__seed": np.int64(4), "encoder__ngram_orders": (2, 3), "data__test": Path("a.csv")}
    config = resolve_keywords(path, {**keywords, "report": False, "task": None})
    assert (config.task, config.encoder.size, config.report) == ("tag", "tiny", False)
    assert (config.train.seed, config.encoder.ngram_orders, config.data.test) == (4, (2, 3), Path("a.csv"))
    assert resolve_keywords(config, {}) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder__sise": "tiny"}, "settings: unknown key encoder.sise; did you mean encoder.size?"),
        ({"encoder__size": "huge"}, "settings: encoder.size must be one of"),
        ({"train__epochs": -1}, "--train.epochs: expected at least 0, got -1"),
        (
            {"data__label_column": "labl"},
            "train DataFrame: expected column 'labl', got columns text, label; did",
        ),
        ({"test": "missing.csv"}, "missing.csv: expected a file, got no such file"),
        ({"validation": FRAME[:0]}, "validation DataFrame: expected rows, got none"),
        ({"task": "match"}, "--data.text-column: expected a column text_a"),
    ],
)
def test_errors_are_exceptions(settings, message):
    with pytest.raises(InputError) as error:
        train(FRAME, **settings)
    assert str(error.value).startswith(message)


def test_an_interrupt_ends_as_one_and_several_workers_are_refused(monkeypatch):
    def stop(config, in_memory):
        raise Interrupted("SIGINT")

    monkeypatch.setattr(module, "fit", stop)
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        train(FRAME)
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    monkeypatch.setenv(TF_CONFIG, json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}))
    with pytest.raises(InputError, match="TF_CONFIG: expected one worker, got 2"):
        train(FRAME)


def test_importing_train_imports_no_tensorflow():
    heavy = "('tensorflow', 'keras', 'sklearn', 'scipy', 'pandas')"
    code = "import sys; from training import train; "
    code += f"print([name for name in {heavy} if name in sys.modules])"
    assert run_script(code) == "[]\n"
    with pytest.raises(AttributeError):
        sys.modules["training"].trian  # noqa: B018

import pytest

from tests.command_runs import call, refused, write_csv
from training.evaluate import main


def test_scores_on_the_test_file_equal_those_of_the_fit(news_run):
    outcome = call(main, news_run.folder, "--data", news_run.test)
    assert outcome.status == 0 and outcome.err == ""
    for name in ("rows", "accuracy", "macro_f1", "micro_f1", "weighted_f1", "precision", "recall"):
        assert outcome.json[name] == news_run.outcome.json[name]
    for name in ("roc_auc", "average_precision", "ece", "loss"):
        assert outcome.json[name] == pytest.approx(news_run.outcome.json[name], abs=1e-5)
    assert outcome.json["unknown_labels"] == {"weather": 1}
    assert set(outcome.json["per_class"]) == {"food", "money", "sport", "weather"}
    assert len(outcome.json["confusion_matrix"]) == 4
    assert outcome.json["intervals"]["accuracy"][0] <= outcome.json["accuracy"]


def test_other_columns_and_no_intervals(news_run, tmp_path):
    path = write_csv(tmp_path / "a.tsv", [("soup bread", "food"), ("", "food")], ("body", "kind"))
    flags = ["--data", path, "--text-column", "body", "--label-column", "kind", "--no-intervals"]
    outcome = call(main, news_run.folder, *flags)
    assert outcome.status == 0
    assert outcome.json["rows"] == 2 and "intervals" not in outcome.json


def test_several_labels(topics_run):
    outcome = call(main, topics_run.folder, "--data", topics_run.test)
    assert outcome.status == 0
    names = {
        "rows",
        "accuracy",
        "macro_f1",
        "micro_f1",
        "weighted_f1",
        "roc_auc",
        "average_precision",
        "loss",
    }
    assert outcome.json.keys() >= names
    assert outcome.json["rows"] == 21 and outcome.json["unknown_labels"] == {"weather": 1}


def test_rows_without_any_label_of_the_run_are_refused(news_run, tmp_path):
    path = write_csv(tmp_path / "a.csv", [("soup bread", "1"), ("goal", "2")])
    message = refused(tmp_path, main, str(news_run.folder), "--data", str(path))
    assert message == f"--data {path}: expected labels of the run, food, money, sport, got only 1, 2"


def test_a_file_with_another_delimiter_and_encoding(news_run, tmp_path):
    (tmp_path / "a.csv").write_bytes("Text;Label\nsoupe brûlée;food\n".encode("cp1252"))
    flags = ["--data.delimiter", ";", "--data.encoding", "cp1252", "--no-intervals"]
    outcome = call(main, news_run.folder, "--data", tmp_path / "a.csv", *flags)
    assert outcome.status == 0 and outcome.json["rows"] == 1

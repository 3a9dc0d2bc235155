"""The command on tiny rows; tests/training/comparison tests the candidates."""

import json
import re

import pytest

from kmha.bundle.bundle import Bundle
from tests import command_runs
from tests.bundles import make_pair_bundle, one_label_bundle, several_label_bundle
from tests.command_runs import call, news_rows, refused, write_csv
from training import evaluate
from training.cli.exceptions import Interrupted
from training.compare import main
from training.comparison import run

TINY = [flag for flag in command_runs.TINY if not re.search("ngram|learning-rate|epochs|report", flag)]
TINY += ["--train.epochs=1", "--rates=0.01", "--rounds=1"]
# The other two differ from the first in one setting.
NETWORKS = ["heads", "cnn", "bilstm", "averages"]


@pytest.fixture(scope="module")
def compared(news_run, tmp_path_factory):
    """Two candidates, then more in the same folder, with an existing run on the same rows."""
    out = tmp_path_factory.mktemp("compare") / "news"
    flags = [f"--data.train={news_run.train}", f"--data.test={news_run.test}", *TINY, "--out", out]
    first = call(main, *flags, "--candidates", "averages", "linear", "--lengths", "8")
    assert first.status == 0, first.err
    saved = (out / "trainings" / "averages.rate-0.01.json").read_bytes()
    more = ("--candidates", *NETWORKS, "linear", "--lengths", "8", "24", "--runs", news_run.folder)
    second = call(main, *flags, *more)
    return flags, out, first, saved, second


def test_all_are_evaluated_on_the_same_rows(compared, news_run):
    _, out, _, _, second = compared
    assert second.status == 0, second.err
    found = second.json
    rows = {row["name"]: row for row in found["candidates"]}
    assert list(rows) == [*NETWORKS, "linear", f"run {news_run.folder.name}"]
    metrics = json.loads((news_run.folder / "metrics.json").read_text())
    # The baseline of the run is the same linear model on the same rows.
    assert rows["linear"]["accuracy"] == metrics["baseline"]["accuracy"]
    run = rows[f"run {news_run.folder.name}"]
    scores = call(evaluate.main, news_run.folder, "--data", news_run.test).json
    assert run["accuracy"] == scores["accuracy"] and run["intervals"] == scores["intervals"]
    assert run["validation"] == metrics["validation"]["accuracy"] and run["seconds_per_epoch"] > 0
    weights = Bundle.load(news_run.folder).model.trainable_variables
    assert run["weights"] == sum(each.value.numpy().size for each in weights)
    assert run["same_rows"] and "n-grams" in run["description"]
    # The run reads 16 tokens; the candidates are timed at any length.
    assert list(run["latency_ms"]) == ["8"] and list(rows["cnn"]["latency_ms"]) == ["8", "24"]
    target = found["weights"]["target"]
    assert rows["heads"]["weights"] == target
    distances = [abs(rows[name]["weights"] - target) / target for name in NETWORKS]
    assert found["weights"]["largest_distance"] == max(distances) < 0.05
    assert found["reference"] == "heads" and "difference" not in rows["heads"]
    for name in ("cnn", "linear"):
        ahead = rows[name]["accuracy"] - rows["heads"]["accuracy"]
        assert rows[name]["difference"]["value"] == pytest.approx(ahead)
    # The test rows include an empty text and a label that no training row has.
    assert found["rows"]["test"] == 23 and max(row["accuracy"] for row in rows.values()) < 1


def test_finished_candidates_are_not_trained_again(compared):
    _, out, first, saved, second = compared
    assert (out / "trainings" / "averages.rate-0.01.json").read_bytes() == saved
    assert "averages, learning rate" in first.err and "averages, learning rate" not in second.err
    before, after = (
        next(row for row in outcome.json["candidates"] if row["name"] == "averages")
        for outcome in (first, second)
    )
    assert before["accuracy"] == after["accuracy"]
    # Without attention the best candidate is the reference.
    assert first.json["reference"] in ("averages", "linear")


def test_the_folder_has_results_table_and_figure(compared):
    _, out, _, _, second = compared
    assert json.loads((out / "compare.json").read_text()) == second.json
    table = (out / "table.md").read_text()
    for row in second.json["candidates"]:
        assert f"| {row['name']} | {row['weights']:,} |" in table
    assert (out / "compare.png").read_bytes().startswith(b"\x89PNG")
    names = {each.name for each in out.iterdir()}
    assert names == {"settings.json", "trainings", "compare.json", "compare.png", "table.md"}
    assert not [each for each in (out / "trainings").iterdir() if each.is_dir()]


def test_an_interruption_keeps_finished_results(compared, monkeypatch):
    flags, out, *_ = compared

    def stop(*arguments):
        raise Interrupted("SIGTERM")

    monkeypatch.setattr(run, "train", stop)
    outcome = call(main, *flags, "--candidates", "averages", "--rates", "0.01", "0.02")
    assert outcome.status == 130 and outcome.out == ""
    assert "stopped by SIGTERM; the same command resumes the comparison" in outcome.err
    assert (out / "trainings" / "averages.rate-0.01.json").exists()


def test_other_settings_or_rows_are_rejected(compared, tmp_path):
    flags, out, *_ = compared
    message = refused(out, main, *map(str, flags), "--train.seed=1")
    assert "--train.seed 0, got 1; --overwrite starts again" in message
    other = write_csv(tmp_path / "test.csv", news_rows(9, seed=9))
    assert "--data.test" in refused(out, main, *map(str, flags), f"--data.test={other}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    bundles = {"one": one_label_bundle(), "several": several_label_bundle(), "pairs": make_pair_bundle()}
    for name, bundle in bundles.items():
        bundle.save(folder / name)
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.train", "train.csv"], "--data.test: expected test rows"),
        (["--data.train", "none.csv"], "none.csv"),
        (["--data.train", "several.csv", "--data.test", "others.csv"], "--data.label-column: expected one label"),
        (["--classify.window", "16"], "--classify.window: expected 0, the candidates read whole texts"),
        (["--candidates", "lstm"], "--candidates: expected one of 'heads', 'one-head'"),
        (["--candidates"], "--candidates: expected one or more, or --runs"),
        (["--rates", "0.1", "0"], "--rates: expected different numbers above 0 and below 1, got 0.1 0.0"),
        (["--rates", "0.1", "0.1"], "--rates: expected different numbers"),
        (["--lengths", "2"], "--lengths: expected numbers of at least 3, got 2"),
        (["--rounds", "0"], "--rounds: expected at least 1"),
        (["--encoder.pretrained", "minilm"], "--encoder.pretrained: expected none"),
        (["--optimizer.learning-rate", "0.1"], "--optimizer.learning-rate: expected --rates instead"),
        (["--encoder.num-heads", "1"], "--encoder.num-heads: expected 2 or more"),
        (["--encoder.num-layers", "0"], "--encoder.num-layers: expected 1 or more with --candidates heads, got 0"),
        (["--encoder.hidden-dim", "10"], "--encoder.num-heads must divide --encoder.hidden-dim"),
        (["--runs", "nowhere"], "nowhere"),
        (["--runs", "several"], "--runs several: expected a classifier of one label per row, got one of several"),
        (["--runs", "pairs"], "--runs pairs: expected a classifier of one label per row, got a matcher"),
        (["--out", "one"], "--out one: expected a new folder, or that of a comparison"),
        (["--epochs", "3"], "unknown flag --epochs"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(runs, monkeypatch, arguments, message):
    monkeypatch.chdir(runs)
    if not (runs / "train.csv").exists():
        rows = news_rows(30, seed=1)
        write_csv(runs / "train.csv", rows)
        write_csv(runs / "several.csv", rows, ("text", "labels"))
        write_csv(runs / "others.csv", news_rows(9, seed=2), ("text", "labels"))
    assert message in refused(runs, main, *arguments)

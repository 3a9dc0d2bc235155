"""The command: importance of heads, and pruned runs that work like any run."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
import tomllib

import numpy as np
import pytest

from kmha.bundle.bundle import Bundle
from tests.bundles import PAIRS, make_pair_bundle, masked_bundle
from tests.command_runs import ROOT, TINY, call, clean_environment, refused, write_csv
from training import embed, evaluate, explain, fit, predict, report
from training.heads import main

WORDS_OF = {"rain": "weather", "soup": "food"}


@pytest.fixture(scope="module")
def news_run(news_run, tmp_path_factory):
    """The run with another head. Six validation rows show no gain of its encoder, whose logits have no weight."""
    folder = shutil.copytree(news_run.folder, tmp_path_factory.mktemp("heads") / "news")
    bundle = Bundle.load(folder)
    kernel = bundle.model.head.kernel
    kernel.assign(np.random.default_rng(0).normal(size=kernel.shape))
    bundle.save(folder)
    return dataclasses.replace(news_run, folder=folder)


@pytest.fixture(scope="module")
def pruned(news_run, tmp_path_factory):
    """The folder of a pruned run with a report, and the outcome of the command."""
    folder = tmp_path_factory.mktemp("pruned")
    whole = shutil.copytree(news_run.folder, folder / "whole")
    config = whole / "config.toml"
    config.write_text(config.read_text().replace("report = false", "report = true"))
    flags = ["--prune", "0.3", "--out", folder / "run", "--learning-rate", "0.01"]
    return folder / "run", call(main, whole, "--data", news_run.test, *flags)


def test_heads_are_measured_without_changing_the_run(news_run):
    before = sorted((path.name, path.read_bytes()) for path in news_run.folder.iterdir() if path.is_file())
    outcome = call(main, news_run.folder, "--data", news_run.test, "--rows", "10")
    assert outcome.status == 0, outcome.err
    found = outcome.json
    assert found["rows"] == 10 and [each["head"] for each in found["heads"]] == [1, 2]
    for each in found["heads"]:
        assert each["block"] == "block 1" and each["importance"] > 0 and each["entropy"] > 0
        assert {"loss_without", "accuracy_without", "distance"} < each.keys()
    (inner,) = found["feed_forward"]
    assert inner["rows"] == 16 and inner["quartiles"] == sorted(inner["quartiles"])
    assert (
        "block 1, head 2" in outcome.err and f"accuracy {found['accuracy']:.4f} with all heads" in outcome.err
    )
    after = sorted((path.name, path.read_bytes()) for path in news_run.folder.iterdir() if path.is_file())
    assert after == before


@pytest.mark.second
def test_a_pruned_run_is_smaller_and_has_its_measurements(news_run, pruned):
    folder, outcome = pruned
    assert outcome.status == 0, outcome.err
    measured = outcome.json["pruned"]
    assert measured["heads"] == {"before": 2, "after": 1}
    assert measured["feed_forward_rows"] == {"before": 16, "after": 11}
    lost = measured["weights"]["before"] - measured["weights"]["after"]
    # A head of 8 in vectors of 16, with biases; five feed-forward rows.
    assert lost == 8 * 4 * 16 + 3 * 8 + 5 * (2 * 16 + 1)
    assert measured["block_weights"]["before"] - measured["block_weights"]["after"] == lost
    assert measured["bytes"]["after"] == (folder / "model.keras").stat().st_size
    bundle, whole = Bundle.load(folder), Bundle.load(news_run.folder)
    assert bundle.model.encoder_config.layer_sizes == ((1, 11),)
    assert bundle.labels == whole.labels
    assert bundle.preprocessor.vocabulary.tokens == whole.preprocessor.vocabulary.tokens
    for run, state in ((news_run.folder, "before"), (folder, "after")):
        scores = call(evaluate.main, run, "--data", news_run.test).json
        for name in ("loss", "accuracy"):
            assert measured["scores"][state][name] == pytest.approx(scores[name], abs=1e-5)
    assert bundle.details["pruned"]["heads"] == measured["heads"]
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["judged_on"] == "validation" and "test" not in metrics
    written = (folder / "config.toml").read_text()
    assert written.startswith(
        "# Settings that fine-tuned a model which training.heads --prune 0.3 made of whole;"
    )
    config = tomllib.loads(written)
    assert config["train"]["epochs"] == 1 and config["out"] == str(folder)
    again = f"--data={news_run.test} --prune=0.3 --learning-rate=0.01 --out runs/again"
    assert again in (folder / "report.md").read_text() and (folder / "report.html").is_file()


@pytest.mark.second
def test_a_pruned_run_works_like_any_run(news_run, pruned, tmp_path):
    folder, _ = pruned
    prediction = call(predict.main, folder, stdin=b"soup and bread\n").out
    assert json.loads(prediction)["label"] in Bundle.load(folder).labels
    page = tmp_path / "page.html"
    outcome = call(explain.main, folder, "soup and bread", "--out", page, "--draws", "2")
    assert outcome.status == 0, outcome.err
    page = tmp_path / "report.html"
    assert call(report.main, folder, "--data", news_run.test, "--out", page).status == 0
    shown = page.with_suffix(".md").read_text()
    assert "--prune=0.3" in shown and "python -m training.fit" not in shown
    assert call(embed.main, folder, "--format", "jsonl", stdin=b"soup\n").status == 0
    flags = [flag for flag in TINY if not flag.startswith(("--encoder.", "--text.vocabulary"))]
    given = [f"--data.train={news_run.train}", f"--encoder.pretrained={folder}", "--no-baseline", *flags]
    outcome = call(fit.main, *given, "--train.epochs=1", "--out", tmp_path / "again")
    assert outcome.status == 0, outcome.err
    config = Bundle.load(tmp_path / "again").model.encoder_config
    assert config.layer_sizes == ((1, 11),)


@pytest.mark.slow
def test_a_killed_pruning_can_be_started_again(news_run, tmp_path):
    """It cannot be resumed, so the same command must not be blocked."""
    whole = shutil.copytree(news_run.folder, tmp_path / "whole")
    config = whole / "config.toml"
    often = config.read_text().replace("checkpoint_minutes = 10.0", "checkpoint_minutes = 0.0")
    config.write_text(often)
    assert "checkpoint_minutes = 0.0" in often
    flags = [whole, "--data", news_run.test, "--prune", "0.3", "--out", tmp_path / "run"]
    command = [sys.executable, "-m", "training.heads", *map(str, flags), "--epochs", "500"]
    with subprocess.Popen(
        command, cwd=ROOT, env=clean_environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert any(line.startswith("epoch 2/") for line in process.stderr)
        process.kill()
    assert process.returncode == -signal.SIGKILL and (tmp_path / "run.partial").is_dir()
    outcome = call(main, *flags)
    assert outcome.status == 0, outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "whole"]


@pytest.mark.second
def test_both_sides_of_a_matcher_are_measured(tmp_path):
    make_pair_bundle(share_weights=False).save(tmp_path / "pairs")
    rows = [(*pair, str(i % 2)) for i, pair in enumerate(PAIRS)]
    data = write_csv(tmp_path / "pairs.csv", rows, ("text_a", "text_b", "label"))
    found = call(main, tmp_path / "pairs", "--data", data, "--rows", "2").json
    names = [each["block"] for each in found["heads"] if each["head"] == 1]
    assert names == ["a block 1", "b block 1", "a round 1", "b round 1"]
    assert [each["distance"] is None for each in found["heads"]] == 4 * [False] + 4 * [True]


def test_a_figure_is_written(news_run, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "heads.png"
    outcome = call(main, news_run.folder, "--data", news_run.test, "--rows", "3", "--picture", path)
    assert outcome.status == 0 and path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prune", "0"], "--prune: expected above 0 and below 1, got 0.0"),
        (["--prune", "1"], "--prune: expected above 0 and below 1, got 1.0"),
        (["--prune", "0.3"], "--out: expected a folder for the pruned run, got none"),
        (["--out", "smaller"], "--out: expected --prune too, got none"),
        (["--prune", "0.3", "--out", "taken"], "--out taken: expected a new folder"),
        (["--prune", "0.3", "--out", "RUN", "--overwrite"], "expected another folder than the run"),
        (["--prune", "0.3", "--out", "new", "--train", "none.csv"], "none.csv"),
        (["--picture", "a.gif"], "--picture a.gif: expected a file ending in"),
        (["--data", "none.csv"], "none.csv"),
        (["--data", "no_label.csv"], "label"),
        (["--data", "unknown.csv"], "expected rows with labels of the run, got none"),
    ],
)
def test_wrong_input_is_one_line(news_run, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "no_label.csv", [("soup",)], ("text",))
    write_csv(tmp_path / "unknown.csv", [("rain", "weather")])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    flags = [str(news_run.folder) if flag == "RUN" else flag for flag in flags]
    given = flags if "--data" in flags else ["--data", str(news_run.test), *flags]
    assert message in refused(tmp_path, main, str(news_run.folder), *given)


def test_runs_that_cannot_be_pruned_are_rejected(news_run, tmp_path):
    masked_bundle().save(tmp_path / "language")
    message = refused(tmp_path, main, str(tmp_path / "language"), "--data", str(news_run.test))
    assert message.endswith("got a masked language model; prune a run that starts from it")
    make_pair_bundle().save(tmp_path / "alone")
    data = write_csv(tmp_path / "pairs.csv", [("a", "b", "1")], ("text_a", "text_b", "label"))
    flags = ["--prune", "0.3", "--out", str(tmp_path / "new")]
    message = refused(tmp_path, main, str(tmp_path / "alone"), "--data", str(data), *flags)
    assert "alone: expected config.toml, the settings of the run" in message
    moved = shutil.copytree(news_run.folder, tmp_path / "moved")
    config = moved / "config.toml"
    config.write_text(config.read_text().replace(str(news_run.train), "gone.csv"))
    # The error comes before heads are measured, which may take long.
    message = refused(tmp_path, main, str(moved), "--data", str(news_run.test), *flags)
    assert message == "gone.csv: expected a file, got no such file; --train names other training rows"
    rows = [(f"{'old ' * count} {word}", label) for word, label in WORDS_OF.items() for count in range(20)]
    other = write_csv(tmp_path / "other.csv", rows)
    flags += ["--train", str(other), "--rows", "3"]
    outcome = call(main, news_run.folder, "--data", news_run.test, *flags)
    assert outcome.status == 2 and "expected labels of the run, got also weather" in outcome.err
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.partial").exists()

import itertools
import json
import shlex

import numpy as np
import pytest

from clients import chromium
from kmha.bundle.bundle import Bundle
from tests.browsers import needs_chromium
from tests.command_runs import TINY, call, news_rows, write_csv
from training.cli.parser import parse
from training.config.config import FitConfig
from training.fit import main
from training.io.examples import Example, Subset, write_examples
from training.job import train_and_evaluate as job
from training.job.train_and_evaluate import length_percentiles, report_fit, sample_texts
from training.runs.run_folder import RunContext


def part(tmp_path, rows, count=None):
    examples = write_examples(
        (Example((text,), (label,), f"rows:{number}") for number, (text, label) in enumerate(rows)), tmp_path
    )
    return Subset(examples, np.arange(len(rows) if count is None else count))


def test_sample_is_drawn_from_the_part_and_depends_on_the_seed(tmp_path):
    rows = [(f"text {number}", "a") for number in range(1000)]
    some = part(tmp_path, rows, 600)
    first = sample_texts([some], 1)
    assert len(first) == len(set(first)) == job.SAMPLE_ROWS
    assert set(first) <= {text for text, _ in rows[:600]}
    assert first == sample_texts([some], 1) != sample_texts([some], 2)


def test_sample_of_a_small_part_has_all_rows_and_truncated_texts(tmp_path):
    rows = [*news_rows(5, seed=1), ("x" * 10_000, "food")]
    texts = sample_texts([part(tmp_path, rows)], 0)
    assert texts == [text[: job.SAMPLE_CHARACTERS] for text, _ in rows]


def test_sample_is_of_the_first_part_and_filled_up_with_the_second(tmp_path):
    rows = [(f"text {number}", "a") for number in range(1000)]
    everything = part(tmp_path, rows)
    first, second = (Subset(everything.examples, np.arange(*ends)) for ends in ((0, 30), (30, 1000)))
    found = sample_texts([first, second], 0)
    assert found[:30] == [text for text, _ in rows[:30]]
    assert len(found) == len(set(found)) == job.SAMPLE_ROWS


def test_percentiles_are_lengths_of_texts():
    lengths = np.array([3] * 98 + [50, 99])
    assert length_percentiles(lengths) == {"p50": 3, "p90": 3, "p99": 99, "p100": 99}


def test_sample_of_pairs(tmp_path):
    rows = [*((f"a {number}", f"b {number}") for number in range(9)), ("x" * 10_000, "")]
    examples = write_examples((Example(pair, ("1",), "") for pair in rows), tmp_path, num_texts=2)
    found = sample_texts([Subset(examples, np.arange(10))], 0)
    assert found == [*rows[:9], ("x" * job.SAMPLE_CHARACTERS, "")]


LABEL = "<i>sport</i> | $x$"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    rows = [(text, LABEL if label == "sport" else label) for text, label in news_rows(150, seed=1)]
    rows += [("twice here", "food")] * 3 + [("not agreed", "food"), ("not agreed", "money")]
    train = write_csv(folder / "train.csv", rows)
    test = write_csv(
        folder / "test.csv",
        [(text, LABEL if label == "sport" else label) for text, label in news_rows(90, seed=2)],
    )
    flags = [flag for flag in TINY if flag != "--no-report"]
    outcome = call(main, *flags, f"--data.train={train}", f"--data.test={test}", f"--out={folder / 'run'}")
    assert outcome.status == 0, outcome.err
    return folder / "run", (folder / "run" / "report.md").read_text("utf-8")


def test_run_has_a_report(run):
    folder, _ = run
    names = {path.name for path in folder.iterdir()}
    assert {"report.html", "report.md", "model.keras"} <= names
    assert (
        not names
        & {"report.html", "report.md"}
        & json.loads((folder / "bundle.json").read_text())["files"].keys()
    )
    for name in ("report.html", "report.md"):
        assert (folder / name).stat().st_size < 1_000_000
    assert Bundle.load(folder).predict(["soup"])


def test_numbers_are_those_of_the_metrics(run):
    folder, markdown = run
    metrics = json.loads((folder / "metrics.json").read_text())
    assert f"accuracy: **{metrics['test']['accuracy']:.4f}**" in markdown
    assert f"accuracy, linear baseline: **{metrics['baseline']['accuracy']:.4f}**" in markdown
    for epoch in metrics["history"]:
        assert f"| {epoch['loss']:.4f} | {epoch['val_loss']:.4f} |" in markdown
    seconds = metrics["cost"]["seconds"]
    assert list(seconds) == ["data", "tokens", "training", "judging", "baseline"]
    assert sum(seconds.values()) <= metrics["seconds"] + 0.5
    assert metrics["cost"]["weights"] > 1000 and f"{metrics['cost']['weights']:,}" in markdown


def test_the_linear_path_alone_is_compared_with_the_model(run):
    folder, markdown = run
    metrics, bundle = json.loads((folder / "metrics.json").read_text()), Bundle.load(folder)
    texts, labels = zip(*news_rows(90, seed=2), strict=True)
    logits = bundle.model.linear_logits(bundle.preprocessor(list(texts)))
    named = [LABEL if label == "sport" else label for label in labels]
    correct = [bundle.labels[place] == name for place, name in zip(np.argmax(logits, 1), named, strict=True)]
    found = metrics["linear_path"]
    assert found["accuracy"] == pytest.approx(np.mean(correct))
    assert found["comparison"]["accuracy"]["difference"] == pytest.approx(
        metrics["test"]["accuracy"] - np.mean(correct)
    )
    assert "| linear path alone |" in markdown


def test_duplicates_and_conflicts_are_listed(run):
    _, markdown = run
    duplicates = markdown.split("## Duplicates")[1].split("## Reproducibility")[0]
    assert "1 of them have different labels" in duplicates
    assert "| not agreed | 2 | food ×1, money ×1 | train.csv:" in duplicates
    assert "| twice here | 3 | food | train.csv:" in duplicates


def test_label_errors_are_searched_in_evaluated_rows(run):
    folder, markdown = run
    data = json.loads((folder / "metrics.json").read_text())["data"]
    rows = data["validation_rows"] + data["test_rows"]
    assert f"searched {rows} validation and test rows" in markdown


def test_the_command_has_the_settings_of_the_run(run):
    folder, markdown = run
    lines = markdown.split("## Reproducibility")[1].splitlines()
    command = next(line for line in lines if line.startswith("python -m training.fit"))
    assert command == json.loads((folder / "bundle.json").read_text("utf-8"))["trained"]["command"]
    shown = parse(FitConfig, shlex.split(command)[3:], "fit")
    saved = parse(FitConfig, ["--config", str(folder / "config.toml")], "fit")
    for name in ("data", "text", "encoder", "classify", "optimizer", "task", "baseline", "report"):
        one, other = getattr(shown, name), getattr(saved, name)
        # The command omits settings that the fit derives from the task.
        if name in ("text", "encoder"):
            assert all(value is None or value == getattr(other, field) for field, value in vars(one).items())
        else:
            assert one == other


@needs_chromium
def test_the_page_in_a_browser(run):
    folder, _ = run
    with chromium.open_browser() as tab:
        tab.open((folder / "report.html").as_uri())
        tab.wait_for("document.images.length && [...document.images].every(image => image.complete)")
        # Two learning curves, confusion matrix, reliability diagram, lengths.
        assert tab.evaluate("document.images.length") == 5
        assert tab.evaluate("[...document.images].every(image => image.naturalWidth > 100 && image.alt)")
        table = "[...document.querySelectorAll('table')].find(t => t.caption?.textContent.startsWith('Each label'))"
        names = tab.evaluate(f"[...{table}.tBodies[0].rows].map(row => row.cells[0].textContent)")
        assert names == sorted([LABEL, "food", "money"])
        links = tab.evaluate(
            "[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash))"
        )
        assert links and tab.problems == []


def test_failed_report_does_not_fail_the_run(tmp_path, capsys):
    report_fit(RunContext(FitConfig(), tmp_path, tmp_path), None, None, {}, "")  # pyright: ignore
    assert "no report was written, AttributeError" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("frequency", [None, 2])
def test_few_texts_have_each_word_in_the_vocabulary_and_in_the_linear_path(tmp_path, frequency):
    places = "here", "there"
    words = ["".join(letters) for letters in itertools.product("bdfg", "aeiou", "klm")]
    rows = [(f"{word} {place}", place) for word, place in itertools.product(words[:10], places)]
    once = [(f"x{word}", place) for word, place in zip(words, itertools.cycle(places), strict=False)]
    train = write_csv(tmp_path / "train.csv", [*rows, *once])
    flags = ["--encoder.size=none", "--no-baseline", "--no-report", "--out", tmp_path / "run"]
    more = [] if frequency is None else [f"--text.min-frequency={frequency}"]
    fitted = call(main, "--data.train", train, *flags, *more)
    assert fitted.status == 0, fitted.err
    bundle = Bundle.load(tmp_path / "run")
    known = [f"x{word}" in bundle.preprocessor.vocabulary.tokens for word in words]
    assert all(known) if frequency is None else not any(known)
    if frequency is None:
        # Also the words of validation rows.
        found = bundle.predict([text for text, _ in once])
        assert [each["label"] for each in found] == [place for _, place in once]

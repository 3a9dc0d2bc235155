"""The command on tiny untrained runs of every task: its numbers are those of `training.evaluate`."""

import csv
import json
import random
import re
import shutil
import sys
import types

import numpy as np
import pytest

from kmha.bundle.manifest import sha256
from kmha.errors import InputError
from tests.bundles import TEXTS, masked_bundle, one_label_bundle, several_label_bundle, tagger_bundle
from tests.command_runs import call, refused, write_csv
from tests.export.pair_bundles import bundle_of
from tests.pair_rows import ranking_rows
from training.evaluation.evaluator import evaluate_file
from training.io.examples import ColumnOverrides
from training.report import _build_report, main
from training.reporting import build
from training.reporting.blocks import score_name
from training.reporting.build import escape_markdown
from training.reporting.overview import COMPARED

HOSTILE = "<script>alert(1)</script> old | bread"
NEW = "<b>new</b>"
ROWS = 120


def texts(count: int = ROWS) -> list[str]:
    rng, words = random.Random(3), " ".join(TEXTS).split()
    return [" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(count - 1)] + [HOSTILE]


def pair_table(path, labels, queries=False):
    rows = ranking_rows(30, 4, 0)
    shown = [(a, b, labels[number % len(labels)], query) for number, (a, b, _, query) in enumerate(rows)]
    shown[-1] = (HOSTILE, *shown[-1][1:])
    header = ("text_a", "text_b", "label", "query_id" if queries else "other")
    return write_csv(path, shown, header)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs and rows for them, by name."""
    folder, rng = tmp_path_factory.mktemp("report"), random.Random(1)
    bundles = {
        "one": one_label_bundle(),
        "several": several_label_bundle(),
        "pairs": bundle_of("cross"),
        "graded": bundle_of("two ways"),
        "tags": tagger_bundle("spelt"),
        "plain tags": tagger_bundle("no scheme"),
        "masked": masked_bundle(),
    }
    data = {}
    for name, bundle in bundles.items():
        bundle.save(folder / name)
        labels = list(bundle.labels)
        path = folder / f"{name.replace(' ', '_')}_rows.csv"
        if name == "one":
            data[name] = write_csv(
                path, [(text, rng.choice([*labels, *labels, *labels, NEW])) for text in texts()]
            )
        elif name == "several":
            rows = [(text, "|".join(rng.sample([*labels, NEW], rng.randint(0, 2)))) for text in texts()]
            data[name] = write_csv(path, rows, ("text", "labels"))
        elif name == "masked":
            data[name] = path.with_suffix(".txt")
            data[name].write_text("\n".join(texts()), "utf-8")
        elif "tags" in name:
            data[name] = path.with_suffix(".conll")
            tags = labels if name == "plain tags" else ["O", "B-LOC", "B-PER"]
            sentences = (
                "".join(f"{word} {rng.choice(tags)}\n" for word in text.split()) for text in texts(40)
            )
            data[name].write_text("\n".join(sentences), "utf-8")
        else:
            targets = {"pairs": "01", "graded": ["0", "2.5", "5"]}[name]
            data[name] = pair_table(path, targets, queries=name == "pairs")
    return folder, data, bundles


def column(name: str) -> list[str]:
    return ["--label-column", "labels"] if name == "several" else []


@pytest.fixture(scope="module")
def reports(runs):
    """The JSON object, page and model card of each run."""
    folder, data, _ = runs
    outcomes = {}
    for name, path in data.items():
        page = folder / f"{name}.html"
        outcome = call(main, folder / name, "--data", path, "--out", page, *column(name))
        assert outcome.status == 0, outcome.err
        outcomes[name] = outcome.json, page.read_text("utf-8"), page.with_suffix(".md").read_text("utf-8")
    return outcomes


def rows_of(markdown: str, caption: str) -> list[list[str]]:
    """The cells of the table whose caption begins so."""
    body = markdown.split(f"\n{caption}", 1)[1].split("\n\n", 2)[1]
    return [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in body.splitlines()[2:]]


@pytest.mark.parametrize("name", ["one", "several", "pairs", "tags", "plain tags"])
def test_scores_are_those_of_evaluate(runs, reports, tmp_path, name):
    folder, data, bundles = runs
    line, html, markdown = reports[name]
    given = ColumnOverrides(label=column(name)[1] if column(name) else "")
    scores = evaluate_file(bundles[name], data[name], given, False, tmp_path)
    table = {cells[0]: cells[1] for cells in rows_of(markdown, "Scores of the")}
    assert line["rows"] == scores["rows"]
    assert {"loss"} < table.keys()
    names = {score_name(key): key for key in COMPARED}
    for each, shown in table.items():
        assert float(shown) == pytest.approx(scores[names[each]], abs=6e-5)
        assert f"<td>{each}</td><td>{shown}</td>" in html
    per_label = scores.get("per_class") or scores.get("per_type") or {}
    if per_label:
        cells = rows_of(markdown, "Each ")
        assert len(cells) == len(per_label)
        for row, (label, values) in zip(cells, per_label.items(), strict=True):
            assert int(row[1]) == values["support"], label
            found = [float(row[place]) for place in (2, 4, 6)]
            expected = [values[each] for each in ("f1", "precision", "recall")]
            np.testing.assert_allclose(found, expected, atol=6e-5)


def test_texts_and_labels_are_escaped(reports):
    assert len(reports) == 7
    for line, html, markdown in reports.values():
        assert "<script" not in html and "<b>new" not in html
        assert "default-src 'none'" in html
        assert f"evaluated on {line['rows']} " in markdown and "| loss |" in markdown


def test_the_verdict_comes_first(reports):
    for name, (line, html, markdown) in reports.items():
        assert html.index("Verdict") < html.index("Scores")
        lead = markdown.split("## Verdict\n\n", 1)[1].split("\n\n")[0]
        score = next(value for key, value in line.items() if key not in ("page", "card", "rows"))
        assert lead.startswith("**") and (score is None or f"{score:.4f}" in lead), name
    weakest = re.findall(r"Weakest label: (.+?), F1 (.+?),", reports["one"][2])
    lowest = min(rows_of(reports["one"][2], "Each "), key=lambda row: float(row[2]))
    assert weakest == [(lowest[0], lowest[2])]
    row = rows_of(reports["one"][2], "Most frequent confusions")[0]
    assert f"Most frequent confusion: {row[0]} predicted as {row[1]}, {row[2]} times" in reports["one"][2]


def test_digits_and_addresses_are_masked(runs, tmp_path):
    folder, _, bundles = runs
    (label, *_) = bundles["one"].labels
    secret = [("call 555 1234 or write to anna.b@mail.example", label)] * 20 + [("old ferry 7", label)] * 100
    data = write_csv(tmp_path / "rows2.csv", secret)
    found = {}
    for flags in ([], ["--mask-texts"]):
        page = tmp_path / "page.html"
        assert call(main, folder / "one", "--data", data, "--out", page, *flags).status == 0
        found[bool(flags)] = page.read_text("utf-8") + page.with_suffix(".md").read_text("utf-8")
    assert "555" in found[False] and "anna.b@mail" in found[False]
    assert "call ### #### or write to [e-mail]" in found[True]
    for hidden in ("555", "anna.b", "mail.example", "ferry 7"):
        assert hidden not in found[True]
    # Line numbers are not masked.
    assert "rows2.csv:" in found[True]


def test_rows_to_review_follow_the_probabilities(runs, reports):
    """Most confident errors and most uncertain rows, from the bundle's own probabilities."""
    folder, data, _ = runs
    _, _, markdown = reports["one"]
    bundle = one_label_bundle()
    found = bundle.probabilities(texts())
    with open(data["one"], newline="", encoding="utf-8") as file:
        labels = [row["label"] for row in csv.DictReader(file)]
    right = np.array([bundle.labels[place] for place in found.argmax(axis=1)]) == np.array(labels)
    most_confident = sorted(found.max(1)[~right], reverse=True)[:15]
    rows = rows_of(markdown, "Most confident errors")
    np.testing.assert_allclose([float(row[3]) for row in rows], most_confident, atol=6e-5)
    assert f"of {int((~right).sum())} among {ROWS}" in markdown
    ranked = np.sort(found, axis=1)
    closest = ranked[np.argsort(ranked[:, -1] - ranked[:, -2])[:15], -1]
    rows = rows_of(markdown, "Most uncertain rows")
    np.testing.assert_allclose([float(row[3]) for row in rows], closest, atol=6e-5)
    for row in rows:
        assert (match := re.fullmatch(r"one\\_rows.csv:([0-9]+)", row[4]))
        # The header is line 1.
        place = int(match[1]) - 2
        expected = texts()[place], labels[place], bundle.labels[found[place].argmax()]
        assert row[:3] == [escape_markdown(each) for each in expected]
    # Labels that the model does not have are not searched.
    assert f"searched {ROWS - labels.count(NEW)} one" in markdown


def test_errors_of_several_labels_are_decisions(runs, reports):
    rows = rows_of(reports["several"][2], "Most confident errors")
    for row in rows:
        _, label, true, predicted, probability, threshold, _ = row
        assert true != predicted and label in several_label_bundle().labels
        assert (float(probability) >= float(threshold)) == (predicted == "yes")


def test_worst_queries_are_listed(reports):
    markdown = reports["pairs"][2]
    for row in rows_of(markdown, "Worst queries"):
        rank, of = map(int, row[3].split(" of "))
        assert 1 < rank <= of == 4
        assert float(row[4]) <= float(row[5])


def test_words_are_shown_in_context(reports):
    for row in rows_of(reports["tags"][2], "Most confident errors"):
        assert re.search(r"«\S+»", row[0]) and row[1] != row[2]


def test_without_the_extra_the_report_has_tables_only(runs, tmp_path, monkeypatch):
    folder, data, _ = runs
    for library in ("matplotlib", "cleanlab"):
        monkeypatch.setitem(sys.modules, library, None)
    outcome = call(main, folder / "one", "--data", data["one"], "--out", tmp_path / "page.html")
    assert outcome.status == 0, outcome.err
    html = (tmp_path / "page.html").read_text("utf-8")
    assert "matplotlib is not installed" in html and "cleanlab is not installed" in html
    assert "<img" not in html and "Most confident errors" in html


def test_training_rows_are_rejected(runs, tmp_path):
    folder, data, _ = runs
    manifest = json.loads((folder / "one" / "bundle.json").read_text("utf-8"))
    manifest["data"] = {"train": {"name": "a.csv", "sha256": sha256(data["one"])}}
    (tmp_path / "bundle.json").write_text(json.dumps(manifest), "utf-8")
    message = refused(tmp_path, main, str(tmp_path), "--data", str(data["one"]))
    assert "expected rows that the run was not trained on" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none", "--data", "rows.csv"], "expected a run folder"),
        (["one", "--data", "none.csv"], "none.csv"),
        (["one", "--data", "one_rows.csv", "--out", "page.txt"], "expected a name that ends in .html"),
        (["one", "--data", "one_rows.csv", "--out", "no/page.html"], "expected a folder that exists"),
        (["one", "--data", "one_rows.csv", "--out", "README.html"], "README.md too, got one that is taken"),
        (["one", "--data", "one_rows.csv", "--label-column", "other"], "other"),
    ],
)
def test_wrong_input_is_one_line(runs, monkeypatch, tmp_path, arguments, message):
    folder = runs[0]
    monkeypatch.chdir(folder)
    (folder / "README.md").touch()
    assert message in refused(folder, main, *arguments)


def test_a_damaged_metrics_file_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "build_report", lambda data: data.metrics["history"][0]["loss"])
    report_data = types.SimpleNamespace(metrics={"history": [1]})
    with pytest.raises(InputError, match=r"metrics\.json: expected what training\.fit writes"):
        _build_report(report_data, tmp_path)


def test_metrics_of_the_fit_are_shown_for_its_evaluated_rows(runs, tmp_path):
    """Baseline and learning curves of the fit."""
    folder, data, _ = runs
    run = shutil.copytree(folder / "one", tmp_path / "run")
    manifest = json.loads((run / "bundle.json").read_text("utf-8"))
    manifest["data"] = {"test": {"name": "a.csv", "sha256": sha256(data["one"])}}
    (run / "bundle.json").write_text(json.dumps(manifest), "utf-8")
    before = {path.name for path in run.iterdir()}
    epoch = {
        "epoch": 0,
        "loss": 1.0,
        "val_loss": 1.1,
        "val_accuracy": 0.5,
        "learning_rate": 0.1,
        "tokens_per_second": 9,
    }
    base = {
        "description": "a linear model",
        "accuracy": 0.4,
        "macro_f1": 0.3,
        "rows": ROWS,
        "intervals": {"accuracy": [0.3, 0.5]},
    }
    metrics = {"judged_on": "test", "history": [epoch], "best_epoch": 0, "baseline": base, "seconds": 3.0}
    metrics["next"] = [{"reason": "export it", "command": "python -m export.savedmodel runs/x served/x"}]
    (tmp_path / "run" / "metrics.json").write_text(json.dumps(metrics))
    outcome = call(main, run, "--data", data["one"])
    assert outcome.status == 0, outcome.err
    assert {path.name for path in run.iterdir()} - before == {"metrics.json", "report.html", "report.md"}
    assert outcome.json["page"] == str(run / "report.html")
    markdown = (tmp_path / "run" / "report.md").read_text("utf-8")
    assert "evaluated on 120 test rows" in markdown and "a linear model" in markdown
    assert "not compared on the same rows, model" in markdown
    (row,) = (row for row in rows_of(markdown, "Scores of the") if row[0] == "accuracy")
    assert row[3:] == ["0.4000", "0.300 – 0.500"]
    assert "Next, export it:\n\n```bash\npython -m export.savedmodel runs/x served/x\n```" in markdown
    assert rows_of(markdown, "Epochs")[0][:4] == ["1 (saved)", "1.0000", "1.1000", "0.5000"]

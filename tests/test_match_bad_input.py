"""Invalid pairs: one line on stderr, exit status 2, no partial output."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.bundles import PAIRS, make_pair_bundle
from tests.command_runs import TINY, call, refused, write_csv
from tests.pair_rows import paraphrase_rows
from training.evaluate import main as evaluate
from training.fit import main as fit
from training.predict import main as predict

HEADER = "text_a,text_b,label\n"
ROWS = [tuple(map(str, row)) for row in paraphrase_rows(24, seed=0)]
GOOD = HEADER + "".join(",".join(row) + "\n" for row in ROWS)
TRIPLETS = "anchor,positive,negative\n"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working folder with a valid file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.csv").write_text(GOOD, "utf-8")
    return tmp_path


DATA = {
    "no second text": ("text_a,label\nx,1\n", "--data.text-b-column: expected a column text_b (or the columns"
        " anchor, positive, negative), got text_a, label; did you mean --data.text-b-column text_a?"),
    "no label": ("text_a,text_b,score\nx,y,1\n", "--data.label-column: expected a column label"),
    "neither pairs nor triplets": ("anchor,positive\nx,y\n", "--data.text-column: expected a column text_a"),
    "a row without its second text": (f"{HEADER}x,y,1\nx,0\n", "a.csv:3: expected 3 fields (text_a, text_b,"
        " label), got 2"),
    "a triplet without its wrong text": (f"{TRIPLETS}x,y,z\nx,y\n", "a.csv:3: expected 3 fields"),
    "a row without label": (f"{HEADER}x,y,1\nz,w,\n", "a.csv:3: label must be one label, got none"),
    "one label only": (f"{HEADER}x,y,1\nz,w,1\n", "a.csv: expected training rows with two different labels or more"),
    "a lone class": (f"{HEADER}x,y,yes\nz,w,no\nu,v,no\n", "a.csv:2: expected two training rows or more for"),
    "only a header": (HEADER, "a.csv: expected rows, got nothing after the header"),
    "a query without a name": ("text_a,text_b,label,query_id\nx,y,1,q\nz,w,0, \n", "a.csv:3: query_id must"
        " be one name, got none"),
    "a column twice": ("text_a,text_b,label,label\nx,y,1,1\n", "a.csv:1: expected unique column names"),
}  # fmt: skip


@pytest.mark.parametrize("case", DATA)
def test_rows_that_are_not_pairs_are_refused(folder, case):
    content, message = DATA[case]
    (folder / "a.csv").write_text(content, "utf-8")
    assert refused(folder, fit, "--task", "match", "--data.train", "a.csv").startswith(message)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text_a": "x", "label": "1"}, "a.jsonl:2: expected column 'text_b', got columns text_a, label"),
        ({"text_a": "x", "text_b": None, "label": "1"}, "a.jsonl:2: expected a string, a number or a list of strings"
            " for 'text_b', got null"),
        ({"text_a": ["x"], "text_b": "y", "label": "1"}, "a.jsonl:2: text_a must be one text, got a list"),
        ({"text_a": "x", "text_b": "y", "label": ["0", "1"]}, "a.jsonl:2: label must be one label, got 2"),
    ],
)  # fmt: skip
def test_a_json_row_that_is_not_a_pair_is_refused(folder, row, message):
    rows = [{"text_a": "x", "text_b": "y", "label": 1}, row]
    (folder / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    assert refused(folder, fit, "--task", "match", "--data.train", "a.jsonl").startswith(message)


@pytest.mark.parametrize(
    ("label", "flags", "message"),
    [
        ("good", ["--match.target=graded"], "a.csv:26: label must be a number, got 'good'"),
        ("good", ["--match.target=binary"], "a.csv:26: label must be 0 or 1, got 'good'"),
        ("2", ["--match.target=binary"], "a.csv:26: label must be 0 or 1, got '2'"),
        ("good", ["--match.loss=squares"], "--match.loss: expected cross-entropy for classes such as 'good'"),
        ("good", ["--match.loss=listwise"], "--match.loss: expected cross-entropy for classes such as 'good'"),
        ("good", ["--match.form=bi"], "--match.form: expected cross or joint for classes such as 'good'"),
        ("2", ["--match.loss=cross-entropy"], "--match.loss: expected squares, triplet, listwise or"),
        ("1", ["--match.loss=squares"], "--match.loss: expected cross-entropy, triplet, listwise or"),
        ("1", ["--match.best-by=map"], "--match.best-by: expected one of accuracy, f1, roc_auc, average_prec"),
        ("1", ["--match.loss=contrastive"], "--match.form: expected bi for --match.loss contrastive"),
        ("1", ["--match.form=bi", "--encoder.size=none"], "--encoder.size none: expected --task classify, or match"),
        ("1", ["--match.form=bi", "--match.overlap=True"], "--match.overlap: expected none in the bi form"),
    ],
)  # fmt: skip
def test_labels_that_do_not_fit_the_settings_are_refused(folder, label, flags, message):
    (folder / "a.csv").write_text(f"{GOOD}x,y,{label}\n")
    assert refused(folder, fit, "--task=match", "--data.train", "a.csv", *flags).startswith(message)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task=match"], "--data.train: expected pairs of texts for --task match (the sample has none)"),
        (["--data.train=good.csv", "--data.text-b-column=text_b"], "--data.text-b-column: expected --task match"),
        (["--task=match", "--data.train=good.csv", "--data.test=test.csv"], "test.csv:3: the label must be 0 or"
            " 1 for a binary target, got '2'"),
        (["--task=match", "--data.train=good.csv", "--match.hard-negatives=none.csv"], "--match.hard-negatives"
            " none.csv: none.csv: expected a run folder with bundle.json"),
        (["--task=match", "--data.train=good.csv", "--match.granularities", "letters"],
            "--match.granularities: expected"),
        (["--task=match", "--data.train=good.csv", "--match.rounds=0"], "--match.rounds: expected at least 1"),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused(folder, flags, message):
    (folder / "test.csv").write_text(f"{HEADER}x,y,1\nz,w,2\n")
    assert refused(folder, fit, *flags).startswith(message)


def test_validation_rows_with_an_undefined_metric_are_refused(folder):
    rows = [(a, b, label, f"q{number // 3}") for number, (a, b, label) in enumerate(ROWS)]
    header = ("text_a", "text_b", "label", "query_id")
    write_csv(folder / "train.csv", rows, header)
    write_csv(folder / "wrong.csv", [("x", "y", "0", "q"), ("x", "z", "0", "q")], header)
    files = ["--data.train=train.csv", "--data.validation=wrong.csv"]
    outcome = call(fit, "--task=match", *files, *TINY)
    assert outcome.status == 2 and outcome.out == ""
    assert outcome.err.splitlines()[-1] == (
        "error: wrong.csv: expected validation rows with a defined map, got 2 without"
    )
    assert not (folder / "runs").exists()


@pytest.mark.second
def test_edge_case_rows_are_trained_on_and_scored(folder):
    """Identical texts, empty sides, a duplicate pair, and queries without a training signal."""
    header = ("text_a", "text_b", "label", "query_id")
    rows = [(a, b, label, f"q{number // 4}") for number, (a, b, label) in enumerate(ROWS)]
    odd = [("same", "same", "1", "o"), ("", "x y", "0", "o"), ("x y", " ", "0", "o"), ("", "", "1", "o")]
    write_csv(folder / "a.csv", [*rows, *odd, odd[0], ("one", "alone", "1", "lone")], header)
    # No query has a right candidate: the undefined metrics must not fail.
    evaluated = [
        ("u", "v", "0", "none"),
        ("u", "w", "0", "none"),
        ("same", "same", "0", "p"),
        ("", "", "0", "p"),
    ]
    write_csv(folder / "b.csv", evaluated, header)
    flags = ["--match.loss=listwise", "--train.epochs=1", "--data.validation-fraction=0.3"]
    outcome = call(fit, "--task=match", "--data.train=a.csv", "--data.test=b.csv", *TINY, *flags)
    assert outcome.status == 0, outcome.err
    assert "skipped: too few candidates for the listwise loss" in outcome.err
    assert "test: map is undefined for these rows" in outcome.err
    assert "map: cannot be compared" in outcome.err
    scores = call(evaluate, "runs/a", "--data", "b.csv").json
    assert scores["map"] is scores["roc_auc"] is None and scores["queries_without_right"] == 2
    predicted = call(predict, "runs/a", stdin=b"same\tsame\n\t\n \tx\n")
    found = [json.loads(line)["score"] for line in predicted.out.splitlines()]
    assert len(found) == 3 and np.isfinite(found).all()


@pytest.fixture(scope="module")
def pair_folder(tmp_path_factory) -> Path:
    """A binary matcher with random weights."""
    folder = tmp_path_factory.mktemp("pairs") / "run"
    make_pair_bundle().save(folder)
    return folder


@pytest.mark.parametrize(
    ("lines", "count", "message"),
    [
        (b"one text\n", 0, "stdin:1: expected text_a and text_b with one tab between them, got none"),
        (b"a\tb\nc\td\ne\n", 2, "stdin:3: expected text_a and text_b with one tab between them, got none"),
        (b"a\tb\tc\n", 0, "stdin:1: expected text_a and text_b with one tab between them, got 2 tabs"),
        (b"a\tb\n\n", 1, "stdin:2: expected text_a and text_b with one tab between them, got none"),
    ],
)
def test_lines_before_an_invalid_line_have_predictions(pair_folder, lines, count, message):
    outcome = call(predict, pair_folder, stdin=lines)
    assert (outcome.status, outcome.err) == (2, f"error: {message}\n")
    assert len(outcome.out.splitlines()) == count


def test_invalid_ranking_input_is_refused(folder, pair_folder, news_run):
    (folder / "empty.txt").touch()
    (folder / "texts.txt").write_text("a\nb\n")

    def ranked(run, *flags) -> str:
        return refused(folder, predict, str(run), *flags)

    assert ranked(pair_folder, "--rank", "none.txt").startswith(
        "--rank none.txt: expected a file of candidates"
    )
    assert ranked(pair_folder, "--rank", "empty.txt").endswith("one a line, got an empty file")
    assert ranked(news_run.folder, "--rank", "texts.txt").startswith(
        "--rank: expected a run that matches pairs"
    )
    make_pair_bundle(labels=["yes", "no"], target="classes").save(folder / "classes")
    message = ranked(folder / "classes", "--rank", "texts.txt")
    assert message == "ranking: expected a matcher that gives scores, got a matcher of classes"


@pytest.mark.parametrize(
    ("content", "flags", "message"),
    [
        (f"{HEADER}x,y,2\n", [], "a.csv:2: label must be 0 or 1, got '2'"),
        (f"{HEADER}x,y,yes\n", [], "a.csv:2: label must be 0 or 1, got 'yes'"),
        ("text_a,text_c,label\nx,y,1\n", [], "a.csv: expected column 'text_b'"),
        ("text_a,text_b\nx,y\n", [], "a.csv: expected column 'label'"),
        (f"{HEADER}x,y,1\n", ["--text-b-column=b"], "a.csv: expected column 'b'"),
        (f"{HEADER}x,y,1\n", ["--query-column=qid"], "--query-column: expected a column qid, got text_a, text_b"),
    ],
)  # fmt: skip
def test_invalid_evaluation_rows_are_refused(folder, pair_folder, content, flags, message):
    (folder / "a.csv").write_text(content)
    assert refused(folder, evaluate, str(pair_folder), "--data", "a.csv", *flags).startswith(message)


def test_a_classifier_refuses_column_flags_of_pairs(folder, news_run):
    for flag in ("--text-b-column", "--query-column"):
        message = refused(folder, evaluate, str(news_run.folder), "--data", "good.csv", flag, "x")
        assert message == f"{flag}: expected a run that matches pairs, got a classifier"


def test_a_matcher_of_triplets_is_evaluated_on_pairs_and_on_triplets(folder):
    bundle = make_pair_bundle()
    bundle.details["columns"] = {"text": "anchor", "text_b": "positive", "wrong": "negative"}
    bundle.save(folder / "run")
    (folder / "pairs.csv").write_text("query_id,text_a,text_b,label\nq,a,b,1\nq,a,c,0\n")
    scores = call(evaluate, folder / "run", "--data", "pairs.csv").json
    assert (scores["rows"], scores["queries"]) == (2, 1)
    (folder / "triplets.csv").write_text(f"{TRIPLETS}a,b,c\nd,e,f\n")
    assert call(evaluate, folder / "run", "--data", "triplets.csv").json["rows"] == 4


def test_every_pair_has_a_prediction(pair_folder):
    stdin = "".join(f"{a}\t{b}\n" for a, b in PAIRS).encode()
    assert len(call(predict, pair_folder, stdin=stdin).out.splitlines()) == len(PAIRS)

import csv
import json
import math
import subprocess
import sys

import pytest

from kmha.bundle.bundle import Bundle
from tests.command_runs import ROOT, call, clean_environment, refused
from training.predict import main


def test_every_line_is_predicted_in_order(news_run):
    lines = [
        b"soup",
        b"",
        b"ball goal",
        b"\xff\xfe not text",
        b"soup",
        b" ",
        "中文 😀".encode(),
        b"x" * 100_000,
        b"\0",
    ]
    outcome = call(main, news_run.folder, stdin=b"\n".join(lines))
    assert outcome.status == 0 and outcome.err == ""
    predictions = [json.loads(line) for line in outcome.out.splitlines()]
    assert len(predictions) == len(lines)
    bundle = Bundle.load(news_run.folder)
    for prediction, expected in zip(predictions, bundle.predict(lines), strict=True):
        assert (
            prediction["label"]
            == expected["label"]
            == max(prediction["probabilities"], key=prediction["probabilities"].get)
        )
        assert prediction["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
        assert all(math.isfinite(value) for value in prediction["probabilities"].values())
        assert sum(prediction["probabilities"].values()) == pytest.approx(1, abs=1e-4)


def test_windows_line_ends_and_a_final_line_end(news_run):
    plain = call(main, news_run.folder, stdin=b"soup\nball")
    assert call(main, news_run.folder, stdin=b"soup\r\nball\r\n").out == plain.out
    assert len(plain.out.splitlines()) == 2


def test_empty_input_gives_no_predictions(news_run):
    outcome = call(main, news_run.folder)
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")


def test_only_the_most_probable_labels(news_run):
    everything = json.loads(call(main, news_run.folder, stdin=b"soup").out)
    prediction = json.loads(call(main, news_run.folder, "--top", "2", stdin=b"soup").out)
    ranked = sorted(everything["probabilities"].items(), key=lambda item: -item[1])
    assert list(prediction["probabilities"].items()) == ranked[:2]
    assert prediction["label"] == ranked[0][0] and prediction["probability"] == ranked[0][1]


def test_several_labels_are_those_past_their_threshold(topics_run):
    prediction = json.loads(call(main, topics_run.folder, stdin=b"soup bread ball goal").out)
    thresholds = Bundle.load(topics_run.folder).thresholds
    assert thresholds is not None
    limits = dict(zip(sorted(prediction["probabilities"]), thresholds, strict=True))
    assert set(prediction["labels"]) == {
        name for name, p in prediction["probabilities"].items() if p >= limits[name]
    }


@pytest.mark.second
def test_a_closed_output_pipe_ends_the_command_without_a_message(news_run):
    command = f"yes soup | head -5000 | {sys.executable} -m training.predict {news_run.folder} | head -1"
    done = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[2]}}"],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout).keys() == {"label", "probability", "probabilities"}
    assert done.returncode == 141


TABLE = "id;Label;Text\n1;food;soup brûlée\n2;;\n3;sport;ball goal\n"


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_table_gets_the_columns_of_the_predictions(news_run, tmp_path, suffix):
    (tmp_path / "in.csv").write_bytes(TABLE.encode("cp1252"))
    out = tmp_path / f"out{suffix}"
    flags = ["--data.delimiter", ";", "--data.encoding", "cp1252", "--out", out]
    outcome = call(main, news_run.folder, "--data", tmp_path / "in.csv", *flags)
    assert (outcome.status, outcome.out, outcome.err) == (0, f"{out}\n", "")
    rows = read_table(out)
    expected = Bundle.load(news_run.folder).predict(["soup brûlée", "", "ball goal"])
    assert [row["id"] for row in rows] == ["1", "2", "3"]
    assert [row["Label"] for row in rows] == ["food", "", "sport"]
    for row, each in zip(rows, expected, strict=True):
        assert row["label"] == each["label"]
        assert float(row["probability"]) == pytest.approx(each["probability"], abs=1e-5)
        assert ("probabilities" in row) == (suffix == ".jsonl")
    refusal = call(main, news_run.folder, "--data", tmp_path / "in.csv", *flags)
    assert refusal.status == 2 and "use --overwrite" in refusal.err


def read_table(path):
    if path.suffix == ".parquet":
        return pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    with open(path, encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file]
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def test_columns_of_the_input_with_the_names_of_predictions_are_renamed(news_run, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "soup", "label": 3, "more": {"a": [1.5]}}\n')
    prediction = call(main, news_run.folder, "--data", path).json
    assert (prediction["input_label"], prediction["more"]) == (3, {"a": [1.5]})
    assert prediction["label"] == Bundle.load(news_run.folder).predict(["soup"])[0]["label"]


def test_an_invalid_row_leaves_no_table(news_run, tmp_path):
    (tmp_path / "in.csv").write_text("text,label\nx,y\nx,y,z\n")
    message = refused(
        tmp_path, main, str(news_run.folder), "--data", "in.csv", "--out", str(tmp_path / "o.csv")
    )
    assert "expected a file, got no such file" in message
    path = str(tmp_path / "in.csv")
    message = refused(tmp_path, main, str(news_run.folder), "--data", path, "--out", str(tmp_path / "o.csv"))
    assert message == f"{path}:3: expected 2 fields (text, label), got 3"


def test_texts_in_arguments(news_run):
    outcome = call(main, news_run.folder, "soup bread", "ball\ngoal", "--top", "1")
    labels = [json.loads(line)["label"] for line in outcome.out.splitlines()]
    assert labels == [
        each["label"] for each in Bundle.load(news_run.folder).predict(["soup bread", "ball goal"])
    ]


@pytest.mark.parametrize(
    ("line", "got", "suffix"),
    [
        (b"id,Text,label\n1,x,y\n", "the header of a table", "csv"),
        (b'"text";"label"\r\n', "the header of a table", "csv"),
        (b'{"text": "x"}\n', "a JSON object", "jsonl"),
    ],
)
def test_a_table_on_stdin_is_refused(news_run, line, got, suffix):
    outcome = call(main, news_run.folder, stdin=line)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err == (
        f"error: stdin:1: expected one text per line, got {got}; python -m training.predict RUN"
        f" --data FILE.{suffix} --out PREDICTIONS.{suffix}\n"
    )


@pytest.mark.parametrize("line", [b"Text, then more\n", b"text\n", b"label,other\n", b"{x}\n"])
def test_texts_that_resemble_a_header_are_predicted(news_run, line):
    assert call(main, news_run.folder, stdin=line).status == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--out", "o.csv"], "--out: expected --data with it, got none"),
        (["x", "--data", "in.csv"], "TEXT: expected none with --data, got one"),
        (
            ["--data", "in.csv", "--out", "o.xlsx"],
            "--out o.xlsx: expected a name that ends in .csv, .tsv, .jsonl, .p",
        ),
        (["--data", "in.csv", "--text-column", "body"], "in.csv: expected column 'body', got columns text"),
    ],
)
def test_flags_that_do_not_go_together(news_run, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("text\nx\n")
    assert refused(tmp_path, main, str(news_run.folder), *flags).startswith(message)

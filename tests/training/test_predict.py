import json
import math
import subprocess
import sys

import pytest

from kmha.bundle.bundle import Bundle
from tests.command_runs import ROOT, call, clean_environment
from training.predict import main


def test_every_line_is_answered_in_order(news_run):
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
    answers = [json.loads(line) for line in outcome.out.splitlines()]
    assert len(answers) == len(lines)
    bundle = Bundle.load(news_run.folder)
    for answer, expected in zip(answers, bundle.predict(lines), strict=True):
        assert (
            answer["label"]
            == expected["label"]
            == max(answer["probabilities"], key=answer["probabilities"].get)
        )
        assert answer["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
        assert all(math.isfinite(value) for value in answer["probabilities"].values())
        assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-4)


def test_line_ends_of_windows_and_a_last_line_with_its_end(news_run):
    plain = call(main, news_run.folder, stdin=b"soup\nball")
    assert call(main, news_run.folder, stdin=b"soup\r\nball\r\n").out == plain.out
    assert len(plain.out.splitlines()) == 2


def test_no_line_no_answer(news_run):
    outcome = call(main, news_run.folder)
    assert (outcome.status, outcome.out, outcome.err) == (0, "", "")


def test_only_the_most_probable_labels(news_run):
    everything = json.loads(call(main, news_run.folder, stdin=b"soup").out)
    answer = json.loads(call(main, news_run.folder, "--top", "2", stdin=b"soup").out)
    ranked = sorted(everything["probabilities"].items(), key=lambda item: -item[1])
    assert list(answer["probabilities"].items()) == ranked[:2]
    assert answer["label"] == ranked[0][0] and answer["probability"] == ranked[0][1]


def test_several_labels_are_those_past_their_threshold(topics_run):
    answer = json.loads(call(main, topics_run.folder, stdin=b"soup bread ball goal").out)
    thresholds = Bundle.load(topics_run.folder).thresholds
    assert thresholds is not None
    cuts = dict(zip(sorted(answer["probabilities"]), thresholds, strict=True))
    assert set(answer["labels"]) == {name for name, p in answer["probabilities"].items() if p >= cuts[name]}


@pytest.mark.second
def test_a_reader_that_leaves_ends_the_command_quietly(news_run):
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

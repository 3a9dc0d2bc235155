"""The command that asks all clients, without any of them."""

import pytest

from clients import check
from clients.check import main, some_texts
from clients.outcome import Outcome, not_run
from clients.small_run import WHO, sentences
from tests.bundles import TEXTS, one_label_bundle
from tests.command_runs import call, write_csv


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["somewhere"], "given RUN alone"),
        (["--data", "rows.csv"], "given --data alone"),
        (["somewhere", "--data", "rows.csv"], "somewhere"),
        (["--clients", "telnet"], "--clients"),
        (["--rows", "0"], "--rows"),
    ],
)
def test_bad_usage_is_one_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = call(main, *arguments)
    assert outcome.status == 2 and not outcome.out
    assert words in outcome.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("outcomes", "flags", "status"),
    [
        ([Outcome("one", "raw text", 3, 3, 0.0)], [], 0),
        ([Outcome("one", "raw text", 3, 3, 0.0), not_run("two", "no such thing")], [], 1),
        ([Outcome("one", "raw text", 3, 3, 0.0), not_run("two", "no such thing")], ["--allow-missing"], 0),
        ([Outcome("one", "raw text", 3, 1, 0.5, problem="differs")], ["--allow-missing"], 1),
    ],
)
def test_the_status_follows_the_outcomes(outcomes, flags, status, tmp_path, monkeypatch):
    given = []

    def ask(material, clients):
        given.append(material)
        yield from outcomes

    monkeypatch.setattr(check, "_outcomes", ask)
    monkeypatch.setattr(check, "_exported", lambda bundle, texts, folder: (len(texts), folder))
    one_label_bundle().save(tmp_path / "run")
    data = write_csv(tmp_path / "rows.csv", [(text, "bread") for text in TEXTS])
    arguments = [tmp_path / "run", "--data", data, "--rows", 3, "--folder", tmp_path / "out", *flags]
    outcome = call(main, *arguments)
    assert outcome.status == status
    assert given == [(3, tmp_path / "out")]
    assert all(one.client in outcome.out for one in outcomes)


def test_texts_are_spread_over_the_file(tmp_path):
    data = write_csv(tmp_path / "rows.csv", [(f"text {number}", "bread") for number in range(101)])
    assert some_texts(one_label_bundle(), data, 3) == ["text 0", "text 50", "text 100"]
    assert len(some_texts(one_label_bundle(), data, 1000)) == 101


def test_the_small_runs_rows_are_sentences_of_every_label():
    rows = sentences(60, 1)
    assert rows == sentences(60, 1) != sentences(60, 2)
    assert {label for _, label in rows} == set(WHO)
    for text, label in rows:
        assert text[0].isupper() and text[-1] in ".!?"
        assert any(
            who in text or who.capitalize() in text or who[0].upper() + who[1:] in text for who in WHO[label]
        )

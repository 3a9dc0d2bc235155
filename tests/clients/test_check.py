"""The check command, with stub clients."""

import pytest

from clients import check, comparison
from clients.check import SUBJECTS, generate_sentences, main, sample_texts
from clients.comparison import ClientResult, not_run
from tests.bundles import TEXTS, one_label_bundle
from tests.command_runs import call, write_csv


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["somewhere"], "got RUN alone"),
        (["--data", "rows.csv"], "got --data alone"),
        (["somewhere", "--data", "rows.csv"], "somewhere"),
        (["--clients", "telnet"], "--clients"),
        (["--rows", "0"], "--rows"),
    ],
)
def test_wrong_usage_is_reported_in_one_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = call(main, *arguments)
    assert outcome.status == 2 and not outcome.out
    assert words in outcome.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("results", "flags", "status"),
    [
        ([ClientResult("one", "raw text", 3, 3, 0.0)], [], 0),
        ([ClientResult("one", "raw text", 3, 3, 0.0), not_run("two", "no such thing")], [], 1),
        (
            [ClientResult("one", "raw text", 3, 3, 0.0), not_run("two", "no such thing")],
            ["--allow-missing"],
            0,
        ),
        ([ClientResult("one", "raw text", 3, 1, 0.5, problem="differs")], ["--allow-missing"], 1),
    ],
)
def test_the_exit_status_depends_on_the_results(results, flags, status, tmp_path, monkeypatch):
    received = []

    def stub_results(exported, clients):
        received.append(exported)
        yield from results

    monkeypatch.setattr(check, "_results", stub_results)
    monkeypatch.setattr(comparison, "export_run", lambda bundle, texts, folder, fill: (len(texts), folder))
    one_label_bundle().save(tmp_path / "run")
    data = write_csv(tmp_path / "rows.csv", [(text, "bread") for text in TEXTS])
    arguments = [tmp_path / "run", "--data", data, "--rows", 3, "--folder", tmp_path / "out", *flags]
    outcome = call(main, *arguments)
    assert outcome.status == status
    assert received == [(3, tmp_path / "out")]
    assert all(result.client in outcome.out for result in results)


def test_texts_are_spread_evenly_over_the_file(tmp_path):
    data = write_csv(tmp_path / "rows.csv", [(f"text {number}", "bread") for number in range(101)])
    assert sample_texts(one_label_bundle(), data, 3) == ["text 0", "text 50", "text 100"]
    assert len(sample_texts(one_label_bundle(), data, 1000)) == 101


def test_generated_sentences_cover_every_label():
    rows = generate_sentences(60, 1)
    assert rows == generate_sentences(60, 1) != generate_sentences(60, 2)
    assert {label for _, label in rows} == set(SUBJECTS)
    for text, label in rows:
        assert text[0].isupper() and text[-1] in ".!?"
        assert any(
            who in text or who.capitalize() in text or who[0].upper() + who[1:] in text
            for who in SUBJECTS[label]
        )

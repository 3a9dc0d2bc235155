"""Invalid input: one line on stderr, exit status 2, no partial output.

docs/how-to/messages.md has the frequent ones; `test_transcripts.py` runs it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kmha.text.vocabulary import SPECIAL_TOKENS
from tests.command_runs import TINY, call, clean_environment, news_rows, refused, write_csv
from training.evaluate import main as evaluate
from training.fit import main as fit
from training.predict import main as predict

ROWS = news_rows(12, seed=0)
GOOD = "text,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working folder with a valid file."""
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "good.csv", ROWS)
    return tmp_path


DATA = {
    "an empty file": ("", "a.csv: expected a header line with the column names, got an empty file"),
    "only a header": ("text,label\n", "a.csv: expected rows, got nothing after the header"),
    "no text": ("txt,label\nx,a\n", "--data.text-column: expected a column text, got txt, label; did you mean"),
    "no label": ("text,lable\nx,a\n", "--data.label-column: expected a column label or labels,"
        " got text, lable; did you mean --data.label-column lable?"),
    "one class": ("text,label\nx,a\ny,a\n", "a.csv: expected training rows with two different labels or more,"
        " got only 'a'"),
    "a lone label": ("text,label\nx,a\ny,a\nz,b\n", "a.csv:4: expected two training rows or more for each"
        " label, got one for 'b'"),
    "too many fields": ("text,label\nx,a\nx,y,a\n", "a.csv:3: expected 2 fields (text, label), got 3"),
    "too few fields": ("text,label\nx,a\n\nx\n", "a.csv:4: expected 2 fields (text, label), got 1"),
    "blank texts": ("text,label\n ,a\n\t,b\n", "a.csv:2: expected texts, got white space alone in this and all"),
    "an open quote": ('text,label\nx,a\n"y,b\n', "a.csv:3: expected a closing quote"),
    "invalid UTF-8": (b"text,label\nx,a\n\xff,b\n", "a.csv:3: expected UTF-8 text, got byte 0xff at position 1"),
    "no test of its own": (GOOD, "good.csv: expected training rows, got only texts of the test or validation set (12)"),
    "nothing to hold out": ("text,label\nx,a\nx,a\ny,b\ny,b\n", "a.csv: expected rows to hold out for"),
}  # fmt: skip


@pytest.mark.parametrize("case", DATA)
def test_invalid_training_rows_are_refused(folder, case):
    content, message = DATA[case]
    (folder / "a.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    parts = ["--data.train", "a.csv"]
    if case == "no test of its own":
        parts = ["--data.train", "good.csv", "--data.test", "a.csv"]
    assert refused(folder, fit, *parts).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.train", "none.csv"], "none.csv: expected a file, got no such file"),
        (["--data.train", "good.csv", "--data.test", "none.csv"], "none.csv: expected a file"),
        (["--data.train", "good.xls"], "good.xls: expected a name that ends in .csv, .tsv, .jsonl"),
        (["--data.train", "."], ".: expected a name that ends in .csv"),
        (["--data.test", "good.csv"], "--data.train: expected training rows with --data.test, got none"),
        (["--data.train", "good.csv", "--data.text-column", "body"], "--data.text-column: expected a column body"),
        (["--task", "tag", "--data.train", "good.csv", "--classify.dropout", "0.9"], "--classify.dropout: expected"
            " --task classify with it, got --task tag"),
        (["--data.validation-fraction", "0"], "--data.validation-fraction: expected above 0 and below 1"),
        (["--data.validation-fraction", "1"], "--data.validation-fraction: expected above 0 and below 1"),
        (["--data.label-separator", ""], "--data.label-separator: expected a character or more"),
        (["--text.max-length", "2"], "--text.max-length: expected at least 3, got 2"),
        (["--encoder.dropout", "1.5"], "--encoder.dropout must be a probability in [0, 1), got 1.5"),
        (["--classify.dropout", "1"], "--classify.dropout: expected at least 0 and below 1, got 1.0"),
        (
            ["--classify.label-smoothing", "1.5"],
            "--classify.label-smoothing: expected at least 0 and below 1, got 1.5",
        ),
        (
            ["--encoder.hidden-dim", "1048576"],
            "--encoder: expected a model that fits into ",
        ),
        (["--encoder.num-layers", "1000000000"], "--encoder: expected a model that fits into "),
        (["--text.max-length", "1000000000000"], "--encoder: expected a model that fits into "),
        (["--encoder.num-heads", "3"], "--encoder.num-heads must divide --encoder.hidden-dim, got"),
        (["--train.epochs=-1"], "--train.epochs: expected at least 0, got -1"),
        (["--train.batch-tokens", "0"], "--train.batch-tokens: expected at least 1, got 0"),
        (["--train.seed", "-1"], "--train.seed: expected at least 0 and below 4294967296, got -1"),
        (["--optimizer.learning-rate", "-0.1"], "--optimizer.learning-rate: expected above 0, got -0.1"),
        (["--optimizer.learning-rate", "fast"], "--optimizer.learning-rate: expected a number, got 'fast'"),
        (["--optimizer.ema-decay", "1"], "--optimizer.ema-decay: expected at least 0 and below 1, got 1.0"),
        (["--train.epoch", "3"], "unknown flag --train.epoch; did you mean --train.epochs?"),
        (["--precision", "fp16"], "--precision: expected one of 'float32', 'bfloat16', 'float16'"),
        (["--config", "none.toml"], "--config none.toml: expected a TOML file, No such file or directory"),
        (["--text.vocabulary", "none.txt"], "none.txt: expected a vocabulary file, No such file or directory"),
        (["--encoder.vectors", "none.txt"], "--encoder.vectors none.txt: expected a file of word vectors"),
        (["--resume", "--out", "runs/a"], "--resume: expected an interrupted run in"),
        (["--out", "good.csv"], "--out good.csv: expected a new folder, got a file"),
        (["--out", "good.csv/run"], "--out good.csv/run: cannot write there, Not a directory"),
        (["--out", "."], "--out .: expected a new folder, got a folder with files that are not a run"),
        (["--out", "x" * 300], f"--out {'x' * 300}: cannot write there, File name too long"),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused(folder, arguments, message):
    # With these rows, the setting is the only error.
    if not any(flag.startswith(("--data.train", "--data.test")) for flag in arguments):
        arguments = [*arguments, "--data.train", "good.csv"]
    assert refused(folder, fit, *arguments).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nepochs = 'many'", "a.toml: train.epochs must be a whole number, got 'many'"),
        ("[train]\nepoch = 3", "a.toml: unknown key train.epoch; did you mean train.epochs?"),
        ("[trian]\nepochs = 3", "a.toml: unknown key trian; did you mean train?"),
        ("[train]\nepochs = -1", "a.toml: --train.epochs: expected at least 0, got -1"),
        ("[encoder]\nnum_heads = 5", "--encoder.num-heads must divide --encoder.hidden-dim, got"),
        (
            "[train\nepochs = 3",
            "a.toml: expected valid TOML, got an error: Expected ']' at the end of a table declaration",
        ),
    ],
)
def test_an_invalid_file_of_settings_is_refused(folder, text, message):
    (folder / "a.toml").write_text(text)
    assert refused(folder, fit, "--config", "a.toml", "--data.train", "good.csv").startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = " + "[" * 5_000 + "]" * 5_000, "a.toml: expected valid TOML, got an error: maximum recursion"),
        (f"[train]\nepochs = {'9' * 5_000}", "a.toml: expected valid TOML, got an error: Exceeds the limit"),
        (
            f"[train]\nepochs = {'9' * 400}",
            "a.toml: --train.epochs: expected at most 1,000,000,000,000, got 999",
        ),
        (
            "[text]\nmax_length = 1000000000000000000",
            "a.toml: --text.max-length: expected at most 1,000,000,000,000",
        ),
        ('out = "a\\u0000b"', "a.toml: --out: expected text without null characters, got 'a\\x00b'"),
        (f"[data]\ntrain = '{'x' * 5_000}.csv'", "--out runs/xxx"),
        (
            "[train]\nepochs = '\x1b[2J'".replace("\x1b", "\\u001b").replace("'", '"'),
            "a.toml: train.epochs must be",
        ),
    ],
    ids=["deep", "5,000 digits", "400 digits", "size", "null", "name", "escape"],
)
def test_a_hostile_file_of_settings_is_refused(folder, text, message):
    (folder / "a.toml").write_text(text)
    data = [] if "[data]" in text else ["--data.train", "good.csv"]
    found = refused(folder, fit, "--config", "a.toml", *data)
    assert found.startswith(message) and len(found) < 2_100 and found.isprintable()


@pytest.mark.parametrize("flag", ["--config", "--data.train", "--text.vocabulary", "--encoder.vectors"])
def test_a_pipe_is_refused_as_an_input_file(folder, flag):
    os.mkfifo(folder / "pipe.csv")
    data = [] if flag == "--data.train" else ["--data.train", "good.csv"]
    message = refused(folder, fit, flag, "pipe.csv", *data)
    assert "pipe.csv: expected a " in message or "pipe.csv: expected a file of word vectors" in message


def test_control_characters_of_labels_and_columns_are_escaped(folder):
    (folder / "a.csv").write_text("text,la\x1b[31mbel\nx,a\n")
    assert "la\\x1b[31mbel" in refused(folder, fit, "--data.train", "a.csv")
    (folder / "a.csv").write_text("text,label\nx,\x1b]0;a\x07\ny,\x1b]0;a\x07\n")
    message = refused(folder, fit, "--data.train", "a.csv")
    assert "got only '\\x1b]0;a\\x07'" in message and message.isprintable()


def test_a_vocabulary_with_a_duplicate_token_is_refused(folder):
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "a", "a"]))
    message = refused(folder, fit, "--data.train", "good.csv", "--text.vocabulary", "vocab.txt")
    assert message == "vocab.txt:7: tokens must be distinct, got 'a' again (first in line 6)"


def test_vectors_of_the_wrong_width_are_refused(folder):
    (folder / "vectors.txt").write_text("soup 1 2 3\n")
    outcome = call(fit, "--data.train", "good.csv", "--encoder.vectors", "vectors.txt", *TINY)
    assert outcome.status == 2
    assert outcome.err.splitlines()[-1] == (
        "error: vectors.txt:1: expected vectors of 16 numbers (--encoder.hidden-dim), got 3"
    )
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_a_folder_with_other_files_is_never_replaced(folder, flags):
    (folder / "thesis").mkdir()
    (folder / "thesis" / "chapter1.txt").touch()
    message = refused(folder, fit, "--data.train", "good.csv", "--out", "thesis", *flags)
    assert message == "--out thesis: expected a new folder, got a folder with files that are not a run"


def test_a_folder_with_a_run_is_not_replaced_without_overwrite(folder, news_run):
    message = refused(folder, fit, "--data.train", "good.csv", "--out", str(news_run.folder))
    assert message.endswith("expected a new folder, got a folder with a run; use --overwrite to replace it")


@pytest.mark.parametrize("main", [predict, lambda argv: evaluate([*argv, "--data", "good.csv"])])
def test_a_folder_without_a_run_is_refused(folder, main):
    assert refused(folder, main, ".").startswith(".: expected a run folder with bundle.json")
    assert refused(folder, main, "none").startswith("none: expected a run folder with bundle.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "none.csv"], "none.csv: expected a file, got no such file"),
        (["--data", "good.csv", "--label-column", "lable"], "good.csv: expected column 'lable'"),
        (["--data", "good.csv", "--text-column", "body"], "good.csv: expected column 'body'"),
        ([], "missing --data PATH"),
    ],
)  # fmt: skip
def test_invalid_evaluation_rows_are_refused(folder, news_run, arguments, message):
    assert refused(folder, evaluate, str(news_run.folder), *arguments).startswith(message)


def test_a_negative_number_of_predictions_or_a_missing_run_is_refused(folder):
    assert refused(folder, predict, "run", "--top", "-1") == "--top: expected at least 0, got -1"
    assert refused(folder, predict) == "missing RUN (Run folder that training.fit wrote)"


def test_a_process_exits_with_status_2_and_no_traceback(folder):
    (folder / "a.csv").write_bytes(b"text,label\nx,a\n\xff,b\n")
    done = subprocess.run(
        [sys.executable, "-m", "training.fit", "--data.train", "a.csv"],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: a.csv:3: expected UTF-8 text, got byte 0xff at position 1 of the line; save as UTF-8 or give"
        " --data.encoding, for example cp1252\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["a.csv", "good.csv"]


def test_invalid_settings_or_rows_are_reported_before_tensorflow_is_imported(folder):
    program = (
        "import sys; from training.fit import main\n"
        "heavy = lambda: {'tensorflow', 'keras', 'sklearn'} & set(sys.modules)\n"
        "assert main(['--help']) == 0 and not heavy()\n"
        "assert main(['--train.epochs=-1']) == 2 and not heavy()\n"
        "assert main(['--encoder.num-heads=3']) == 2 and not heavy()\n"
        "assert main(['--data.train=good.csv', '--data.test=good.csv']) == 2 and not heavy()\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        check=True,
    )

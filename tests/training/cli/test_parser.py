import contextlib
import dataclasses
import errno
import io
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from kmha.errors import InputError
from training.cli.bounds import Count
from training.cli.exceptions import deferred_signals, delayed_stop
from training.cli.parser import parse, run, toml_flags
from training.config.config import FitConfig
from training.io.disk import atomic_write

logger = logging.getLogger("kmha")


@dataclasses.dataclass(frozen=True)
class Section:
    rows: Count = 1
    orders: tuple[int, ...] = (2, 3)
    share: float = 0.5
    on: bool = True


@dataclasses.dataclass(frozen=True)
class Command:
    """Does nothing."""

    place: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PLACE")]
    """Where."""
    config: Path | None = None
    separator: str = "|"
    section: Section = dataclasses.field(default_factory=Section)


def parsed(*arguments: str) -> Command:
    return parse(Command, ["here", *arguments], "command")


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text('separator = "--"\n[section]\nrows = 5\norders = [4]\non = false\n')
    assert parsed("--config", str(path)) == Command(
        Path("here"), path, "--", Section(rows=5, orders=(4,), on=False)
    )
    late = parsed(f"--config={path}", "--section.rows", "6", "--section.on", "--section.orders", "7", "8")
    assert late.section == Section(rows=6, orders=(7, 8))
    assert parsed("--section.share", "1e-3").section.share == 0.001


def test_both_spellings_of_a_flag_mean_the_same():
    assert parse(FitConfig, ["--train.batch_rows", "3"], "fit") == parse(
        FitConfig, ["--train.batch-rows=3"], "fit"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--secton.rows", "3"], "unknown flag --secton.rows; did you mean --section.rows?"),
        (["--rows=3"], "unknown flag --rows; did you mean --section.rows?"),
        (["--section.no_onn"], "unknown flag --section.no_onn; did you mean --section.no-on?"),
        (["--place", "x"], "unknown flag --place"),
        (["--section.rows", "three"], "--section.rows: expected a whole number, got 'three'"),
        (["--section.rows", "1.5"], "--section.rows: expected a whole number, got '1.5'"),
        (["--section.share", "much"], "--section.share: expected a number, got 'much'"),
        (["--section.rows"], "--section.rows: expected a value, got none"),
        (["--section.rows", "0"], "--section.rows: expected at least 1, got 0"),
        (["--section.orders", "2", "x"], "--section.orders: expected other values, got ['2', 'x']"),
        (["there"], "unexpected argument there"),
        (["-x"], "unexpected argument -x"),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_one_line_that_names_it(arguments, message):
    with pytest.raises(InputError) as caught:
        parsed(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("encoding", "terminal"), [("ascii", False), ("utf-8", False), ("ascii", True), ("utf-8", True)]
)
def test_the_message_does_not_depend_on_encoding_or_terminal(encoding, terminal, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    out.isatty = lambda: terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", out)
    with pytest.raises(InputError) as caught:
        parse(FitConfig, ["--precision", "fp16"], "fit")
    assert str(caught.value) == ("--precision: expected one of 'float32', 'bfloat16', 'float16', got 'fp16'")


def test_a_missing_argument_is_named_with_its_help():
    with pytest.raises(InputError) as caught:
        parse(Command, [], "command")
    assert str(caught.value) == "missing PLACE (Where)"


def test_out_of_range_errors_name_the_config_file_only_if_it_has_the_value(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("[section]\nrows = 0\n")
    with pytest.raises(InputError) as caught:
        parsed("--config", str(path))
    assert str(caught.value) == f"{path}: --section.rows: expected at least 1, got 0"
    with pytest.raises(InputError) as caught:
        parsed("--config", str(path), "--section.rows=-1")
    assert str(caught.value) == "--section.rows: expected at least 1, got -1"


def raising(error: BaseException):
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (InputError("a.csv:3: one\nline"), 2, "error: a.csv:3: one line\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (SystemExit(0), 0, ""),
        (BrokenPipeError(), 141, ""),
        (OSError(errno.ENOSPC, "full", "runs/a"), 1, "error: the disk is full, writing runs/a\n"),
    ],
)
def test_each_error_has_its_exit_status_and_message(error, status, printed, monkeypatch):
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert run(raising(error)) == status
    assert err.getvalue() == printed
    assert out.getvalue() == ""


def test_unexpected_errors_keep_their_traceback():
    with pytest.raises(PermissionError):
        run(raising(PermissionError(errno.EACCES, "no")))
    with pytest.raises(ZeroDivisionError):
        run(raising(ZeroDivisionError()))


def test_a_termination_ends_a_command_like_an_interrupt(capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert run(lambda: os.kill(os.getpid(), signal.SIGTERM) or 0) == 130
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr().err == "interrupted\n"


def test_a_stop_that_a_command_reports_is_not_reported_twice(capsys):
    def fit():
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        return 130

    assert run(fit) == 130 and capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_stop_that_a_library_discards_is_not_lost(tmp_path, number, moment):
    """Converters call back into Python and discard every exception."""
    final = tmp_path / "m.tflite"

    def discarded():
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), number)

    def export():
        with atomic_write(final, companions={tmp_path / "m.json": b"1"}) as path:
            path.touch()
            if moment == "before":
                discarded()
        if moment == "after":
            discarded()
        return 0

    assert run(export) == 130
    assert final.exists() == (moment == "after") and len(list(tmp_path.iterdir())) == 2 * (moment == "after")
    assert run(lambda: 0) == 0


def test_a_group_is_published_before_a_stop(tmp_path):
    def publish():
        with delayed_stop():
            os.kill(os.getpid(), signal.SIGTERM)
            (tmp_path / "second").touch()
        raise AssertionError

    assert run(publish) == 130 and (tmp_path / "second").exists()


def test_messages_are_written_in_one_piece(monkeypatch):
    """With two writes, a line of another thread may come between a message and its line end."""
    written = []

    class RecordingStream(io.StringIO):
        def write(self, text):
            written.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stderr", RecordingStream())
    logger.info("a line")
    assert written == ["a line\n"]
    monkeypatch.setattr(sys, "stderr", None)
    logger.info("to nobody")


def test_output_is_utf8_in_any_locale(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert run(lambda: print("中文") or 0) == 0
    assert written.getvalue().decode("utf-8") == "中文\n"


def test_help_is_no_error(capsys):
    assert run(lambda: parse(FitConfig, ["--help"], "fit") and 1) == 0
    assert "--optimizer.learning-rate" in capsys.readouterr().out


@dataclasses.dataclass(frozen=True)
class TomlSection:
    whole_number: int = 1
    share: float = 0.5
    on: bool = True
    orders: tuple[int, ...] = (2,)
    kind: Literal["red", "green"] = "red"
    maybe: bool | None = None
    file: Path | None = None


@dataclasses.dataclass(frozen=True)
class Config:
    config: Path | None = None
    name: str = ""
    quick: bool = False
    section: TomlSection = dataclasses.field(default_factory=TomlSection)


def flags(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "a.toml"
    path.write_text(text, "utf-8")
    return toml_flags(path, Config)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("\ufeff# only a comment", []),
        ('name = "--x=y z"', ["--name=--x=y z"]),
        ("quick = true", ["--quick"]),
        ("quick = false", ["--no-quick"]),
        ("[section]\non = false", ["--section.no-on"]),
        ("[section]\nwhole_number = 3\nshare = 1", ["--section.whole-number=3", "--section.share=1"]),
        ("section.orders = [2, 3]", ["--section.orders", "2", "3"]),
        ("section = {kind = 'green', maybe = true}", ["--section.kind=green", "--section.maybe=True"]),
        ("section.file = 'a b.txt'", ["--section.file=a b.txt"]),
    ],
)
def test_config_files_are_converted_to_flags(tmp_path, text, expected):
    assert flags(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nam = 1", "{path}: unknown key nam; did you mean name?"),
        ("[sektion]", "{path}: unknown key sektion; did you mean section?"),
        ("[section]\nname = 'x'", "{path}: unknown key section.name; did you mean name?"),
        ("share = 1", "{path}: unknown key share; did you mean section.share?"),
        ("section.quux = 1", "{path}: unknown key section.quux"),
        ("config = 'b.toml'", "{path}: unknown key config"),
        ("section = 3", "{path}: section must be a section, got 3"),
        ("[name]", "{path}: name must be a string, got {{}}"),
        ("section.whole_number = 'x'", "{path}: section.whole_number must be a whole number, got 'x'"),
        ("section.whole_number = 2.0", "{path}: section.whole_number must be a whole number, got 2.0"),
        ("section.whole_number = true", "{path}: section.whole_number must be a whole number, got True"),
        ("section.share = '0.5'", "{path}: section.share must be a number, got '0.5'"),
        ("section.share = true", "{path}: section.share must be a number, got True"),
        ("quick = 1", "{path}: quick must be true or false, got 1"),
        ("section.orders = 2", "{path}: section.orders must be a list, each item a whole number, got 2"),
        (
            "section.orders = ['x']",
            "{path}: section.orders must be a list, each item a whole number, got ['x']",
        ),
        (
            "section.kind = 'gren'",
            "{path}: section.kind must be one of red, green, got 'gren'; did you mean green?",
        ),
        ("section.maybe = 'yes'", "{path}: section.maybe must be true or false, got 'yes'"),
        ("section.file = 3", "{path}: section.file must be a path, got 3"),
        ("name = ", "{path}: expected valid TOML, got an error: Invalid value (at end of document)"),
        (
            "name = 'a'\n[name]",
            "{path}: expected valid TOML, got an error: Cannot overwrite a value (at line 2, column 6)",
        ),
    ],
)
def test_config_file_errors_name_file_and_key(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        flags(tmp_path, text)
    assert str(caught.value) == message.format(path=tmp_path / "a.toml")


def test_a_missing_file_and_one_in_another_encoding(tmp_path):
    with pytest.raises(InputError, match="--config none.toml: expected a TOML file, No such file"):
        toml_flags(Path("none.toml"), Config)
    (tmp_path / "a.toml").write_bytes(b"# fine\nname = '\xff'\n")
    with pytest.raises(InputError, match=r"a\.toml:2: expected UTF-8 text"):
        toml_flags(tmp_path / "a.toml", Config)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_stop_of_the_keyboard_is_deferred_unless_the_shell_ignores_it(ignored, request):
    handler = signal.SIG_IGN if ignored else signal.default_int_handler
    before = signal.signal(signal.SIGINT, handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with deferred_signals() as received:
        os.kill(os.getpid(), signal.SIGINT)
        if ignored:
            os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGTERM if ignored else signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is handler

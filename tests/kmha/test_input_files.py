"""Regular files only, JSON of unknown origin, and messages without control characters."""

import os

import pytest

from kmha.errors import InputError, format_names, printable
from kmha.input_files import open_input, parse_json, read_input, read_json


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 101 + "]" * 101, "expected at most 100 levels, got more"),
        ("[" * 100_000, "expected at most 100 levels, got more"),
        ("9" * 400, "expected finite numbers, got 999"),
        ("9" * 5_000, "expected finite numbers, got 999"),
        ("1e999", "expected finite numbers, got 1e999"),
        ("NaN", "expected finite numbers, got NaN"),
        ('{"a": ["\\ud800"]}', "half a surrogate pair"),
        (b'"\xff"', "invalid start byte"),
        ("{", "Expecting property name"),
        ("", "Expecting value"),
    ],
)
def test_json_of_unknown_origin_is_refused_in_one_line(text, reason):
    with pytest.raises(InputError) as refused:
        parse_json(text, "a.json")
    message = str(refused.value)
    assert message.startswith("a.json: not valid JSON: ") and reason in message and len(message) < 300


def test_json_is_read():
    text = '{"a": [1, -2.5, "\\ud83d\\ude00", null, true]}'
    assert parse_json(text, "") == {"a": [1, -2.5, "\U0001f600", None, True]}
    # Tokenizers of published models have such a "model_max_length".
    assert parse_json(f"[{10**18 - 1}, {10**30}]", "") == [10**18 - 1, 1e30]
    assert parse_json("[" * 100 + "]" * 100, "")


def test_a_pipe_and_a_device_are_rejected_as_input_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link"):
        for read in (open_input, read_input, read_json):
            with pytest.raises(InputError, match=f"{name}: expected a regular file, got a pipe or a device"):
                read(tmp_path / name)
    with pytest.raises(InputError, match="embedded null byte"):
        open_input(tmp_path / "a\0b")


def test_a_file_larger_than_the_limit_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert read_input(tmp_path / "a", 5) == b"12345"
    with pytest.raises(InputError, match="expected at most 4 bytes, got more"):
        read_input(tmp_path / "a", 4)


def test_messages_are_one_printable_line_of_limited_length():
    assert str(InputError("a\x1b[2J\x9b\u202eb\nc\ud800")) == "a\\x1b[2J\\x9b\\u202eb c\\ud800"
    assert printable("é 中\U0001f600") == "é 中\U0001f600"
    assert format_names(["\x1b[31mred"]) == "\\x1b[31mred"
    message = str(InputError("x" * 10**6 + " hint"))
    assert len(message) < 2_010 and message.endswith(" hint")

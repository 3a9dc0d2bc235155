import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary

LINES = "".join(f"{token}\n" for token in SPECIAL_TOKENS).encode()
tokens = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=6)


def one_line(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


@given(st.lists(tokens, unique=True, max_size=20))
def test_a_written_file_is_read_back(tmp_path_factory, extra):
    path = tmp_path_factory.getbasetemp() / "odd.txt"
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *(token for token in extra if token not in SPECIAL_TOKENS)])
    vocabulary.write(path)
    assert Vocabulary.read(path).tokens == vocabulary.tokens


@pytest.mark.parametrize(
    "token", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", " ", "", "\ufeff", "\0"]
)
def test_only_the_line_feed_ends_a_token(tmp_path, token):
    vocabulary = Vocabulary([token, *SPECIAL_TOKENS, "after"])
    vocabulary.write(tmp_path / "v.txt")
    read = Vocabulary.read(tmp_path / "v.txt")
    assert read.tokens == vocabulary.tokens
    assert read.id_of("after") == 6 and read.id_of(token) == 0


@pytest.mark.parametrize("token", ["a\nb", "\r", "a\r"])
def test_a_token_with_a_line_end_is_rejected(token):
    with pytest.raises(InputError) as error:
        Vocabulary([*SPECIAL_TOKENS, token])
    assert "vocabulary:6" in one_line(error) and repr(token) in one_line(error)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_line_ends_of_every_system_are_read(tmp_path, end):
    path = tmp_path / "v.txt"
    separator = end or b"\n"
    path.write_bytes(separator.join(token.encode() for token in SPECIAL_TOKENS) + end)
    assert Vocabulary.read(path).tokens == SPECIAL_TOKENS


def test_ids_are_positions_and_special_tokens_may_be_anywhere():
    vocabulary = Vocabulary(["a", *reversed(SPECIAL_TOKENS), "b"])
    assert [vocabulary.id_of(token) for token in vocabulary.tokens] == list(range(7))
    assert len(vocabulary) == 7
    with pytest.raises(KeyError):
        vocabulary.id_of("c")


def test_a_duplicate_is_rejected_by_file_and_line(tmp_path):
    path = tmp_path / "v.txt"
    path.write_bytes(LINES + b"cat\ndog\ncat\n")
    with pytest.raises(InputError) as error:
        Vocabulary.read(path)
    assert f"{path}:8:" in one_line(error) and "'cat'" in one_line(error) and "line 6" in one_line(error)


@pytest.mark.parametrize("missing", SPECIAL_TOKENS)
def test_a_missing_special_token_is_named(tmp_path, missing):
    path = tmp_path / "v.txt"
    path.write_bytes(LINES.replace(f"{missing}\n".encode(), b""))
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: .*missing {re.escape(missing)}$"):
        Vocabulary.read(path)


def test_an_empty_file_is_rejected(tmp_path):
    (tmp_path / "v.txt").touch()
    with pytest.raises(InputError, match="missing"):
        Vocabulary.read(tmp_path / "v.txt")


@pytest.mark.parametrize("name", ["absent.txt", ""])
def test_a_missing_file_or_a_folder_is_rejected(tmp_path, name):
    with pytest.raises(InputError, match="expected a vocabulary file") as error:
        Vocabulary.read(tmp_path / name)
    one_line(error)


def test_invalid_utf8_is_rejected_by_file_and_line(tmp_path):
    path = tmp_path / "v.txt"
    path.write_bytes(LINES + b"caf\xe9\n")
    with pytest.raises(InputError) as error:
        Vocabulary.read(path)
    assert f"{path}:6:" in one_line(error) and "0xe9" in one_line(error)

import pytest

from kmha.errors import InputError
from training.io.text_lines import open_lines


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\rtwo\r\nthree\x0c\n")
    with open_lines(path) as lines:
        assert list(lines) == ["one\rtwo\r\n", "three\x0c\n"]


def test_errors_of_the_reader_itself_pass_through(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x\n")
    with pytest.raises(KeyError), open_lines(path):
        raise KeyError("unchanged")


def test_a_path_through_a_file_is_an_input_error(tmp_path):
    (tmp_path / "a.txt").write_text("x\n")
    with (
        pytest.raises(InputError, match="expected a readable file"),
        open_lines(tmp_path / "a.txt" / "b.txt"),
    ):
        pass

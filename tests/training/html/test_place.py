"""Where pages are written."""

import pytest

from kmha.errors import InputError
from training.html.page import check_page_path, write_page


@pytest.mark.parametrize("name", ["page.txt", "page", "none/page.html", "folder.html"])
def test_places_that_cannot_be_are_refused(name, tmp_path):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InputError, match=name):
        check_page_path(tmp_path / name)


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(InputError, match="cannot write there"):
        write_page(tmp_path / "taken.html", "page")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.html"]
    write_page(tmp_path / "page.html", "first")
    write_page(tmp_path / "page.html", "café \ud83d")
    assert (tmp_path / "page.html").read_text("utf-8") == "café ?"

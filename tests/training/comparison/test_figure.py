import sys

import pytest

from kmha.errors import InputError
from tests.training.comparison.figures import COMPARISON
from training.comparison.figure import check_matplotlib, draw


def test_a_picture_is_whole_and_replaces_another(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "compare.png"
    path.write_bytes(b"old")
    draw(path, COMPARISON)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [each.name for each in tmp_path.iterdir()] == ["compare.png"]


def test_nothing_to_draw_with_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"--out: expected matplotlib .*kmha\[report\]"):
        check_matplotlib()

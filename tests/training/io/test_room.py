import gzip
import os
import shutil
import types

import pytest

from kmha.errors import InputError
from training.io.scratch_folder import check_room, unpacked_bytes


def test_too_little_disk_is_one_line_that_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=2_500_000_000))
    check_room(tmp_path / "scratch", 2.5e9, "token ids")
    with pytest.raises(InputError) as caught:
        check_room(tmp_path / "scratch", 4e9, "token ids")
    assert str(caught.value) == (
        f"{tmp_path}: expected 4,000.0 MB of free disk for token ids, got 2,500.0 MB; the environment variable TMPDIR"
        " names another folder"
    )


def test_gzipped_files_are_guessed_from_their_beginning(tmp_path):
    text = b"".join(b"%d of the same words\n" % number for number in range(300_000))
    plain, packed = tmp_path / "a.csv", tmp_path / "a.csv.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text, 1))
    assert unpacked_bytes([plain]) == len(text)
    assert unpacked_bytes([packed]) == pytest.approx(len(text), rel=0.2)
    assert unpacked_bytes([plain, packed, tmp_path / "missing"]) > 1.8 * len(text)
    noise = tmp_path / "noise.gz"
    noise.write_bytes(os.urandom(100))
    assert unpacked_bytes([noise]) == 100

import os

import pytest

from export.benchmark.process import read_through, start_worker
from kmha.errors import InputError


def test_reading_through_takes_files_and_folders(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "sub").mkdir()
    read_through(tmp_path)
    read_through(tmp_path / "a")


def test_a_runtime_that_is_not_installed_is_named(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'onnxruntime' else find(name, *rest)\n"
    )
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        with start_worker("onnx", "a.onnx", 1) as worker, pytest.raises(InputError) as caught:
            worker.listen()
    finally:
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
    assert str(caught.value) == "a.onnx: expected the package onnxruntime, got none; install kmha[onnx]"

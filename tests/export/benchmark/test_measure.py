import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.benchmark.measure import common_length, read_into_cache, spread, start_worker
from kmha.errors import InputError


@pytest.mark.parametrize(
    ("lengths", "length"),
    [
        ([None, None], 40),
        ([None, [16]], 16),
        ([[16, 32], None, [32, 64]], 32),
        ([[16, 32, 64], [16, 32]], 32),
        ([[16], [32]], None),
    ],
)
def test_common_length_is_the_longest_that_all_models_take(lengths, length):
    assert common_length(lengths, default=40) == length


@given(st.lists(st.text(), max_size=30), st.integers(0, 40))
def test_spread_takes_texts_evenly(texts, most):
    numbered = [f"{number} {text}" for number, text in enumerate(texts)]
    taken = spread(numbered, most)
    assert len(taken) == len(set(taken)) == min(most or len(texts), len(texts))
    assert taken == sorted(taken, key=numbered.index)
    if len(taken) > 1:
        assert (taken[0], taken[-1]) == (numbered[0], numbered[-1])


def test_read_into_cache_accepts_files_and_folders(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    (tmp_path / "sub").mkdir()
    read_into_cache(tmp_path)
    read_into_cache(tmp_path / "a")


def test_a_missing_runtime_is_named(tmp_path):
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

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.pretrained.safetensors_file import INDEX, WEIGHTS, read_safetensors, read_tensors, write_safetensors
from tests.kmha.pretrained.folders import GOLDEN, copied

VALUES = {
    "a.weight": np.arange(6, dtype="float32").reshape(2, 3),
    "empty": np.zeros((0, 4), "float32"),
    "b": np.array([1.5, -2, 1e-30], "float32"),
}


def stored(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(encoded) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + encoded + data)
    return path


def entry(dtype: str = "F32", shape: object = (2,), begin: object = 0, end: object = 8) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        for tensor in read_safetensors(path).values():
            tensor.read()
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message
    return message.removeprefix(str(path))


def test_written_tensors_are_read_back(tmp_path):
    write_safetensors(tmp_path / "x.safetensors", VALUES)
    found = read_safetensors(tmp_path / "x.safetensors")
    assert set(found) == set(VALUES)
    for name, value in VALUES.items():
        assert found[name].shape == value.shape
        np.testing.assert_array_equal(found[name].read(), value)


def test_the_safetensors_library_reads_written_files(tmp_path):
    library = pytest.importorskip("safetensors")
    write_safetensors(tmp_path / "x.safetensors", VALUES)
    with library.safe_open(tmp_path / "x.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        for name, value in VALUES.items():
            np.testing.assert_array_equal(file.get_tensor(name), value)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_all_float_types_are_read_as_float32(tmp_path, dtype):
    library = pytest.importorskip("safetensors.numpy")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    value = np.random.default_rng(0).normal(size=(3, 5)).astype(kind)
    library.save_file({"x": value}, tmp_path / "x.safetensors")
    found = read_safetensors(tmp_path / "x.safetensors")["x"].read()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, value.astype("float32"))


def test_other_types_are_rejected_on_reading_only(tmp_path):
    header = {
        "ids": entry("I64", [2], 0, 16),
        "odd": entry("F8_E4M3", [4], 16, 20),
        "x": entry(begin=20, end=28),
    }
    path = stored(tmp_path / "x.safetensors", header, bytes(20) + np.array([1, 2], "<f4").tobytes())
    found = read_safetensors(path)
    np.testing.assert_array_equal(found["x"].read(), [1, 2])
    for name in ("ids", "odd"):
        with pytest.raises(InputError, match=f"tensor {name} must be one of F64, F32, F16, BF16, got"):
            found[name].read()


@pytest.mark.parametrize(
    ("header", "data", "length", "reason"),
    [
        ({}, b"", 2**63, "header too large"),
        ({}, b"", 3, "invalid header length"),
        (b"{", b"", None, "invalid JSON in header"),
        (b"\xff{}", b"", None, "invalid UTF-8 in header"),
        (b"[" * 100_000, b"", None, "invalid JSON in header"),
        (b'{"x": ' + b"9" * 5000 + b"}", b"", None, "invalid JSON in header"),
        ([], b"", None, ""),
        ({"x": 1}, b"", None, "invalid JSON in header"),
        ({"x": entry(dtype=[])}, b"", None, "invalid JSON in header"),  # pyright: ignore[reportArgumentType]
        ({"x": entry(shape="2")}, bytes(8), None, "invalid JSON in header"),
        ({"x": entry(shape=[-2])}, bytes(8), None, "invalid JSON in header"),
        ({"x": entry(shape=[True, 2])}, bytes(8), None, "invalid JSON in header"),
        ({"x": entry(begin=8, end=0)}, bytes(8), None, "offset"),
        ({"x": entry(begin=-8)}, bytes(8), None, "invalid JSON in header"),
        ({"x": entry(shape=[3])}, bytes(8), None, "invalid shape, data type, or offset"),
        ({"x": entry(shape=[2**40, 2**40])}, bytes(8), None, ""),
        ({"x": entry(begin=4, end=12)}, bytes(12), None, "invalid offset for tensor `x`"),
        ({"x": entry(), "y": entry(begin=4, end=12)}, bytes(12), None, "invalid offset for tensor `y`"),
        ({"x": entry()}, bytes(7), None, "file not fully covered"),
        ({"x": entry()}, bytes(9), None, "file not fully covered"),
    ],
)
def test_a_damaged_header_is_rejected(tmp_path, header, data, length, reason):
    message = refusal(stored(tmp_path / "x.safetensors", header, data, length))
    assert message.startswith(": damaged or truncated: ") and reason in message


@pytest.mark.parametrize("content", [b"", b"1234567"])
def test_a_file_without_a_header_is_rejected(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    assert "damaged or truncated: " in refusal(tmp_path / "x")


def test_a_directory_is_rejected(tmp_path):
    assert "expected a safetensors file, Is a directory" in refusal(tmp_path)


def test_a_file_truncated_after_its_header_was_read_is_rejected(tmp_path):
    path = stored(tmp_path / "x", {"x": entry()}, bytes(8))
    tensor = read_safetensors(path)["x"]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match="damaged or truncated"):
        tensor.read()
    path.unlink()
    with pytest.raises(InputError, match="expected a safetensors file, No such file"):
        tensor.read()


def test_numbers_too_large_for_float32_are_infinite_without_a_warning(tmp_path):
    path = stored(tmp_path / "x", {"x": entry("F64", [1])}, np.array([1e300]).tobytes())
    assert np.isinf(read_safetensors(path)["x"].read()).all()


def test_old_names_have_new_ones_at_their_end_only(tmp_path):
    names = ("LayerNorm.gamma", "LayerNorm.beta", "x.gamma.weight", "y.betamax", "z.bias")
    write_safetensors(tmp_path / WEIGHTS, {name: np.zeros(1, "float32") for name in names})
    assert set(read_tensors(tmp_path)) == {
        "LayerNorm.weight",
        "LayerNorm.bias",
        "x.gamma.weight",
        "y.betamax",
        "z.bias",
    }


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.pkl"])
def test_a_pickle_is_reported_and_not_opened(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04}.")
    with pytest.raises(InputError) as caught:
        read_tensors(tmp_path)
    assert str(caught.value) == f"{tmp_path}: expected {WEIGHTS}, got {name}, a pickle, which is never opened"


def test_no_weights_are_rejected(tmp_path):
    with pytest.raises(InputError, match=f"expected {WEIGHTS}, got none"):
        read_tensors(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "weight_map must have the file of each tensor, got None"),
        ({"weight_map": []}, "weight_map must have the file of each tensor, got []"),
        ({"weight_map": {"a": "../x"}}, "weight_map must have plain file names, got '../x'"),
        ({"weight_map": {"a": "/etc/passwd"}}, "weight_map must have plain file names, got '/etc/passwd'"),
        ({"weight_map": {"a": ".."}}, "weight_map must have plain file names, got '..'"),
        ({"weight_map": {"a": "x\0"}}, "weight_map must have plain file names"),
        ({"weight_map": {"a": ["x"]}}, "as in model.safetensors.index.json, got none"),
        (
            {"weight_map": {"a": "gone.safetensors"}},
            "expected gone.safetensors as in model.safetensors.index.json",
        ),
        (
            {"weight_map": {"a": "model-00001-of-00002.safetensors"}},
            "model-00001-of-00002.safetensors: expected a tensor 'a' as in model.safetensors.index.json",
        ),
    ],
)
def test_a_damaged_index_is_rejected(tmp_path, index, message):
    folder = copied("distilbert", tmp_path)
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(InputError) as caught:
        read_tensors(folder)
    assert message in str(caught.value)


WHOLE = (GOLDEN / "electra" / WEIGHTS).read_bytes()


@given(st.data())
@settings(max_examples=200)
def test_any_damage_is_read_or_refused(tmp_path_factory, data):
    """The header is a fifth of the file; half of the changes are made there."""
    header = 8 + int.from_bytes(WHOLE[:8], "little")
    last = data.draw(st.sampled_from([header, len(WHOLE) - 1]))
    place = data.draw(st.integers(0, last))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert", "drop"]))
    some = data.draw(st.binary(min_size=1, max_size=9))
    changed = {
        "flip": WHOLE[:place] + bytes([WHOLE[place] ^ some[0]]) + WHOLE[place + 1 :],
        "cut": WHOLE[:place],
        "insert": WHOLE[:place] + some + WHOLE[place:],
        "drop": WHOLE[:place] + WHOLE[place + len(some) :],
    }[kind]
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    path.write_bytes(changed)
    try:
        for tensor in read_safetensors(path).values():
            assert tensor.read().shape == tensor.shape
    except InputError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
    else:
        assert kind == "flip", "another length must be noticed"

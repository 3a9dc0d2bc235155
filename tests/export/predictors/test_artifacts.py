import numpy as np
import pytest

from export.predictors.artifacts import find_artifact, nearest_errors
from export.verification.tolerances import LAYER_ROUNDING, LAYER_TOLERANCES, first_divergent
from kmha.errors import InputError

rng = np.random.default_rng(3)
LAYERS = {
    "tokenizer": np.arange(6, dtype="int32").reshape(2, 3),
    "embedding": rng.normal(size=(2, 3, 4)).astype("float32"),
    "block": 100 * rng.normal(size=(2, 3, 4)).astype("float32"),
    "logits": rng.normal(size=(2, 5)).astype("float32"),
}


def version(folder, size=5):
    folder.mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(b"x" * size)
    return folder


@pytest.mark.parametrize(("name", "kind"), [("a.tflite", "tflite"), ("b.onnx", "onnx")])
def test_the_format_follows_from_the_suffix(tmp_path, name, kind):
    (tmp_path / name).write_bytes(b"1234")
    artifact = find_artifact(tmp_path / name)
    assert (artifact.path, artifact.format, artifact.bytes) == (tmp_path / name, kind, 4)


def test_a_version_or_the_newest_of_several_is_found(tmp_path):
    for name in ("2", "10", "9"):
        version(tmp_path / name)
    (tmp_path / "11").mkdir()
    (tmp_path / "10" / "variables").mkdir()
    (tmp_path / "10" / "variables" / "data").write_bytes(b"12")
    assert find_artifact(tmp_path / "9").path == tmp_path / "9"
    newest = find_artifact(tmp_path)
    assert (newest.path, newest.format, newest.bytes) == (tmp_path / "10", "savedmodel", 7)


@pytest.mark.parametrize(
    ("name", "message"), [("absent", "no such file"), ("notes.txt", "another file"), ("empty", "without")]
)
def test_other_files_are_rejected(tmp_path, name, message):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty" / "1").mkdir(parents=True)
    with pytest.raises(InputError, match=message) as error:
        find_artifact(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)


def others():
    """Tensors of the same sizes that are none of the layers."""
    return [rng.normal(size=layer.shape).astype("float32") for layer in LAYERS.values()]


def test_layers_are_found_in_any_order_and_shape():
    tensors = [*others(), *(layer.reshape(-1, 1) for layer in reversed(LAYERS.values())), *others()]
    errors = nearest_errors(LAYERS, tensors)
    assert errors == dict.fromkeys(LAYERS, 0.0)
    assert list(errors) == list(LAYERS)
    assert first_divergent(errors, "none") is None


@pytest.mark.parametrize("broken", LAYERS)
def test_the_first_layer_without_a_near_tensor_is_named(broken):
    """All after it differ too, as they do in a model."""
    position = list(LAYERS).index(broken)
    tensors = [layer if at < position else layer + 1 for at, layer in enumerate(LAYERS.values())]
    assert first_divergent(nearest_errors(LAYERS, tensors), "none") == broken


def test_the_tolerance_is_relative_to_the_layer():
    layer = LAYERS["block"]
    noise = rng.normal(size=layer.shape)
    noise *= np.linalg.norm(layer) / np.linalg.norm(noise)
    for quantization, most in LAYER_TOLERANCES.items():
        near, far = (nearest_errors({"x": layer}, [layer + by * most * noise]) for by in (0.9, 1.1))
        assert near["x"] == pytest.approx(0.9 * most, rel=1e-3)
        assert first_divergent(near, quantization) is None
        assert first_divergent(far, quantization) == "x"


@pytest.mark.parametrize("quantization", LAYER_ROUNDING)
def test_8_bits_explain_some_growth_of_the_error_of_a_layer(quantization):
    """The errors of sick, whose head was quantized: of the logits, not only of the probabilities."""
    step = LAYER_ROUNDING[quantization] / 0.02
    errors = {
        "a embedding": 0.005,
        "a round_0": 0.012,
        "a pooling": 0.006,
        "logits": 0.045,
        "probabilities": 0.06,
    }
    errors = {name: step * error for name, error in errors.items()}
    assert first_divergent(errors, quantization) == "logits"
    # Without an outlier, the layer with the largest share of the explained error is named.
    errors |= {"logits": step * 0.03, "probabilities": step * 0.035}
    assert first_divergent(errors, quantization) == "logits"
    assert first_divergent(errors | {"a round_0": None}, quantization) == "a round_0"
    assert first_divergent({}, quantization) is None


def test_integers_must_match_exactly():
    ids = LAYERS["tokenizer"]
    other = ids.copy()
    other[1, 2] += 1
    assert nearest_errors({"ids": ids}, [other]) == {"ids": 1.0}
    assert nearest_errors({"ids": ids}, [ids.astype("float32")]) == {"ids": 1.0}
    assert nearest_errors({"ids": ids}, [other, ids]) == {"ids": 0.0}
    assert first_divergent({"ids": 1.0}, "int8") == "ids"


def test_tensors_with_nan_do_not_match():
    layer = LAYERS["logits"]
    errors = nearest_errors({"x": layer, "alone": LAYERS["block"]}, [layer * np.nan, layer * np.inf])
    assert errors == {"x": None, "alone": None}
    assert first_divergent(errors, "int8") == "x"


def test_a_layer_of_zeros_has_a_finite_error():
    assert nearest_errors({"x": np.zeros((2, 2), "float32")}, [np.zeros(4, "float32")]) == {"x": 0.0}

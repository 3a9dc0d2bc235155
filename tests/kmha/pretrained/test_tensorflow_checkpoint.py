import shutil

import numpy as np
import pytest
import tensorflow as tf

from kmha.errors import InputError
from kmha.pretrained.safetensors_file import read_safetensors
from kmha.pretrained.sources import find_checkpoint
from tests.kmha.pretrained.folders import GOLDEN, changed

ENDINGS = {
    "LayerNorm.weight": "LayerNorm/gamma",
    "LayerNorm.bias": "LayerNorm/beta",
    "embeddings.weight": "embeddings",
}


def first_name(name: str) -> str:
    """What the first release calls a tensor of the reference: encoder.layer.0.output.dense.weight -> bert/encoder/…"""
    for new, old in ENDINGS.items():
        if name.endswith(new):
            name = name.removesuffix(new) + old
    name = name.replace("layer.", "layer_").replace(".", "/")
    return f"bert/{name.removesuffix('/weight')}/kernel" if name.endswith("/weight") else f"bert/{name}"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The tiny BERT as the first release wrote it, with what training leaves beside."""
    folder = tmp_path_factory.mktemp("first") / "bert"
    folder.mkdir()
    shutil.copy(GOLDEN / "bert" / "config.json", folder / "bert_config.json")
    changed(folder / "bert_config.json", model_type=None, architectures=None, layer_norm_eps=None)
    shutil.copy(GOLDEN / "bert" / "vocab.txt", folder)
    tensors = {"global_step": np.int64(3), "cls/predictions/output_bias": np.zeros(40, "float32")}
    for name, tensor in read_safetensors(GOLDEN / "bert" / "model.safetensors").items():
        value = tensor.read()
        tensors[first_name(name)] = value.T if first_name(name).endswith("kernel") else value
    tf.raw_ops.SaveV2(
        prefix=str(folder / "bert_model.ckpt"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=[tf.constant(value) for value in tensors.values()],
    )
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "bert")


def test_it_has_the_weights_that_hugging_face_has(written):
    assert (written / "bert_model.ckpt.index").exists()
    found, expected = find_checkpoint(str(written)), find_checkpoint(str(GOLDEN / "bert"))
    weights = expected.read_weights()
    assert found.read_weights().keys() == weights.keys()
    for path, weight in found.read_weights().items():
        np.testing.assert_array_equal(weight, weights[path])
    assert found.vocabulary.tokens == expected.vocabulary.tokens and found.config.norm_epsilon == 1e-12


def test_a_vocabulary_with_capitals_keeps_case(folder):
    assert not find_checkpoint(str(folder)).lower_case
    text = (folder / "vocab.txt").read_text("utf-8").replace("Old", "olden").replace("Bread", "breads")
    (folder / "vocab.txt").write_text(text, "utf-8")
    assert find_checkpoint(str(folder)).lower_case


@pytest.mark.parametrize(
    "name", ["bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "vocab.txt"]
)
@pytest.mark.parametrize("damage", ["gone", "cut", "flipped"])
def test_a_damaged_file_is_rejected(folder, name, damage):
    path = folder / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[: len(content) // 2] + b"\xff\xff\xff" + content[len(content) // 2 + 3 :])
    with pytest.raises(InputError) as caught:
        find_checkpoint(str(folder)).read_weights()
    assert str(caught.value).startswith(str(folder)) and "\n" not in str(caught.value)


def test_a_config_that_does_not_fit_is_rejected(folder):
    changed(folder / "bert_config.json", intermediate_size=25)
    with pytest.raises(
        InputError, match=r"intermediate.dense.weight must have shape \[25, 16\], got \[24, 16\]"
    ):
        find_checkpoint(str(folder))

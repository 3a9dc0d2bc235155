"""Reads checkpoints of BERT's first release: bert_config.json, bert_model.ckpt.index and .data, vocab.txt.

Source: Devlin et al. 2019, arXiv:1810.04805; the miniatures: Turc et al. 2019, arXiv:1908.08962.
"""

import functools
import re
from pathlib import Path

import numpy as np

from kmha.errors import InputError
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.huggingface import VOCABULARY, read_encoder_config
from kmha.pretrained.json_file import read_json
from kmha.pretrained.weight_mapping import FAMILIES, Tensor, find_tensors, read_weights
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary

CONFIG, PREFIX = "bert_config.json", "bert_model.ckpt"
_KERNEL = "/kernel"
_ENDINGS = {_KERNEL: ".weight", "/gamma": ".weight", "/beta": ".bias", "_embeddings": "_embeddings.weight"}


def read_tensorflow(folder: Path) -> Checkpoint:
    """Reads a folder in the layout of the first release.

    Raises:
        InputError: A file is missing or damaged, or the parts do not fit each other.
    """
    vocabulary = Vocabulary.read(folder / VOCABULARY)
    config = read_encoder_config(folder / CONFIG, "bert", read_json(folder / CONFIG), vocabulary)
    found = find_tensors(str(folder), _tensors(folder), FAMILIES["bert"], config)
    # No file has this setting; a vocabulary without capitals was trained on lower-cased texts.
    words = (token for token in vocabulary.tokens if token not in SPECIAL_TOKENS and token[:1] != "[")
    lower_case = not any(word != word.lower() for word in words)
    return Checkpoint(
        str(folder), config, vocabulary, "wordpiece", lower_case, lambda: read_weights(found, config)
    )


def _tensors(folder: Path) -> dict[str, Tensor]:
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    import tensorflow as tf

    path = folder / PREFIX
    if not path.with_name(f"{PREFIX}.index").is_file():
        raise InputError(f"{folder}: expected {PREFIX}.index, got none")
    try:
        reader = tf.train.load_checkpoint(str(path))
        shapes = reader.get_variable_to_shape_map()
    # TensorFlow raises errors of many types for damaged files, here and when it reads a tensor.
    except Exception as error:
        raise InputError(f"{path}: damaged or truncated: {_first_line(error)}") from error
    tensors = {}
    for name, shape in shapes.items():
        read = functools.partial(_read, str(path), reader, name)
        tensors[_new_name(name)] = Tensor(str(path), tuple(shape[::-1] if _is_kernel(name) else shape), read)
    return tensors


def _is_kernel(name: str) -> bool:
    return name.endswith(_KERNEL)


def _new_name(name: str) -> str:
    """bert/encoder/layer_0/output/dense/kernel -> bert.encoder.layer.0.output.dense.weight."""
    for old, new in _ENDINGS.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
            break
    return re.sub(r"\blayer_(\d+)\b", r"layer.\1", name.replace("/", "."))


def _read(path: str, reader, name: str) -> np.ndarray:
    try:
        tensor = np.asarray(reader.get_tensor(name))
    except Exception as error:
        raise InputError(f"{path}: tensor {name} cannot be read: {_first_line(error)}") from error
    if tensor.dtype.kind != "f":
        raise InputError(f"{path}: tensor {name} must hold floats, got {tensor.dtype}")
    return (tensor.T if _is_kernel(name) else tensor).astype(np.float32, copy=False)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)

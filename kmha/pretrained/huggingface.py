"""Reads checkpoints in Hugging Face's layout and in that of BERT's first release. Never opens a pickle.

Hugging Face: config.json, model.safetensors, vocab.txt. First release: bert_config.json, bert_model.ckpt.index and
.data, vocab.txt.

Source: Devlin et al. 2019, arXiv:1810.04805; the miniatures: Turc et al. 2019, arXiv:1908.08962.
"""

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np

from kmha.config import EncoderConfig
from kmha.errors import InputError, shown
from kmha.input_files import read_json
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.safetensors_file import read_tensors
from kmha.pretrained.weight_mapping import FAMILIES, Tensor, find_tensors, read_weights
from kmha.text.vocabulary import CONTINUATION, SPECIAL_TOKENS, UNKNOWN, Vocabulary

CONFIG, VOCABULARY = "config.json", "vocab.txt"
TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
# Several names for the same function.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
# Names of the sizes in config.json. DistilBERT has no epsilon and no segments.
_BERT_FIELDS = {
    "hidden_dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_dim": "intermediate_size",
    "max_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "norm_epsilon": "layer_norm_eps",
    "activation": "hidden_act",
}
_FIELDS = {
    "bert": _BERT_FIELDS,
    "electra": _BERT_FIELDS,
    "distilbert": {
        "hidden_dim": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "intermediate_dim": "hidden_dim",
        "max_length": "max_position_embeddings",
        "activation": "activation",
    },
}
# Defaults of fields that an older config.json may lack.
_DEFAULTS = {"layer_norm_eps": 1e-12, "type_vocab_size": 2}
# The only supported values.
_SUPPORTED = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
}
# The default embedding size of ELECTRA.
_ELECTRA_WIDTH = 128
# Tokenizers that work as BERT's does; others may have a vocab.txt too.
_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "PreTrainedTokenizer", "Tokenizers")


def read_huggingface(folder: Path) -> Checkpoint:
    """Reads the folder of a published BERT, DistilBERT or ELECTRA.

    The folder has config.json, model.safetensors (or its parts with an index), and vocab.txt or tokenizer.json.
    """
    values = read_json(folder / CONFIG)
    family = read_family(folder / CONFIG, values)
    vocabulary = read_vocabulary(folder)
    config = read_encoder_config(folder / CONFIG, family, values, vocabulary)
    lower_case = read_lower_case(folder)
    # Checks the shapes before an encoder of the size in config.json is built.
    found = find_tensors(str(folder), read_tensors(folder), FAMILIES[family], config)
    return Checkpoint(
        str(folder), config, vocabulary, "wordpiece", lower_case, lambda: read_weights(found, config)
    )


def read_family(path: Path, values: dict[str, Any]) -> str:
    """The model type in config.json; raises InputError if it is not in `FAMILIES`."""
    family = values.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        actual = "none" if family is None else shown(family)
        raise InputError(f"{path}: model_type must be one of {', '.join(FAMILIES)}, got {actual}")
    return family


def read_encoder_config(
    path: Path, family: str, values: dict[str, Any], vocabulary: Vocabulary
) -> EncoderConfig:
    """The encoder's shape in config.json, `values`; raises InputError if a value is missing, wrong or not supported."""
    size = values.get("vocab_size")
    if type(size) is not int or size != len(vocabulary):
        raise InputError(
            f"{path}: vocab_size must be the number of tokens, {len(vocabulary)}, got {shown(size)}"
        )
    fields: dict[str, Any] = {"num_segments": 0, "norm_epsilon": _DEFAULTS["layer_norm_eps"]}
    for ours, theirs in _FIELDS[family].items():
        value = values.get(theirs, _DEFAULTS.get(theirs))
        expected = str if ours == "activation" else (int, float) if ours == "norm_epsilon" else int
        if not isinstance(value, expected) or isinstance(value, bool):
            raise InputError(f"{path}: expected {theirs}, got {shown(value)}")
        fields[ours] = value
    if fields["activation"] not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise InputError(f"{path}: the activation must be one of {known}, got {shown(fields['activation'])}")
    if not 0 < fields["norm_epsilon"] < 1:
        raise InputError(f"{path}: layer_norm_eps must be between 0 and 1, got {fields['norm_epsilon']}")
    for name, supported in _SUPPORTED.items():
        if values.get(name, supported[0]) not in supported:
            raise InputError(f"{path}: {name} must be {supported[0]}, got {shown(values[name])}")
    width = values.get("embedding_size", _ELECTRA_WIDTH) if family == "electra" else fields["hidden_dim"]
    if width != fields["hidden_dim"]:
        raise InputError(
            f"{path}: embedding_size must be hidden_size, {fields['hidden_dim']}, got {shown(width)}"
        )
    fields["activation"] = _ACTIVATIONS[fields["activation"]]
    try:
        return EncoderConfig(
            **fields,
            vocabulary_size=len(vocabulary),
            norm="post",
            positions="learned",
            unknown_id=vocabulary.id_of(UNKNOWN),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def read_vocabulary(folder: Path) -> Vocabulary:
    """The tokens in vocab.txt, or in tokenizer.json if there is no vocab.txt."""
    if (folder / VOCABULARY).exists() or not (folder / TOKENIZER).exists():
        return Vocabulary.read(folder / VOCABULARY)
    path = folder / TOKENIZER
    values = read_json(path)
    model = _object(path, values, "model")
    for name, expected in (("type", "WordPiece"), ("continuing_subword_prefix", CONTINUATION)):
        if model.get(name) != expected:
            raise InputError(f"{path}: {name} of the model must be {expected}, got {shown(model.get(name))}")
    ids = dict(_object(path, model, "vocab"))
    added = values.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise InputError(f"{path}: added_tokens must be a list of objects, got {shown(added)}")
    for token in added:
        content, index = token.get("content"), token.get("id")
        if not isinstance(content, str) or ids.setdefault(content, index) != index:
            raise InputError(f"{path}: added token {shown(content)} must have the id {ids.get(content)}")
    places = sorted(ids.values(), key=lambda index: index if type(index) is int else -1)
    if places != list(range(len(ids))) or any(type(index) is not int for index in places):
        raise InputError(f"{path}: ids of the vocabulary must be 0 to {len(ids) - 1}, each once")
    return Vocabulary(sorted(ids, key=ids.__getitem__), origin=str(path))


def read_lower_case(folder: Path) -> bool:
    """Whether the tokenizer lower-cases and strips accents; the default is BERT's, true."""
    path = folder / SETTINGS
    settings = read_json(path) if path.exists() else {}
    name = settings.get("tokenizer_class")
    if name is not None and not str(name).startswith(_CLASSES):
        raise InputError(f"{path}: tokenizer_class must be BertTokenizer, got {shown(name)}")
    normalizer: dict[str, Any] = {}
    if (folder / TOKENIZER).exists():
        values = read_json(folder / TOKENIZER)
        normalizer = _object(folder / TOKENIZER, values, "normalizer") if values.get("normalizer") else {}
        if normalizer and normalizer.get("type") != "BertNormalizer":
            actual = shown(normalizer.get("type"))
            raise InputError(f"{folder / TOKENIZER}: the normalizer must be BertNormalizer, got {actual}")
    # The settings take precedence over the tokenizer, as in the reference.
    lower = _first(settings.get("do_lower_case"), normalizer.get("lowercase"), True)
    accents = _first(settings.get("strip_accents"), normalizer.get("strip_accents"), lower)
    chinese = _first(settings.get("tokenize_chinese_chars"), normalizer.get("handle_chinese_chars"), True)
    if not isinstance(lower, bool):
        raise InputError(f"{path}: do_lower_case must be true or false, got {shown(lower)}")
    if accents is not lower:
        raise InputError(f"{path}: strip_accents must be as do_lower_case, {lower}, got {shown(accents)}")
    if chinese is not True:
        raise InputError(f"{path}: tokenize_chinese_chars must be true, got {shown(chinese)}")
    return lower


def _object(path: Path, values: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(values.get(name), dict):
        raise InputError(f"{path}: {name} must be an object, got {shown(values.get(name))}")
    return values[name]


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


FIRST_CONFIG, FIRST_PREFIX = "bert_config.json", "bert_model.ckpt"
_KERNEL = "/kernel"
_ENDINGS = {_KERNEL: ".weight", "/gamma": ".weight", "/beta": ".bias", "_embeddings": "_embeddings.weight"}


def read_tensorflow(folder: Path) -> Checkpoint:
    """Reads a folder in the layout of the first release."""
    vocabulary, path = Vocabulary.read(folder / VOCABULARY), folder / FIRST_CONFIG
    config = read_encoder_config(path, "bert", read_json(path), vocabulary)
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

    path = folder / FIRST_PREFIX
    if not path.with_name(f"{FIRST_PREFIX}.index").is_file():
        raise InputError(f"{folder}: expected {FIRST_PREFIX}.index, got none")
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

"""Reads presets of KerasHub: config.json with a class, model.weights.h5, assets/tokenizer/vocabulary.txt.

KerasHub loads the weights into its own encoder, because their file layout is internal; this module copies them from
there. The activation is that of KerasHub's encoder, whatever the weights were trained with: the tanh form of GELU in
BertBackbone, the exact form in DistilBertBackbone. So the hidden states are equal to KerasHub's.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kmha.config import EncoderConfig
from kmha.errors import InputError, shown
from kmha.input_files import read_json
from kmha.pretrained.checkpoint import Checkpoint
from kmha.text.vocabulary import UNKNOWN, Vocabulary

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.weights.h5", "tokenizer.json"
VOCABULARY = "assets/tokenizer/vocabulary.txt"
INSTALL = "expected the installed package keras-hub, got none; pip install 'kmha[pretrained]'"
_ACTIVATIONS = {"BertBackbone": "gelu_tanh", "DistilBertBackbone": "gelu"}
_FIELDS = {
    "hidden_dim": "hidden_dim",
    "num_layers": "num_layers",
    "num_heads": "num_heads",
    "intermediate_dim": "intermediate_dim",
    "max_length": "max_sequence_length",
    "num_segments": "num_segments",
}


def is_keras_hub(values: dict[str, Any]) -> bool:
    """Whether a config.json is from KerasHub."""
    return "class_name" in values


def class_of(path: Path, values: dict[str, Any]) -> str:
    """The class in config.json; raises InputError if it is not supported."""
    name = values["class_name"]
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise InputError(f"{path}: class_name must be one of {', '.join(_ACTIVATIONS)}, got {shown(name)}")
    return name


def read_keras_hub(folder: Path) -> Checkpoint:
    """Reads the folder of a preset."""
    path = folder / CONFIG
    values = read_json(path)
    name = class_of(path, values)
    settings = values.get("config")
    if not isinstance(settings, dict):
        raise InputError(f"{path}: config must be an object, got {shown(settings)}")
    vocabulary = Vocabulary.read(folder / VOCABULARY)
    if settings.get("vocabulary_size") != len(vocabulary):
        raise InputError(
            f"{path}: vocabulary_size must be that of the vocabulary, {len(vocabulary)},"
            f" got {shown(settings.get('vocabulary_size'))}"
        )
    fields = {}
    for ours, theirs in _FIELDS.items():
        # DistilBERT has no segments.
        value = settings.get(theirs, 0 if theirs == "num_segments" and "Distil" in name else None)
        if type(value) is not int:
            raise InputError(f"{path}: expected {theirs}, got {shown(value)}")
        fields[ours] = value
    try:
        config = EncoderConfig(
            len(vocabulary),
            **fields,
            norm="post",
            norm_epsilon=1e-12,
            positions="learned",
            activation=_ACTIVATIONS[name],  # pyright: ignore[reportArgumentType]
            unknown_id=vocabulary.id_of(UNKNOWN),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    _check_size(folder / WEIGHTS, config)
    lower_case = _lower_case(folder / TOKENIZER)
    return Checkpoint(
        str(folder), config, vocabulary, "wordpiece", lower_case, lambda: _weights(folder, name, config)
    )


def _check_size(path: Path, config: EncoderConfig) -> None:
    """Checks the file size before an encoder of the size in config.json is built."""
    if not path.is_file():
        raise InputError(f"{path.parent}: expected {path.name}, got none")
    hidden, inner = config.hidden_dim, config.intermediate_dim
    per_block = hidden * (4 * hidden + 2 * inner)
    numbers = hidden * (config.vocabulary_size + config.max_length) + config.num_layers * per_block
    if path.stat().st_size < 2 * numbers:
        size = path.stat().st_size
        raise InputError(f"{path}: truncated: expected {numbers} numbers as in {CONFIG}, got {size} bytes")


def _lower_case(path: Path) -> bool:
    settings = read_json(path).get("config")
    lower = settings.get("lowercase") if isinstance(settings, dict) else None
    if not isinstance(lower, bool):
        raise InputError(f"{path}: lowercase must be true or false, got {shown(lower)}")
    return lower


def _weights(folder: Path, name: str, config: EncoderConfig) -> dict[str, np.ndarray]:
    try:
        import keras_hub
    except ImportError as error:
        raise InputError(f"{folder}: {INSTALL}") from error
    sizes = {theirs: getattr(config, ours) for ours, theirs in _FIELDS.items()}
    if not config.num_segments:
        del sizes["num_segments"]
    create = getattr(keras_hub.models, name)
    backbone = create(vocabulary_size=config.vocabulary_size, dtype="float32", **sizes)
    try:
        backbone.load_weights(folder / WEIGHTS)
    # Keras and h5py raise errors of many types for damaged files.
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{folder / WEIGHTS}: expected the weights of a {name}, {reason}") from error
    weights = {path: np.asarray(variable, np.float32) for path, variable in _variables(backbone, name)}
    for path, weight in weights.items():
        if not np.isfinite(weight).all():
            raise InputError(f"{folder / WEIGHTS}: {path} has numbers that are not finite")
    return weights


def _variables(backbone, name: str) -> Iterator[tuple[str, Any]]:
    """Path below kmha's encoder and weight in its shape, for each weight."""
    if name == "BertBackbone":
        yield "embedding/tokens/embeddings", backbone.get_layer("token_embedding").embeddings
        yield "embedding/position/table", backbone.get_layer("position_embedding").position_embeddings
        yield "embedding/segments/embeddings", backbone.get_layer("segment_embedding").embeddings
    else:
        both = backbone.get_layer("token_and_position_embedding")
        yield "embedding/tokens/embeddings", both.token_embedding.embeddings
        yield "embedding/position/table", both.position_embedding.position_embeddings
    yield from _pair("norm", backbone.get_layer("embeddings_layer_norm"), "gamma", "beta")
    for index, layer in enumerate(backbone.transformer_layers):
        block, attention = f"block_{index}", layer._self_attention_layer
        inputs = [attention.query_dense, attention.key_dense, attention.value_dense]
        kernels = [np.asarray(dense.kernel).reshape(dense.kernel.shape[0], -1) for dense in inputs]
        output = np.asarray(attention.output_dense.kernel)
        yield f"{block}/attention/query_key_value_kernel", np.concatenate(kernels, axis=1)
        biases = [np.asarray(dense.bias) for dense in inputs]
        yield f"{block}/attention/query_key_value_bias", np.stack(biases)
        yield f"{block}/attention/output_kernel", output.reshape(-1, output.shape[-1])
        yield f"{block}/attention/output_bias", attention.output_dense.bias
        yield from _pair(f"{block}/attention_norm", layer._self_attention_layer_norm, "gamma", "beta")
        expand, contract = layer._feedforward_intermediate_dense, layer._feedforward_output_dense
        yield from _pair(f"{block}/feed_forward/expand", expand, "kernel", "bias")
        yield from _pair(f"{block}/feed_forward/contract", contract, "kernel", "bias")
        yield from _pair(f"{block}/feed_forward_norm", layer._feedforward_layer_norm, "gamma", "beta")


def _pair(path: str, layer, *names: str) -> Iterator[tuple[str, Any]]:
    for name in names:
        yield f"{path}/{name}", getattr(layer, name)


def preset_handle(name: str) -> str | None:
    """The Kaggle handle of a KerasHub preset; None if there is no such preset or KerasHub is not installed."""
    if not re.fullmatch(r"[a-z0-9_.]+", name):
        return None
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    try:
        import keras_hub
    except ImportError:
        return None
    presets = {}
    for each in _ACTIVATIONS:
        presets |= getattr(keras_hub.models, each).presets
    return presets[name]["kaggle_handle"] if name in presets else None

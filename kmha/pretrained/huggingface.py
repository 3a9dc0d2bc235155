"""Checkpoints as Hugging Face lays them out: config.json, model.safetensors, vocab.txt. No pickle is ever opened."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.names import FAMILIES, Entry
from kmha.pretrained.safetensors_file import read_tensors
from kmha.text.special_tokens import UNKNOWN
from kmha.text.vocabulary import Vocabulary

CONFIG, VOCABULARY, TOKENIZER = "config.json", "vocab.txt", "tokenizer_config.json"
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
# What each number is called in config.json. DistilBERT has no name for its epsilon, and no segments.
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
# Where an older config.json may lack a number, it is this one.
_USUAL = {"layer_norm_eps": 1e-12, "type_vocab_size": 2}


def read_huggingface(folder: Path) -> Checkpoint:
    """Reads a folder of a published BERT, DistilBERT or ELECTRA.

    Args:
        folder: Has config.json, model.safetensors (or its parts with their index) and vocab.txt.

    Raises:
        InputError: A file is missing or damaged, the architecture is not known, or the parts do not fit each other.
    """
    values = read_json(folder / CONFIG)
    family = str(values.get("model_type", ""))
    if family not in FAMILIES:
        raise InputError(
            f"{folder / CONFIG}: model_type must be one of {', '.join(FAMILIES)}, given {family or 'none'}"
        )
    vocabulary = Vocabulary.read(folder / VOCABULARY)
    config = _encoder_config(folder / CONFIG, family, values, vocabulary)
    if values.get("vocab_size") != len(vocabulary):
        raise InputError(
            f"{folder / VOCABULARY}: wanted {values.get('vocab_size')} tokens as {CONFIG} says,"
            f" given {len(vocabulary)}"
        )
    return Checkpoint(
        str(folder),
        config,
        vocabulary,
        "wordpiece",
        _lower_case(folder),
        lambda: encoder_weights(folder, family, config),
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; raises InputError naming the file."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: wanted a checkpoint's {path.name}, {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path}: must be a JSON object, given {type(values).__name__}")
    return values


def _encoder_config(path: Path, family: str, values: dict[str, Any], vocabulary: Vocabulary) -> EncoderConfig:
    fields = {}
    for ours, theirs in _FIELDS[family].items():
        value = values.get(theirs, _USUAL.get(theirs))
        wanted = str if ours == "activation" else (int, float) if ours == "norm_epsilon" else int
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise InputError(f"{path}: wanted {theirs}, given {value!r}")
        fields[ours] = value
    if fields["activation"] not in _ACTIVATIONS:
        raise InputError(
            f"{path}: the activation must be one of {', '.join(_ACTIVATIONS)}, given {fields['activation']!r}"
        )
    for name, wanted in (("position_embedding_type", "absolute"), ("is_decoder", False)):
        if values.get(name, wanted) != wanted:
            raise InputError(f"{path}: {name} must be {wanted}, given {values[name]!r}")
    width = values.get("embedding_size", fields["hidden_dim"])
    if width != fields["hidden_dim"]:
        raise InputError(f"{path}: embedding_size must be hidden_size {fields['hidden_dim']}, given {width}")
    fields["activation"] = _ACTIVATIONS[fields["activation"]]
    try:
        return EncoderConfig(
            **{"num_segments": 0, "norm_epsilon": 1e-12, **fields},
            vocabulary_size=len(vocabulary),
            norm="post",
            positions="learned",
            unknown_id=vocabulary.id_of(UNKNOWN),
        )
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _lower_case(folder: Path) -> bool:
    """Whether the tokenizer lower-cases; BERT's does where nothing is said."""
    path = folder / TOKENIZER
    values = read_json(path) if path.exists() else {}
    lower = values.get("do_lower_case", True)
    accents = values.get("strip_accents")
    if accents is not None and accents != lower:
        raise InputError(f"{path}: strip_accents must be as do_lower_case, {lower}, given {accents}")
    return bool(lower)


def encoder_weights(folder: Path, family: str, config: EncoderConfig) -> dict[str, np.ndarray]:
    """The weights under our names, float32, each of the shape that the config asks for.

    Raises:
        InputError: A tensor is missing, has another shape or is not finite.
    """
    tensors = read_tensors(folder)
    prefix = _prefix(folder, FAMILIES[family].prefixes, tensors)
    entries = FAMILIES[family].entries(config.num_layers, config.num_segments > 0)
    return {entry.ours: _weight(folder, entry, config, prefix, tensors) for entry in entries}


def _prefix(folder: Path, prefixes: tuple[str, ...], tensors: Mapping[str, Any]) -> str:
    first = "embeddings.word_embeddings.weight"
    for prefix in prefixes:
        if prefix + first in tensors:
            return prefix
    raise InputError(f"{folder}: wanted a tensor {first}, given {', '.join(sorted(tensors)[:3])}, …")


def _weight(
    folder: Path,
    entry: Entry,
    config: EncoderConfig,
    prefix: str,
    tensors: Mapping[str, Callable[[], np.ndarray]],
) -> np.ndarray:
    shape = weight_shape(entry.ours, config)
    parts = []
    for name in entry.theirs:
        if prefix + name not in tensors:
            raise InputError(f"{folder}: wanted a tensor {prefix + name}, given none of that name")
        tensor = tensors[prefix + name]()
        wanted = entry.theirs_shape(shape)
        if tensor.shape != wanted:
            raise InputError(
                f"{folder}: tensor {prefix + name} must have shape {list(wanted)}, given {list(tensor.shape)}"
            )
        if not np.isfinite(tensor).all():
            raise InputError(f"{folder}: tensor {prefix + name} holds numbers that are not finite")
        parts.append(tensor.astype(np.float32, copy=False))
    return entry.to_ours(parts, shape)


def weight_shape(path: str, config: EncoderConfig) -> tuple[int, ...]:
    """The shape of one of the encoder's weights, from its path below the encoder."""
    hidden, heads = config.hidden_dim, config.num_heads
    head = config.head_dim or hidden // heads
    shapes = {
        "tokens/embeddings": (config.vocabulary_size, hidden),
        "segments/embeddings": (config.num_segments, hidden),
        "position/table": (config.max_length, hidden),
        "query_key_value_kernel": (hidden, 3 * heads * head),
        "query_key_value_bias": (3, heads, head),
        "output_kernel": (heads * head, hidden),
        "expand/kernel": (hidden, config.intermediate_dim),
        "expand/bias": (config.intermediate_dim,),
        "contract/kernel": (config.intermediate_dim, hidden),
    }
    return next((shape for end, shape in shapes.items() if path.endswith(end)), (hidden,))

"""config.json of a published BERT, DistilBERT or ELECTRA: the shape of its encoder."""

from pathlib import Path
from typing import Any

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.pretrained.json_file import shown
from kmha.pretrained.names import FAMILIES
from kmha.text.special_tokens import UNKNOWN
from kmha.text.vocabulary import Vocabulary

# Several names for the same function.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
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
_DEFAULTS = {"layer_norm_eps": 1e-12, "type_vocab_size": 2}
# What the same encoder cannot hold.
_ONLY = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
}
# An ELECTRA that does not say it has embeddings of this size.
_ELECTRA_WIDTH = 128


def family_of(path: Path, values: dict[str, Any]) -> str:
    """The family that config.json names; raises InputError where it is none of `FAMILIES`."""
    family = values.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        given = "none" if family is None else shown(family)
        raise InputError(f"{path}: model_type must be one of {', '.join(FAMILIES)}, got {given}")
    return family


def encoder_config(path: Path, family: str, values: dict[str, Any], vocabulary: Vocabulary) -> EncoderConfig:
    """The shape that config.json tells.

    Args:
        path: The file, for messages.
        family: One of `FAMILIES`.
        values: What it holds.
        vocabulary: Its tokens.

    Raises:
        InputError: A value is missing, has another type or is out of range; the encoder cannot hold it; or the
            vocabulary has another length.
    """
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
    for name, expected in _ONLY.items():
        if values.get(name, expected[0]) not in expected:
            raise InputError(f"{path}: {name} must be {expected[0]}, got {shown(values[name])}")
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

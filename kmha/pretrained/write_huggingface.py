"""Writes an encoder in Hugging Face's layout for BertModel: config.json, model.safetensors, vocab.txt."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.models.encoder import TransformerEncoder
from kmha.pretrained.huggingface import CONFIG, SETTINGS, VOCABULARY
from kmha.pretrained.safetensors_file import WEIGHTS, write_safetensors
from kmha.pretrained.weight_mapping import FAMILIES
from kmha.pretrained.weights import encoder_variables
from kmha.text.vocabulary import END, MASK, PADDING, START, UNKNOWN, Tokenization, Vocabulary

_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
_SEGMENTS = "embedding/segments/embeddings"
# BERT always has segments; for an encoder without segments their embeddings are zero.
_SEGMENTS_OF_BERT = 2


def check_bert(config: EncoderConfig, tokenization: Tokenization) -> None:
    """Raises InputError if the encoder has a property that BERT lacks."""
    own_size = config.head_dim is not None and config.head_dim * config.num_heads != config.hidden_dim
    for name, is_valid, expected, actual in (
        ("tokenization", tokenization == "wordpiece", "wordpiece", tokenization),
        ("norm", config.norm == "post", "post", config.norm),
        ("positions", config.positions == "learned", "learned", config.positions),
        ("ngram_buckets", config.ngram_buckets == 0, 0, config.ngram_buckets),
        ("head_dim", not own_size, "hidden_dim / num_heads", config.head_dim),
        ("attention_window", config.attention_window is None, "none", config.attention_window),
        ("layer_sizes", not config.layer_sizes, "none, all blocks alike", "those of a pruned encoder"),
    ):
        if not is_valid:
            raise InputError(f"BERT cannot represent this encoder: {name} must be {expected}, got {actual}")


def write_huggingface(
    folder: Path,
    encoder: TransformerEncoder,
    vocabulary: Vocabulary,
    tokenization: Tokenization = "wordpiece",
    lower_case: bool = True,
) -> None:
    """Writes a built encoder as a BERT checkpoint; rows of the table without a token are not written."""
    config = encoder.config
    check_bert(config, tokenization)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / CONFIG, _bert_config(config, vocabulary))
    _write_json(folder / SETTINGS, _settings(config, lower_case))
    vocabulary.write(folder / VOCABULARY)
    write_safetensors(folder / WEIGHTS, _tensors(encoder, len(vocabulary)))


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False, indent=2, allow_nan=False) + "\n", "utf-8")


def _bert_config(config: EncoderConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": len(vocabulary),
        "hidden_size": config.hidden_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.intermediate_dim,
        "max_position_embeddings": config.max_length,
        "type_vocab_size": config.num_segments or _SEGMENTS_OF_BERT,
        "layer_norm_eps": config.norm_epsilon,
        "hidden_act": _ACTIVATIONS[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "pad_token_id": vocabulary.id_of(PADDING),
        "position_embedding_type": "absolute",
    }


def _settings(config: EncoderConfig, lower_case: bool) -> dict[str, Any]:
    tokens = {"pad": PADDING, "unk": UNKNOWN, "cls": START, "sep": END, "mask": MASK}
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lower_case,
        "model_max_length": config.max_length,
        **{f"{name}_token": token for name, token in tokens.items()},
    }


def _tensors(encoder: TransformerEncoder, tokens: int) -> dict[str, np.ndarray]:
    config = encoder.config
    weights = {
        path: np.asarray(variable, np.float32) for path, variable in encoder_variables(encoder).items()
    }
    weights.setdefault(_SEGMENTS, np.zeros((_SEGMENTS_OF_BERT, config.hidden_dim), np.float32))
    tensors = {}
    for entry in FAMILIES["bert"].entries(config.num_layers, True):
        weight = weights[entry.ours]
        weight = weight[:tokens] if entry.ours.endswith("tokens/embeddings") else weight
        tensors |= dict(zip(entry.theirs, entry.to_theirs(weight), strict=True))
    return tensors

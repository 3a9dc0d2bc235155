"""A tiny checkpoint in a Hugging Face folder, with random weights."""

import json
from pathlib import Path

import numpy as np
import safetensors.numpy

from kmha.config import EncoderConfig
from kmha.pretrained.weight_mapping import FAMILIES, weight_shape
from tests.bundles import preprocessor

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
}


def write_tiny_bert(folder: Path) -> Path:
    """Twelve positions, a vocabulary trained on `tests.bundles.TEXTS`."""
    vocabulary = preprocessor().vocabulary
    config = EncoderConfig(
        len(vocabulary),
        max_length=12,
        hidden_dim=16,
        num_layers=2,
        num_heads=2,
        intermediate_dim=24,
        num_segments=2,
        norm="post",
    )
    generator, tensors = np.random.default_rng(11), {}
    for entry in FAMILIES["bert"].entries(config.num_layers, True):
        weight = 0.4 * generator.normal(size=weight_shape(entry.ours, config)) + ("gamma" in entry.ours)
        parts = entry.to_theirs(weight.astype(np.float32))
        tensors |= {name: np.ascontiguousarray(part) for name, part in zip(entry.theirs, parts, strict=True)}
    folder.mkdir(parents=True)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    values = {**SIZES, "model_type": "bert", "vocab_size": len(vocabulary), "hidden_act": "gelu"}
    (folder / "config.json").write_text(json.dumps(values), "utf-8")
    vocabulary.write(folder / "vocab.txt")
    return folder

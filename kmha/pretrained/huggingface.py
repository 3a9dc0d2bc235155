"""Checkpoints as Hugging Face lays them out: config.json, model.safetensors, vocab.txt. No pickle is ever opened."""

from pathlib import Path

from kmha.pretrained.bert_config import encoder_config, family_of
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.json_file import read_json
from kmha.pretrained.names import FAMILIES
from kmha.pretrained.safetensors_file import read_tensors
from kmha.pretrained.tensors import find_parts, read_parts
from kmha.pretrained.tokenizer_files import read_lower_case, read_vocabulary

CONFIG = "config.json"


def read_huggingface(folder: Path) -> Checkpoint:
    """Reads a folder of a published BERT, DistilBERT or ELECTRA.

    Args:
        folder: Has config.json, model.safetensors (or its parts with their index), and vocab.txt or tokenizer.json.

    Raises:
        InputError: A file is missing or damaged, the architecture is not known, or the parts do not fit each other.
    """
    values = read_json(folder / CONFIG)
    family = family_of(folder / CONFIG, values)
    vocabulary = read_vocabulary(folder)
    config = encoder_config(folder / CONFIG, family, values, vocabulary)
    lower_case = read_lower_case(folder)
    # Shapes are checked now, before anybody builds an encoder as large as config.json says.
    parts = find_parts(str(folder), read_tensors(folder), FAMILIES[family], config)
    return Checkpoint(
        str(folder), config, vocabulary, "wordpiece", lower_case, lambda: read_parts(parts, config)
    )

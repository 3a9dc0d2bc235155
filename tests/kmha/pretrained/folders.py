"""Checkpoints to read, to damage and to compare with."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from kmha.models.encoder import TransformerEncoder
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.weights import assign_weights

GOLDEN = Path(__file__).parents[2] / "golden"
TINY = ("bert", "distilbert", "electra")


def copied(name: str, folder: Path) -> Path:
    """A tiny checkpoint that the reference wrote, to be damaged."""
    return shutil.copytree(GOLDEN / name, folder / name)


def changed(path: Path, **values: Any) -> None:
    """Changes a JSON object in a file; None removes."""
    old = json.loads(path.read_text("utf-8")) | values
    path.write_text(json.dumps({key: value for key, value in old.items() if value is not None}), "utf-8")


def filled(checkpoint: Checkpoint) -> TransformerEncoder:
    """An encoder with all the weights of a checkpoint."""
    encoder = TransformerEncoder(checkpoint.config)
    encoder.build({"token_ids": (None, None)})
    assert assign_weights(encoder, checkpoint.read_weights(), checkpoint.config.num_layers) == []
    return encoder


def hidden_states(encoder: TransformerEncoder, token_ids, padding_mask, segment_ids) -> list:
    """The input of the first block, then the output of each block, float [B, T, D]."""
    states = [encoder.embed(token_ids, segment_ids)]
    for block in encoder.blocks:
        states.append(block(states[-1], attention_mask=padding_mask))
    return states


def features(golden: Any) -> dict[str, np.ndarray]:
    """The features of an encoder, int32 [B, T] each."""
    return {name: golden[name] for name in ("token_ids", "padding_mask", "segment_ids")}

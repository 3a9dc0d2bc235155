"""Loads the run itself in Keras, the reference for exported models."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from export.benchmark.loaders import LoadedModel
from export.graph.device_function import chosen_lengths
from export.verification.layer_outputs import padded, sequences
from kmha.bundle.bundle import Bundle


def load(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    """Loads a run folder.

    Returns:
        The model; its `run` has "sample" (texts), "length" (a typical length in tokens), "encoder" (the values of its
        `EncoderConfig`), "window" (tokens of a window, 0: it reads whole texts) and "labels" (their number).
    """
    bundle = Bundle.load(path)

    def encode(texts: Sequence[bytes], length: int) -> tuple[np.ndarray, np.ndarray]:
        token_ids, mask = padded(bundle, sequences(bundle, texts, length), length).values()
        return token_ids, mask

    run = {
        "sample": bundle.sample,
        "length": chosen_lengths(bundle)[0],
        "encoder": dataclasses.asdict(bundle.model.encoder_config),
        "window": bundle.model.windows.length if bundle.model.windows else 0,
        "labels": len(bundle.labels),
    }
    return LoadedModel(bundle.probabilities_of_ids, bundle.probabilities, run=run, encode=encode)

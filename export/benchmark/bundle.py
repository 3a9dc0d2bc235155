"""The run itself, as Keras answers: what the exported copies are compared with."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from export.benchmark.timed import Timed
from export.tflite.write import chosen_lengths
from export.verification.layer_outputs import padded, sequences
from kmha.bundle.bundle import Bundle


def load(path: str, threads: int, sizes: dict[str, Any]) -> Timed:
    """Loads a run folder.

    Args:
        path: Of the run.
        threads: Unused; TensorFlow takes its number from the environment.
        sizes: Unused.

    Returns:
        The model; its `run` holds "sample" (texts), "length" (a usual one in tokens), "encoder" (the numbers of its
        `EncoderConfig`), "window" (tokens of a window, 0: it reads texts whole) and "labels" (how many).

    Raises:
        InputError: No bundle stands there.
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
    return Timed(bundle.probabilities_of_ids, bundle.probabilities, run=run, encode=encode)

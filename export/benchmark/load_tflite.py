"""Loads a TFLite file in LiteRT with the device tokenizer, without TensorFlow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from export.benchmark.loaders import LoadedModel
from export.predictors.token_batches import encode_row, model_inputs, read_text_tokenizer
from export.tflite.runner import read_signatures, shortest_signature
from kmha.errors import InputError
from kmha.features import PADDING_MASK, TOKEN_IDS


def load(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    """Loads a file and the tokenizer.json next to it."""
    try:
        interpreter = Interpreter(model_path=path, num_threads=threads)
    except ValueError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: expected a TFLite model, {reason}") from error
    signatures = read_signatures(interpreter, path)
    tokenizer = read_text_tokenizer(Path(path))
    longest = signatures[-1].lengths[0] or tokenizer.max_length

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        length = token_ids.shape[1]
        signature = next(each for each in signatures if each.lengths in ((length,), (0,)))
        return signature.run({TOKEN_IDS: token_ids, PADDING_MASK: mask})[signature.output]

    def from_texts(texts: Sequence[bytes]) -> np.ndarray:
        (ids,) = (encode_row(tokenizer, text, longest) for text in texts)
        lengths = [len(each) for each in ids]
        signature = shortest_signature(signatures, lengths)
        return signature.run(model_inputs(tokenizer, [ids], signature.padded_lengths(lengths)))[
            signature.output
        ]

    lengths = [signature.lengths[0] for signature in signatures if signature.lengths[0]]
    return LoadedModel(from_ids, from_texts, lengths or None, batched=False)

"""The signatures of a TFLite file that `export.tflite` wrote; no TensorFlow."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kmha.errors import InputError

TOKEN_IDS, PROBABILITIES, SCORES, VECTORS = "token_ids", "probabilities", "scores", "vectors"
# What the signatures of vectors are called, or their names begin with, where there is one for each of several lengths.
EMBED, EMBED_QUERY = "embed", "embed_query"


@dataclass(frozen=True)
class Signature:
    """One way to call a model.

    Attributes:
        runner: LiteRT's.
        inputs: Names of all inputs.
        lengths: Of each of the token ids asked for, in their order, the T that it takes; 0 for any.
        answer: Name of the output that answers: probabilities, scores or vectors.
        outputs: Names of all outputs.
    """

    runner: Any
    inputs: tuple[str, ...]
    lengths: tuple[int, ...]
    answer: str
    outputs: tuple[str, ...]

    def holds(self, lengths: Iterable[int]) -> bool:
        """Whether token ids of such lengths fit."""
        return all(not most or length <= most for length, most in zip(lengths, self.lengths, strict=True))

    def fitted(self, lengths: Iterable[int]) -> list[int]:
        """To which lengths token ids of such lengths are padded."""
        return [most or length for length, most in zip(lengths, self.lengths, strict=True)]

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs; inputs beside those given, such as BERT's segments, are all zeros."""
        zeros = np.zeros_like(next(iter(inputs.values())))
        return self.runner(**{name: inputs.get(name, zeros) for name in self.inputs})


def read_signatures(
    interpreter: Any, path: Path | str, names: Sequence[str] = (TOKEN_IDS,)
) -> list[Signature]:
    """The signatures that take such token ids, shortest first, one of any length last.

    Args:
        interpreter: LiteRT's.
        path: For messages.
        names: Of the token ids.

    Raises:
        InputError: The file has other signatures, or none.
    """
    found = []
    for key in interpreter.get_signature_list():
        if key.startswith(EMBED):
            continue
        runner = interpreter.get_signature_runner(key)
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        given = {name for name in inputs if TOKEN_IDS in name}
        answer = next((name for name in (PROBABILITIES, SCORES) if name in outputs), None)
        if given != set(names) or answer is None:
            wanted = f"{', '.join(names)} and {PROBABILITIES} or {SCORES}"
            raise InputError(f"{path}: wanted a TFLite model of {wanted}, given one of {', '.join(inputs)}")
        lengths = (int(inputs[name]["shape_signature"][1]) for name in names)
        found.append(
            Signature(runner, tuple(inputs), tuple(max(each, 0) for each in lengths), answer, tuple(outputs))
        )
    if not found:
        raise InputError(f"{path}: wanted a TFLite model with a signature, given one without")
    return _shortest_first(found)


def read_embeddings(interpreter: Any) -> dict[str, list[Signature]]:
    """The signatures of vectors by what they embed, "embed" and "embed_query", as `read_signatures` orders them."""
    found: dict[str, list[Signature]] = {}
    for key in interpreter.get_signature_list():
        if not key.startswith(EMBED):
            continue
        runner = interpreter.get_signature_runner(key)
        inputs = runner.get_input_details()
        shapes = [inputs[name]["shape_signature"] for name in inputs if TOKEN_IDS in name]
        lengths = tuple(max(int(shape[1]), 0) for shape in shapes)
        signature = Signature(runner, tuple(inputs), lengths, VECTORS, (VECTORS,))
        found.setdefault(EMBED_QUERY if key.startswith(EMBED_QUERY) else EMBED, []).append(signature)
    return {name: _shortest_first(signatures) for name, signatures in found.items()}


def _shortest_first(signatures: Iterable[Signature]) -> list[Signature]:
    return sorted(signatures, key=lambda signature: (not all(signature.lengths), signature.lengths))

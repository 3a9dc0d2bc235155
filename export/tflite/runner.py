"""Runs an exported TFLite model on texts with LiteRT and the device tokenizer, without TensorFlow."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from export.device.sentences import SPECIAL_TOKENS, SentenceTokenizer
from export.names import EMBED, EMBED_QUERY, PROBABILITIES, SCORES, VECTORS
from export.predictors.sentence_batches import (
    Outputs,
    SentenceRow,
    SentenceWindow,
    sentence_windows,
    tag_sentences,
    window_inputs,
)
from export.predictors.token_batches import TextRow, encode_row, input_names, model_inputs, read_tokenizer
from kmha.errors import InputError
from kmha.features import TOKEN_IDS


@dataclass(frozen=True)
class Signature:
    """A signature of a model.

    Attributes:
        runner: LiteRT's signature runner.
        inputs: Names of all inputs.
        lengths: T of each input of token ids, in the order of the texts; 0 for any.
        output: Name of the output with the probabilities, scores or vectors.
        outputs: Names of all outputs.
    """

    runner: Any
    inputs: tuple[str, ...]
    lengths: tuple[int, ...]
    output: str
    outputs: tuple[str, ...]

    def holds(self, lengths: Iterable[int]) -> bool:
        """Whether token ids of these lengths fit."""
        return all(not most or length <= most for length, most in zip(lengths, self.lengths, strict=True))

    def padded_lengths(self, lengths: Iterable[int]) -> list[int]:
        """The lengths to which token ids of these lengths are padded."""
        return [most or length for length, most in zip(lengths, self.lengths, strict=True)]

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs; missing inputs, such as BERT's segments, are zeros."""
        zeros = np.zeros_like(next(iter(inputs.values())))
        return self.runner(**{name: inputs.get(name, zeros) for name in self.inputs})


def read_signatures(
    interpreter: Any, path: Path | str, names: Sequence[str] = (TOKEN_IDS,)
) -> list[Signature]:
    """The signatures that take these token ids, shortest first, one of any length last.

    Args:
        interpreter: LiteRT's interpreter.
        path: The model's path, for messages.
        names: Names of the token ids.

    Raises:
        InputError: The file has other signatures, or none.
    """
    found = []
    for key in interpreter.get_signature_list():
        if key.startswith(EMBED):
            continue
        runner = interpreter.get_signature_runner(key)
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        ids_names = {name for name in inputs if TOKEN_IDS in name}
        output = next((name for name in (PROBABILITIES, SCORES) if name in outputs), None)
        if ids_names != set(names) or output is None:
            expected = f"{', '.join(names)} and {PROBABILITIES} or {SCORES}"
            raise InputError(f"{path}: expected a TFLite model of {expected}, got one of {', '.join(inputs)}")
        lengths = (int(inputs[name]["shape_signature"][1]) for name in names)
        found.append(
            Signature(runner, tuple(inputs), tuple(max(each, 0) for each in lengths), output, tuple(outputs))
        )
    if not found:
        raise InputError(f"{path}: expected a TFLite model with a signature, got one without")
    return _shortest_first(found)


def read_embeddings(interpreter: Any) -> dict[str, list[Signature]]:
    """The signatures of vectors by "embed" and "embed_query", in the order of `read_signatures`."""
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


def load_tflite(path: Path, num_threads: int | None = None) -> Callable[[Sequence[Any]], np.ndarray]:
    """Loads a TFLite model that `export.tflite` wrote, as a function.

    Args:
        path: The .tflite file, with its .tokenizer.json next to it.
        num_threads: Threads of the runtime; None: the runtime's default.

    Returns:
        A function from texts, or from pairs of texts, to float32 [R, C]. A row runs in the shortest signature that
        holds it, and is truncated to the longest signature. Of a tagger a function from sentences, raw texts or lists
        of words, to float32 [N, K + 2], see `export.predictors.sentence_batches.tag_sentences`; long sentences are
        split into windows.

    Raises:
        InputError: A file is missing or was not written by `export.tflite`, or LiteRT is not installed.
    """
    path = Path(path)
    interpreter = _interpreter(path, num_threads)
    tokenizer = read_tokenizer(path)
    signatures = read_signatures(interpreter, path, [name for name, *_ in input_names(tokenizer)])
    if isinstance(tokenizer, SentenceTokenizer):
        return _tagger(tokenizer, signatures)
    longest = max(signatures[-1].lengths) or tokenizer.max_length

    def probabilities(texts: Sequence[TextRow]) -> np.ndarray:
        rows = [one(text) for text in texts]
        return np.stack(rows) if rows else np.zeros((0, len(tokenizer.labels)), np.float32)

    def one(text: TextRow) -> np.ndarray:
        ids = encode_row(tokenizer, text, longest)
        lengths = [len(each) for each in ids]
        signature = shortest_signature(signatures, lengths)
        outputs = signature.run(model_inputs(tokenizer, [ids], signature.padded_lengths(lengths)))
        return outputs[signature.output][0].copy()

    return probabilities


def _tagger(
    tokenizer: SentenceTokenizer, signatures: Sequence[Signature]
) -> Callable[[Sequence[SentenceRow]], np.ndarray]:
    longest = max(signatures[-1].lengths) or None

    def run(parts: list[SentenceWindow]) -> Outputs:
        signature = shortest_signature(signatures, [len(parts[0].window.ids)])
        return signature.run(signature_inputs(tokenizer, signature, parts))

    def predict(rows: Sequence[SentenceRow]) -> np.ndarray:
        sentences = [sentence_windows(tokenizer, row, longest, number) for number, row in enumerate(rows, 1)]
        # A signature takes one window at a time.
        return tag_sentences(
            tokenizer, sentences, lambda windows: ([number] for number in range(len(windows))), run
        )

    return predict


def shortest_signature(signatures: Sequence[Signature], lengths: Sequence[int]) -> Signature:
    """The first of the sorted signatures that holds token ids of these lengths."""
    return next(each for each in signatures if each.holds(lengths))


def signature_inputs(
    tokenizer: SentenceTokenizer, signature: Signature, parts: Sequence[SentenceWindow]
) -> dict[str, np.ndarray]:
    """The inputs of a signature for windows, padded to the signature's length if that is fixed."""
    (length,) = signature.lengths
    return window_inputs(tokenizer, parts, length or None, length - SPECIAL_TOKENS if length else None)


def _interpreter(path: Path, num_threads: int | None):
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise InputError(f"{path}: expected the package ai-edge-litert, got none") from error
    if not path.is_file():
        raise InputError(f"{path}: expected a TFLite model, got none")
    try:
        return Interpreter(model_path=str(path), num_threads=num_threads)
    except ValueError as error:
        raise InputError(f"{path}: expected a TFLite model, {str(error).splitlines()[0]}") from error

"""Answers texts with an exported TFLite model, with LiteRT and the device's tokenizer only: no TensorFlow."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.device.sentences import SPECIAL_TOKENS, SentenceTokenizer
from export.sentence_batches import Outputs, Part, SentenceRow, cut_sentence, tagged, window_inputs
from export.tflite_signatures import Signature, read_signatures
from export.token_batches import TextRow, encoded, fed, input_names, read_tokenizer
from kmha.errors import InputError


def load_tflite(path: Path, num_threads: int | None = None) -> Callable[[Sequence[Any]], np.ndarray]:
    """The function of a TFLite model that `export.tflite` wrote.

    Args:
        path: The .tflite file, with its .tokenizer.json beside it.
        num_threads: Of the runtime; None leaves it the choice.

    Returns:
        A function from texts, or from pairs of texts, to float32 [R, C]. Each goes through the signature of the
        shortest length that holds it; one that is longer than all is cut to the longest. Of a tagger from sentences,
        raw texts or lists of words, to float32 [N, K + 2] as `export.sentence_batches.tagged` gives it; a long one is
        read in windows.

    Raises:
        InputError: A file is missing or not one that `export.tflite` wrote, or LiteRT is not installed.
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
        ids = encoded(tokenizer, text, longest)
        lengths = [len(each) for each in ids]
        signature = fitting(signatures, lengths)
        outputs = signature.run(fed(tokenizer, [ids], signature.fitted(lengths)))
        return outputs[signature.answer][0].copy()

    return probabilities


def _tagger(
    tokenizer: SentenceTokenizer, signatures: Sequence[Signature]
) -> Callable[[Sequence[SentenceRow]], np.ndarray]:
    """The function of a tagger's signatures."""
    longest = max(signatures[-1].lengths) or None

    def run(parts: list[Part]) -> Outputs:
        signature = fitting(signatures, [len(parts[0].window.ids)])
        return signature.run(signature_inputs(tokenizer, signature, parts))

    def answer(rows: Sequence[SentenceRow]) -> np.ndarray:
        sentences = [cut_sentence(tokenizer, row, longest, number) for number, row in enumerate(rows, 1)]
        # One window at a time is all that a signature takes.
        return tagged(tokenizer, sentences, lambda windows: ([number] for number in range(len(windows))), run)

    return answer


def fitting(signatures: Sequence[Signature], lengths: Sequence[int]) -> Signature:
    """The first of the signatures, shortest first, that holds token ids of such lengths."""
    return next(each for each in signatures if each.holds(lengths))


def signature_inputs(
    tokenizer: SentenceTokenizer, signature: Signature, parts: Sequence[Part]
) -> dict[str, np.ndarray]:
    """Inputs of windows as a signature takes them: of one length for all, or as long as they are."""
    (length,) = signature.lengths
    return window_inputs(tokenizer, parts, length or None, length - SPECIAL_TOKENS if length else None)


def _interpreter(path: Path, num_threads: int | None):
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise InputError(f"{path}: wanted the package ai-edge-litert, given none") from error
    if not path.is_file():
        raise InputError(f"{path}: wanted a TFLite model, given none")
    try:
        return Interpreter(model_path=str(path), num_threads=num_threads)
    except ValueError as error:
        raise InputError(f"{path}: wanted a TFLite model, {str(error).splitlines()[0]}") from error

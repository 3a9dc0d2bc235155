"""Answers texts with an exported TFLite model, with LiteRT and the device's tokenizer only: no TensorFlow."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from export.device.sentences import SPECIAL_TOKENS, SentenceTokenizer
from export.predictors.sentence_batches import Outputs, Part, SentenceRow, cut_sentence, tagged, window_inputs
from export.predictors.token_batches import TextRow, encoded, fed, input_names, read_tokenizer
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
            expected = f"{', '.join(names)} and {PROBABILITIES} or {SCORES}"
            raise InputError(f"{path}: expected a TFLite model of {expected}, got one of {', '.join(inputs)}")
        lengths = (int(inputs[name]["shape_signature"][1]) for name in names)
        found.append(
            Signature(runner, tuple(inputs), tuple(max(each, 0) for each in lengths), answer, tuple(outputs))
        )
    if not found:
        raise InputError(f"{path}: expected a TFLite model with a signature, got one without")
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


def load_tflite(path: Path, num_threads: int | None = None) -> Callable[[Sequence[Any]], np.ndarray]:
    """The function of a TFLite model that `export.tflite` wrote.

    Args:
        path: The .tflite file, with its .tokenizer.json beside it.
        num_threads: Of the runtime; None leaves it the choice.

    Returns:
        A function from texts, or from pairs of texts, to float32 [R, C]. Each goes through the signature of the
        shortest length that holds it; one that is longer than all is cut to the longest. Of a tagger from sentences,
        raw texts or lists of words, to float32 [N, K + 2] as `export.predictors.sentence_batches.tagged` gives it; a long one is
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
        raise InputError(f"{path}: expected the package ai-edge-litert, got none") from error
    if not path.is_file():
        raise InputError(f"{path}: expected a TFLite model, got none")
    try:
        return Interpreter(model_path=str(path), num_threads=num_threads)
    except ValueError as error:
        raise InputError(f"{path}: expected a TFLite model, {str(error).splitlines()[0]}") from error

"""A TFLite model of strings, with tensorflow-text's tokenizer as custom ops, for runtimes that link them."""

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from export.graph import ids_function
from export.names import PROBABILITIES, SERVING_DEFAULT, TEXT
from export.tflite.write import Quantize, new_converter, op_counts, run_converter
from export.verification.tolerances import differences, failures
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, TAG
from kmha.errors import InputError
from kmha.text.preprocessor import tokenizer
from kmha.text.vocabulary import END, PADDING, START
from training.io.disk import atomic_write

logger = logging.getLogger("kmha")

CUSTOM_OPS = {"CUSTOM FastBertNormalize", "CUSTOM FastWordpieceTokenizeWithOffsets"}
EDGE_CASES = (b"", b"\0", b"\xff\xfe", "🚢 é".encode())


@contextlib.contextmanager
def string_model(
    bundle: Bundle, out: Path, length: int | None, quantize: Quantize, overwrite: bool
) -> Iterator[None]:
    """Writes the model of strings, OUT.text.tflite; it appears when the block ends without an error."""
    _check_convertible(bundle, quantize)
    final, most = out.with_suffix(".text.tflite"), length or bundle.preprocessor.max_length
    with atomic_write(final, overwrite) as path:
        content = convert_text(bundle, most, quantize)
        difference = _check_predictions(content, bundle, most, quantize)
        path.write_bytes(content)
        logger.info(f"{final}: largest difference from the run: {difference:.2g}")
        yield


def _check_convertible(bundle: Bundle, quantize: str) -> None:
    if bundle.task != CLASSIFY:
        got = "sentences" if bundle.task == TAG else "pairs"
        raise InputError(f"--with-tokenizer: expected a run of single texts, got one of {got}")
    if bundle.preprocessor.tokenization == "char":
        raise InputError("--with-tokenizer: expected a wordpiece or word run, got one of characters")
    if quantize == "int8":
        raise InputError("--with-tokenizer: expected --quantize none, float16 or dynamic, got int8")


def convert_text(bundle: Bundle, length: int, quantize: Quantize) -> bytes:
    """Converts a bundle to a TFLite model of strings of at most `length` tokens, special ones included.

    Unlike the bundle it tokenizes the whole text before it truncates the tokens. The signature serving_default takes
    text, string [1], and returns probabilities float32 [1, C]. Raises InputError for a run of characters, and if
    the model needs other custom ops than tensorflow-text's two.
    """
    _check_convertible(bundle, quantize)
    with tempfile.TemporaryDirectory() as folder:
        signatures = {SERVING_DEFAULT: _signature(bundle, length)}
        converter = new_converter(bundle, folder, signatures, quantize)
        converter.allow_custom_ops = True
        content = run_converter(converter)
    custom_ops = {name for name in op_counts(content) if name.startswith("CUSTOM")}
    if others := sorted(custom_ops - CUSTOM_OPS):
        raise InputError(f"expected no custom ops but tensorflow-text's tokenizer, got {others[0]}")
    return content


def _signature(bundle: Bundle, length: int) -> Any:
    texts = bundle.preprocessor
    tokenize = tokenizer(texts.vocabulary, texts.tokenization, texts.lower_case)
    predict = ids_function(bundle).python_function
    start, end, padding = (texts.vocabulary.id_of(token) for token in (START, END, PADDING))

    def predict_text(text):
        # The flat values are the tokens of the only text: ragged ops would be custom ops too.
        tokens = tokenize(text).flat_values[: length - 2]
        count = tf.shape(tokens)[0] + 2
        ids = tf.concat([[start], tokens, [end], tf.fill([length - count], padding)], axis=0)
        ids = tf.reshape(ids, [1, length])
        mask = tf.cast(tf.range(length) < count, tf.int32)[None]
        return {PROBABILITIES: predict(ids, mask)[PROBABILITIES]}

    function: Any = tf.function(predict_text, autograph=False)
    return function.get_concrete_function(tf.TensorSpec([1], tf.string, name=TEXT))


def load_text_tflite(content: bytes) -> Callable[[Sequence[str | bytes]], np.ndarray]:
    """Loads a flatbuffer in TensorFlow's interpreter with tensorflow-text's ops; a function from texts to [R, C]."""
    from tensorflow.lite.python.interpreter import InterpreterWithCustomOps

    with warnings.catch_warnings():
        # LiteRT's own interpreter does not accept custom ops from Python.
        warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated", UserWarning)
        interpreter = InterpreterWithCustomOps(
            custom_op_registerers=tf_text.tflite_registrar.SELECT_TFTEXT_OPS, model_content=content
        )
    runner = interpreter.get_signature_runner(SERVING_DEFAULT)

    def predict(texts):
        encoded = [text.encode() if isinstance(text, str) else text for text in texts]
        return np.concatenate([runner(**{TEXT: np.array([text], object)})[PROBABILITIES] for text in encoded])

    return predict


def _check_predictions(content: bytes, bundle: Bundle, length: int, quantize: str) -> float:
    """The largest difference of a probability from the bundle's, on sample texts of at most that length.

    Raises InputError if `export.verify` would not accept the differences.
    """
    texts = [*(text.encode("utf-8", "replace") for text in bundle.sample), *EDGE_CASES]
    counts = bundle.preprocessor.tokenize(tf.constant(texts)).row_lengths().numpy()
    short = [text for text, count in zip(texts, counts, strict=True) if count <= length - 2]
    expected, predictions = bundle.probabilities(short), load_text_tflite(content)(short)
    found = differences(expected, predictions, len(short), bundle.thresholds)
    reasons = failures(quantize, found, None, None, labels=True, labeled=False)
    if reasons:
        raise InputError(f"--with-tokenizer: {'; '.join(reasons)}. Nothing was written.")
    return found.max_difference

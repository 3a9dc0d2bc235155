"""A TFLite model of strings, with tensorflow-text's tokenizer as custom ops, for runtimes that link them."""

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from export.checks.exportable import CheckError
from export.graph.model_function import ids_function
from export.names import PROBABILITIES, SERVING_DEFAULT, TEXT
from export.tflite.check import SAMPLE_TEXTS, TOLERANCE, op_counts
from export.tflite.convert import Quantize, run_converter
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, TAG
from kmha.errors import InputError
from kmha.text.tokenizers import tokenizer
from kmha.text.vocabulary import END, PADDING, START

CUSTOM_OPS = {"CUSTOM FastBertNormalize", "CUSTOM FastWordpieceTokenizeWithOffsets"}
EDGE_CASES = (b"", b"\0", b"\xff\xfe", "🚢 é".encode())


def check_convertible(bundle: Bundle, quantize: str) -> None:
    """Raises InputError for a bundle or quantization without a model of strings."""
    if bundle.task != CLASSIFY:
        got = "sentences" if bundle.task == TAG else "pairs"
        raise InputError(f"--with-tokenizer: expected a run of single texts, got one of {got}")
    if bundle.preprocessor.tokenization == "char":
        raise InputError("--with-tokenizer: expected a wordpiece or word run, got one of characters")
    if quantize == "int8":
        raise InputError("--with-tokenizer: expected --quantize none, float16 or dynamic, got int8")


def convert_text(bundle: Bundle, length: int, quantize: Quantize) -> bytes:
    """Converts a bundle to a TFLite model of strings.

    Unlike the bundle it tokenizes the whole text before it truncates the tokens to the length.

    Args:
        bundle: A trained bundle of wordpiece or word tokens.
        length: Most tokens of a text, special ones included.
        quantize: As in `export.tflite.convert.convert`, except "int8".

    Returns:
        A flatbuffer whose signature serving_default takes text, string [1], and returns probabilities float32 [1, C].

    Raises:
        InputError: The run's tokens are characters.
        CheckError: It needs other custom ops than tensorflow-text's two.
    """
    check_convertible(bundle, quantize)
    module: Any = tf.Module()
    module.weights = [variable.value for variable in bundle.model.variables]
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures={SERVING_DEFAULT: _signature(bundle, length)})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.allow_custom_ops = True
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        if quantize != "none":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if quantize == "float16":
            converter.target_spec.supported_types = [tf.float16]
        content = run_converter(converter)
    if others := [
        name for name in op_counts(content) if name.startswith("CUSTOM") and name not in CUSTOM_OPS
    ]:
        raise CheckError(f"expected no custom ops but tensorflow-text's tokenizer, got {others[0]}")
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


def write_text_tflite(bundle: Bundle, path: Path, length: int, quantize: Quantize) -> float:
    """Writes a model of strings if its predictions are the bundle's.

    Args:
        bundle: A trained bundle of wordpiece or word tokens.
        path: The file.
        length: Most tokens of a text.
        quantize: As in `convert_text`.

    Returns:
        The largest difference of a probability from the bundle's, on sample texts of at most that length.

    Raises:
        InputError: As `convert_text`.
        CheckError: As `convert_text`; or it returns NaN, or in float32 other predictions than the bundle.
    """
    content = convert_text(bundle, length, quantize)
    texts = [*(text.encode() for text in bundle.sample[:SAMPLE_TEXTS]), *EDGE_CASES]
    counts = bundle.preprocessor.tokenize(tf.constant(texts)).row_lengths().numpy()
    short = [text for text, count in zip(texts, counts, strict=True) if count <= length - 2]
    difference = float(np.abs(load_text_tflite(content)(short) - bundle.probabilities(short)).max())
    if not np.isfinite(difference) or (quantize == "none" and difference > TOLERANCE):
        raise CheckError(
            f"with its tokenizer: expected the run's predictions, got a difference of {difference:.2g}"
        )
    path.write_bytes(content)
    return difference

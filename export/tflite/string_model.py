"""A TFLite model of strings: the tokenizer inside, as tensorflow-text's custom ops, for runtimes that link them."""

import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from export.checks.exportable import CheckError
from export.graph.model_function import PROBABILITIES, ids_function
from export.savedmodel.endpoints import TEXT
from export.tflite.check import SAMPLE_TEXTS, TOLERANCE, op_counts
from export.tflite.convert import run_converter
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, TAG
from kmha.errors import InputError
from kmha.text.tokenizers import tokenizer
from kmha.text.vocabulary import END, PADDING, START

CUSTOM_OPS = {"CUSTOM FastBertNormalize", "CUSTOM FastWordpieceTokenizeWithOffsets"}
STRANGE_TEXTS = (b"", b"\0", b"\xff\xfe", "🚢 é".encode())


def check_convertible(bundle: Bundle, quantize: str) -> None:
    """Refuses what cannot become a model of strings; raises InputError."""
    if bundle.task != CLASSIFY:
        given = "sentences" if bundle.task == TAG else "pairs"
        raise InputError(f"--with-tokenizer: expected a run of single texts, got one of {given}")
    if bundle.preprocessor.tokenization == "char":
        raise InputError("--with-tokenizer: expected a wordpiece or word run, got one of characters")
    if quantize == "int8":
        raise InputError("--with-tokenizer: expected --quantize none, float16 or dynamic, got int8")


def convert_text(bundle: Bundle, length: int, quantize: Literal["none", "float16", "dynamic"]) -> bytes:
    """The TFLite model of a bundle from strings.

    Unlike the bundle it reads a text whole, however long it is, before it cuts the tokens to the length.

    Args:
        bundle: A trained bundle of wordpiece or word tokens.
        length: Tokens that a text keeps, special ones included.
        quantize: As in `tflite_convert.convert`, but for "int8".

    Returns:
        A flatbuffer whose signature serving_default takes text, string [1], and gives probabilities float32 [1, C].

    Raises:
        InputError: The run's tokens are characters.
        CheckError: It would need other custom ops than tensorflow-text's two.
    """
    check_convertible(bundle, quantize)
    module: Any = tf.Module()
    module.weights = [variable.value for variable in bundle.model.variables]
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures={"serving_default": _signature(bundle, length)})
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
    cut = tokenizer(texts.vocabulary, texts.tokenization, texts.lower_case)
    answer = ids_function(bundle).python_function
    start, end, padding = (texts.vocabulary.id_of(token) for token in (START, END, PADDING))

    def answer_text(text):
        # One text, so flat values are its tokens: ragged ops would be custom ones too.
        kept = cut(text).flat_values[: length - 2]
        count = tf.shape(kept)[0] + 2
        ids = tf.concat([[start], kept, [end], tf.fill([length - count], padding)], axis=0)
        ids = tf.reshape(ids, [1, length])
        mask = tf.cast(tf.range(length) < count, tf.int32)[None]
        return {PROBABILITIES: answer(ids, mask)[PROBABILITIES]}

    function: Any = tf.function(answer_text, autograph=False)
    return function.get_concrete_function(tf.TensorSpec([1], tf.string, name=TEXT))


def load_text_tflite(content: bytes) -> Callable[[Sequence[str | bytes]], np.ndarray]:
    """A function from texts to float32 [R, C], by TensorFlow's interpreter with tensorflow-text's ops.

    Args:
        content: The flatbuffer.
    """
    from tensorflow.lite.python.interpreter import InterpreterWithCustomOps

    with warnings.catch_warnings():
        # LiteRT's own interpreter takes no custom ops from Python.
        warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated", UserWarning)
        interpreter = InterpreterWithCustomOps(
            custom_op_registerers=tf_text.tflite_registrar.SELECT_TFTEXT_OPS, model_content=content
        )
    runner = interpreter.get_signature_runner("serving_default")

    def answer(texts):
        encoded = [text.encode() if isinstance(text, str) else text for text in texts]
        return np.concatenate([runner(**{TEXT: np.array([text], object)})[PROBABILITIES] for text in encoded])

    return answer


def write_text_tflite(
    bundle: Bundle, path: Path, length: int, quantize: Literal["none", "float16", "dynamic"]
) -> float:
    """Writes a model of strings once it answers like its bundle.

    Args:
        bundle: A trained bundle of wordpiece or word tokens.
        path: The file.
        length: Tokens that a text keeps.
        quantize: As in `convert_text`.

    Returns:
        The largest difference of a probability from the bundle's, on sample texts of at most that length.

    Raises:
        InputError: As `convert_text`.
        CheckError: As `convert_text`; or it answers no numbers, or in float32 other ones than the bundle.
    """
    content = convert_text(bundle, length, quantize)
    texts = [*(text.encode() for text in bundle.sample[:SAMPLE_TEXTS]), *STRANGE_TEXTS]
    counts = bundle.preprocessor.tokenize(tf.constant(texts)).row_lengths().numpy()
    short = [text for text, count in zip(texts, counts, strict=True) if count <= length - 2]
    difference = float(np.abs(load_text_tflite(content)(short) - bundle.probabilities(short)).max())
    if not np.isfinite(difference) or (quantize == "none" and difference > TOLERANCE):
        raise CheckError(
            f"with its tokenizer: expected the run's answers, got a difference of {difference:.2g}"
        )
    path.write_bytes(content)
    return difference

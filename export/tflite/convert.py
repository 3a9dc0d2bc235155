"""A bundle as the bytes of a TFLite model: signatures of ids, weights frozen, built-in ops only."""

import contextlib
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from tensorflow.lite.python.convert import ConverterError, mlir_quantize

from export.checks.exportable import CheckError
from export.graph.device_function import device_function, features_of, sample_rows
from export.graph.embedding import VECTORS, embeddings, text_inputs, vectors_function
from export.graph.model_function import ids_specs, input_names
from export.graph.tagger_function import one_window
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, TAG
from kmha.errors import InputError
from kmha.features import SEGMENT_IDS
from kmha.layers.attention_options import blocks_from, masked_score

Quantize = Literal["none", "float16", "dynamic", "int8"]
ONLY_SIGNATURE = "serving_default"
# In 8 bits the masked score takes part in the scale of all scores; this one costs 1e-13 of the attention at most.
MASKED_SCORE_INT8 = -30.0
# What int8 leaves in float32: a mean over few positions is lost in the scale of one over many, the variance of
# layer normalisation spans too many sizes, and probabilities would come in steps of 1/256. Weights, tables and
# matrix products, nearly all of the size and work, are integers.
FLOAT_OPS = (
    *("SUM", "DIV", "MAXIMUM", "MEAN", "SQUARED_DIFFERENCE", "RSQRT"),
    *("SOFTMAX", "LOGISTIC", "MUL", "ADD"),
)

# Dense layers whose values lie so many times farther apart than those of the median one are left too: a BERT keeps
# single values of a hundred and more among many below one, which 256 steps would all make the same.
WIDEST_INT8 = 6.0
# Of a matcher more: what compares the texts and joins the features. Shares and vectors have no scale in common, and
# what two texts share decides; so the head, whose sum of both would be cut off where the sample's ends, is left too.
PAIR_FLOAT_OPS = ("LOG", "REDUCE_MAX", "PAD", "PACK", "CONCATENATION", "SUB", "ABS")
PAIR_FLOAT_LAYERS = ("/head", "/overlap")


def signature_names(lengths: Sequence[int | None]) -> list[str]:
    """A name for the signature of each length."""
    return [ONLY_SIGNATURE] if len(lengths) == 1 else [f"length_{length}" for length in lengths]


def embedding_signatures(bundle: Bundle, lengths: Sequence[int | None]) -> dict[str, tuple[int, int | None]]:
    """Which text of a row, and how many tokens of it, each signature of vectors takes, by name."""
    ends = [""] if len(lengths) == 1 else [f"_{name}" for name in signature_names(lengths)]
    return {
        f"{name}{end}": (number, length)
        for name, number in embeddings(bundle).items()
        for end, length in zip(ends, lengths, strict=True)
    }


def convert(
    bundle: Bundle,
    lengths: Sequence[int | None],
    quantize: Quantize = "none",
    with_attention: bool = False,
    with_vectors: bool = False,
) -> bytes:
    """The TFLite model of a bundle.

    Args:
        bundle: A trained bundle; int8 calibrates on its sample.
        lengths: Tokens each signature takes; None for any number up to max_length.
        quantize: "none" keeps float32; "float16" halves the weights; "dynamic" keeps weights as 8-bit integers and
            computes in them where that pays; "int8" fixes the scales of values beforehand, but for FLOAT_OPS.
        with_attention: Whether to answer the attention weights too.
        with_vectors: Whether to add the signatures of `embedding_signatures`, which share the weights: token ids, mask
            and of a classifier segment_ids of one text, int32 [1, T], to "vectors" float32 [1, D].

    Returns:
        A flatbuffer whose signatures take token_ids, padding_mask and segment_ids, int32 [1, T], and give
        "probabilities" float32 [1, C] and, if asked, "attention" float32 [1, L, N, T, T]. segment_ids are ignored:
        they are there because BERT's clients send them. Of pairs the inputs are those of `export.graph.model_function`, all of the
        length or of the longest that their way to cut texts allows, and "scores" float32 [1, 1] the answer. What
        those of taggers take and give is in `export.graph.tagger_function`.

    Raises:
        InputError: int8 without a sample, or of a tagger.
        CheckError: The model needs an op that is not built in; names it.
    """
    if quantize == "int8" and bundle.task == TAG:
        # The converter's calibration crashes on a loop, and the best path is found in one.
        raise InputError("--quantize: expected none, float16 or dynamic for a tagger, got int8")
    if quantize == "int8" and not bundle.sample:
        raise InputError(
            "--quantize int8: expected a run with a sample of its training texts, got one without"
        )
    names = dict(zip(signature_names(lengths), lengths, strict=True))
    embedded = embedding_signatures(bundle, lengths) if with_vectors else {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        # Blocks are loops, which runtimes for devices have, but slowly.
        stack.enter_context(blocks_from(None))
        if quantize == "int8":
            stack.enter_context(masked_score(MASKED_SCORE_INT8))
        signatures = {name: _signature(bundle, length, with_attention) for name, length in names.items()}
        signatures |= {name: _embedding(bundle, *each) for name, each in embedded.items()}
        module: Any = tf.Module()
        module.weights = [variable.value for variable in bundle.model.variables]
        tf.saved_model.save(module, folder, signatures=signatures)
        # From the saved model: the other ways leave the weights out, or use ops that are not built in.
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(signatures))
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        if quantize != "none":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if quantize == "float16":
            converter.target_spec.supported_types = [tf.float16]
        if quantize == "int8":
            converter.representative_dataset = lambda: _calibration(bundle, names, embedded)
            # The converter's own second step, which can only here be told what to leave alone.
            converter._experimental_calibrate_only = True
            return _quantized(bundle, run_converter(converter))
        return run_converter(converter)


def _quantized(bundle: Bundle, content: bytes) -> bytes:
    """A calibrated model in integers, but for what loses too much in them."""
    from ai_edge_litert import schema_py_generated as schema

    pairs = bundle.task != CLASSIFY
    changed, kept = bytearray(content), set()
    spans: dict[str, float] = {}
    model = schema.Model.GetRootAsModel(changed, 0)
    for graph in (model.Subgraphs(index) for index in range(model.SubgraphsLength())):
        for operator in (graph.Operators(index) for index in range(graph.OperatorsLength())):
            output = graph.Tensors(operator.Outputs(0))
            code, name = model.OperatorCodes(operator.OpcodeIndex()).BuiltinCode(), output.Name().decode()
            if pairs and any(layer in name for layer in PAIR_FLOAT_LAYERS):
                kept.add(name)
            elif pairs and code == schema.BuiltinOperator.GATHER:
                _span_table(model, graph.Tensors(operator.Inputs(0)), output)
            elif code == schema.BuiltinOperator.FULLY_CONNECTED:
                spans[name] = _span(output)
    widest = WIDEST_INT8 * float(np.median(list(spans.values())))
    kept |= {name for name, span in spans.items() if span > widest}
    float_ops = [*FLOAT_OPS, *(PAIR_FLOAT_OPS if pairs else ())]
    return mlir_quantize(bytes(changed), denylisted_ops=float_ops, denylisted_nodes=sorted(kept))


def _span(tensor: Any) -> float:
    """How far apart the values are that the sample gave a tensor; 0 where it gave none."""
    seen = tensor.Quantization()
    return float(seen.Max(0) - seen.Min(0)) if seen is not None and seen.MinLength() else 0.0


def _span_table(model: Any, table: Any, output: Any) -> None:
    """Gives looked-up values the range of their whole table, in place.

    With the range that the sample saw, each look-up would have a scale, and so a copy of the table, of its own.
    """
    content, seen = model.Buffers(table.Buffer()).DataAsNumpy(), output.Quantization()
    # What is computed has a number for data, 0; whole numbers have no range.
    if isinstance(content, int) or seen is None or not seen.MinLength():
        return
    values = content.view(np.float32)
    seen.MinAsNumpy()[:] = values.min()
    seen.MaxAsNumpy()[:] = values.max()


def run_converter(converter: Any) -> bytes:
    """The model that a TFLite converter makes.

    Raises:
        CheckError: It needs an op that is not built in; names it.
    """
    try:
        with warnings.catch_warnings():
            # Its calibration still uses the interpreter that its own package wants gone.
            warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated", UserWarning)
            return converter.convert()
    except ConverterError as error:
        named = re.search(r"^(?:Custom|Flex|TF Select) ops: (.+)$", str(error), re.MULTILINE)
        if named is None:
            raise
        raise CheckError(f"expected built-in ops without variables, got {named[1]}") from error


def _signature(bundle: Bundle, length: int | None, with_attention: bool) -> Any:
    answer: Callable[..., dict] = device_function(bundle, with_attention)
    names = input_names(bundle)
    specs = [
        tf.TensorSpec([1, length and min(length, given.part.max_length)], tf.int32, name)
        for given in bundle.preprocessor.inputs
        for name in (given.ids, given.mask)
    ]
    if bundle.task == TAG:
        specs = ids_specs(bundle, 1, length)
    if bundle.task == CLASSIFY:
        specs.append(tf.TensorSpec([1, length], tf.int32, SEGMENT_IDS))
    # Arguments by the names of the inputs: those become the signature's.
    function: Any = tf.function(lambda *inputs: answer(*inputs[: len(names)]), autograph=False)
    return function.get_concrete_function(*specs)


def _embedding(bundle: Bundle, number: int, length: int | None) -> Any:
    answer, given = vectors_function(bundle, number), text_inputs(bundle, number)
    specs = [
        tf.TensorSpec([1, length and min(length, each.part.max_length)], tf.int32, name)
        for each in given
        for name in (each.ids, each.mask)
    ]
    count = len(specs)
    if bundle.task == CLASSIFY:
        specs.append(tf.TensorSpec([1, length], tf.int32, SEGMENT_IDS))
    function: Any = tf.function(lambda *inputs: {VECTORS: answer(*inputs[:count])}, autograph=False)
    return function.get_concrete_function(*specs)


def embedding_row(bundle: Bundle, number: int, inputs: dict[str, Any]) -> dict[str, Any]:
    """Of a signature's inputs, as `one_row` gives them, what a signature of one text's vectors takes."""
    others = {name for given in bundle.preprocessor.inputs if given.text != number for name in given[:2]}
    return {name: value for name, value in inputs.items() if name not in others}


def _calibration(
    bundle: Bundle, names: dict[str, int | None], embedded: dict[str, tuple[int, int | None]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, length in names.items():
        features = features_of(bundle, sample_rows(bundle), length or longest_length(bundle))
        for row in range(len(next(iter(features.values())))):
            inputs = one_row(bundle, features, row, cut=length is None)
            yield name, inputs
            for other, (number, expected) in embedded.items():
                if expected == length:
                    yield other, embedding_row(bundle, number, inputs)


def longest_length(bundle: Bundle) -> int:
    """Tokens that a text may have, special ones included, in the way to cut it that allows most."""
    return max(given.part.max_length for given in bundle.preprocessor.inputs)


def one_row(bundle: Bundle, features: dict[str, Any], row: int, cut: bool) -> dict[str, Any]:
    """A signature's inputs int32 [1, T] of one row of features [B, T]; `cut` leaves the padding out."""
    if cut and bundle.task == TAG:
        return one_window(features, row)
    inputs = {name: values[row : row + 1] for name, values in features.items()}
    if not cut:
        return inputs
    for given in bundle.preprocessor.inputs:
        steps = int(inputs[given.mask].sum())
        shared = {given.ids, given.mask, *({SEGMENT_IDS} if bundle.task == CLASSIFY else ())}
        inputs |= {name: inputs[name][:, :steps] for name in shared}
    return inputs

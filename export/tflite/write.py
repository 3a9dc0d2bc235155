"""Writes a bundle as a TFLite model with the files that a device needs, after checking the model's predictions."""

import contextlib
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from tensorflow.lite.python.convert import ConverterError, mlir_quantize

from export.device.files import LABELS, VOCABULARY, atomic_device_files, device_files
from export.graph import (
    PAIR_FLOAT_LAYERS,
    check_attention,
    check_embeds,
    device_function,
    eight_bit_forms,
    embedded_texts,
    features_of,
    ids_specs,
    longest_length,
    one_window,
    sample_rows,
    text_inputs,
    vectors_function,
    with_float_head,
)
from export.names import SERVING_DEFAULT, VECTORS
from export.predictors.artifacts import TFLITE, Artifact
from export.tflite import metadata
from export.verification.examiner import check_export
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, CROSS_VALIDATED, TAG
from kmha.errors import InputError
from kmha.features import SEGMENT_IDS
from kmha.layers.attention_parts import blocks_from, masked_score
from kmha.layers.eight_bit import forms_of_layers

# A file with variable handles has no weights, and its predictions are wrong.
FORBIDDEN = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CUSTOM", "DELEGATE")
Quantize = Literal["none", "float16", "dynamic", "int8"]
# In 8 bits the masked score widens the scale of all scores; this value costs at most 1e-13 of the attention.
MASKED_SCORE_INT8 = -30.0
# Ops that int8 leaves in float32: one scale does not fit means over few and over many positions, the variances of
# layer normalization span too many orders of magnitude, and probabilities would have steps of 1/256. The products of
# attention and GELU are slower in 8 bits (docs/results.md), and padding widens the scale of the products.
# Weights, tables and their products, nearly all of the size and work, are integers.
FLOAT_OPS = (
    *("SUM", "DIV", "MAXIMUM", "MEAN", "SQUARED_DIFFERENCE", "SQRT", "RSQRT"),
    *("SOFTMAX", "LOGISTIC", "MUL", "ADD", "BATCH_MATMUL", "GELU"),
)
# Dense layers whose range of values is so many times that of the median layer stay in float32 too: a BERT has single
# values above one hundred among many below one, which 256 steps would make equal.
WIDEST_INT8 = 6.0
# A matcher also keeps the comparison of the texts and the concatenated features in float32: overlap shares and vectors
# have no common scale. The head adds both up and would be clipped at the sample's range, so it stays in float32 too.
PAIR_FLOAT_OPS = ("LOG", "REDUCE_MAX", "PAD", "PACK", "CONCATENATION", "SUB", "ABS")


def write_tflite(
    bundle: Bundle,
    final: Path,
    lengths: Sequence[int | None],
    quantize: Quantize = "none",
    with_attention: bool = False,
    overwrite: bool = False,
    with_vectors: bool = False,
) -> dict[str, Any]:
    """Writes a bundle as a TFLite model, and the files that a device needs next to it; see `convert`.

    Returns:
        The report of `check_export`: the differences from the bundle's predictions on its sample.

    Raises:
        InputError: A file exists or cannot be written, int8 has no sample, the model has an op that is not built in,
            or its predictions differ from the bundle's by more than `export.verify` accepts.
    """
    if with_vectors:
        check_embeds(bundle)
    if with_attention:
        check_attention(bundle)
    with atomic_device_files(bundle, final, overwrite) as path:
        content = convert(bundle, lengths, quantize, with_attention, with_vectors)
        check_ops(content)
        # MediaPipe reads metadata of models with one signature only.
        if metadata.has_metadata(bundle, len(lengths) + with_vectors, with_attention):
            files = device_files(bundle)
            named = {metadata.LABELS: files[LABELS], metadata.VOCABULARY: files[VOCABULARY]}
            content = metadata.with_metadata(content, bundle, named)
        path.write_bytes(content)
        return check_export(bundle, Artifact(path, TFLITE), final)


def op_counts(content: bytes) -> dict[str, int]:
    """How often each op occurs in a model (a flatbuffer), by name; a custom op as CUSTOM and its own name."""
    from ai_edge_litert import schema_py_generated as schema

    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    model = schema.Model.GetRootAsModel(content, 0)
    counts: Counter[str] = Counter()
    for graph in (model.Subgraphs(index) for index in range(model.SubgraphsLength())):
        for operator in (graph.Operators(index) for index in range(graph.OperatorsLength())):
            code = model.OperatorCodes(operator.OpcodeIndex())
            # Old files store the number in a byte.
            name = names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
            counts[f"CUSTOM {code.CustomCode().decode()}" if name == "CUSTOM" else name] += 1
    return dict(sorted(counts.items()))


def check_ops(content: bytes) -> None:
    """Raises InputError, with the op's name, unless a model has only built-in ops and no variables."""
    for name in op_counts(content):
        if name.split(" ")[0] in FORBIDDEN:
            raise InputError(f"expected built-in ops without variables, got {name}")


def new_interpreter(content: bytes) -> Any:
    """LiteRT's interpreter of a model; raises InputError if the package is not installed."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise InputError(
            "TFLite: expected the package ai-edge-litert, got none; pip install 'kmha[litert]'"
        ) from error
    return Interpreter(model_content=content)


def signature_names(lengths: Sequence[int | None]) -> list[str]:
    """A name for the signature of each length."""
    return [SERVING_DEFAULT] if len(lengths) == 1 else [f"length_{length}" for length in lengths]


def embedding_signatures(bundle: Bundle, lengths: Sequence[int | None]) -> dict[str, tuple[int, int | None]]:
    """The text of a row, and its number of tokens, that each signature of vectors takes, by name."""
    ends = [""] if len(lengths) == 1 else [f"_{name}" for name in signature_names(lengths)]
    return {
        f"{name}{end}": (number, length)
        for name, number in embedded_texts(bundle).items()
        for end, length in zip(ends, lengths, strict=True)
    }


def convert(
    bundle: Bundle,
    lengths: Sequence[int | None],
    quantize: Quantize = "none",
    with_attention: bool = False,
    with_vectors: bool = False,
) -> bytes:
    """Converts a bundle to a TFLite model; int8 calibrates on its sample.

    Args:
        bundle: A trained bundle.
        lengths: Tokens of each signature; None for any number up to max_length.
        quantize: "none" is float32; "float16" halves the weights; "dynamic" stores weights as 8-bit integers and
            computes with them where that is faster; "int8" fixes the scales of activations too, except FLOAT_OPS.
        with_attention: Whether to return the attention weights.
        with_vectors: Whether to add the signatures of `embedding_signatures`, which share the weights: token ids,
            mask and of a classifier segment_ids of one text, int32 [1, T], to "vectors" float32 [1, D].

    Returns:
        A flatbuffer whose signatures take token_ids, padding_mask and segment_ids, int32 [1, T], and return
        "probabilities" float32 [1, C] and optionally "attention" float32 [1, L, N, T, T]. segment_ids are ignored;
        BERT's clients send them. Of pairs the inputs are those of `export.graph`, each of the length
        or of its tokenizer's longest, and the output is "scores" float32 [1, 1]. Those of taggers are there too.

    Raises:
        InputError: int8 without a sample, or for a tagger; or an op that is not built in, with its name.
    """
    if quantize == "int8" and bundle.task == TAG:
        # The converter's calibration crashes on loops, and decoding is a loop.
        raise InputError("--quantize: expected none, float16 or dynamic for a tagger, got int8")
    if quantize == "int8" and not bundle.sample:
        raise InputError("--quantize int8: expected a run with a sample of its texts, got one without")
    if quantize == "int8" and bundle.details.get("pretrained") and bundle.details.get(CROSS_VALIDATED):
        # The predictions for training texts are too confident to show what 8-bit activations do to a BERT.
        raise InputError(
            "--quantize int8: expected a run with validation rows to check it on, got a pretrained encoder with few"
            " labels; use --quantize dynamic, which is smaller and faster"
        )
    names = dict(zip(signature_names(lengths), lengths, strict=True))
    embedded = embedding_signatures(bundle, lengths) if with_vectors else {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        variables = []
        if quantize in ("dynamic", "int8"):
            forms, variables = eight_bit_forms(bundle)
            stack.enter_context(forms_of_layers(forms))
        # Attention in blocks needs loops, which are slow in device runtimes.
        stack.enter_context(blocks_from(None))
        if quantize == "int8":
            stack.enter_context(masked_score(MASKED_SCORE_INT8))
        predict, texts = device_function(bundle, with_attention), bundle.preprocessor.inputs
        if quantize == "dynamic":
            predict = with_float_head(bundle, predict)
        signatures = {
            name: _concrete_function(bundle, predict, texts, length) for name, length in names.items()
        }
        for name, (number, length) in embedded.items():
            embed = _named_vectors(bundle, number)
            signatures[name] = _concrete_function(bundle, embed, text_inputs(bundle, number), length)
        converter = new_converter(bundle, folder, signatures, quantize, variables)
        if quantize == "int8":
            converter.representative_dataset = lambda: _calibration(bundle, names, embedded)
            # Only the separate second step accepts ops and layers to leave in float32.
            converter._experimental_calibrate_only = True
            return _quantized(bundle, run_converter(converter))
        return run_converter(converter)


def new_converter(
    bundle: Bundle, folder: str, signatures: dict[str, Any], quantize: Quantize, variables: Sequence[Any] = ()
) -> Any:
    """A TFLite converter to built-in ops of signatures of a bundle, which are saved in a temporary folder."""
    module: Any = tf.Module()
    module.weights = [variable.value for variable in bundle.model.variables] + list(variables)
    tf.saved_model.save(module, folder, signatures=signatures)
    # The converter's other inputs leave the weights out, or use ops that are not built in.
    converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=list(signatures))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if quantize != "none":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantize == "float16":
        converter.target_spec.supported_types = [tf.float16]
    return converter


def _quantized(bundle: Bundle, content: bytes) -> bytes:
    """Quantizes a calibrated model, except the ops and layers that lose too much."""
    from ai_edge_litert import schema_py_generated as schema

    pairs = bundle.task != CLASSIFY
    changed, float_layers = bytearray(content), set()
    spans: dict[str, float] = {}
    model = schema.Model.GetRootAsModel(changed, 0)
    for graph in (model.Subgraphs(index) for index in range(model.SubgraphsLength())):
        for operator in (graph.Operators(index) for index in range(graph.OperatorsLength())):
            output = graph.Tensors(operator.Outputs(0))
            code, name = model.OperatorCodes(operator.OpcodeIndex()).BuiltinCode(), output.Name().decode()
            if pairs and any(layer in name for layer in PAIR_FLOAT_LAYERS):
                float_layers.add(name)
            elif code == schema.BuiltinOperator.GATHER:
                _span_table(model, graph.Tensors(operator.Inputs(0)), output)
            elif code == schema.BuiltinOperator.FULLY_CONNECTED:
                spans[name] = _span(output)
    widest = WIDEST_INT8 * float(np.median(list(spans.values())))
    float_layers |= {name for name, span in spans.items() if span > widest}
    float_ops = [*FLOAT_OPS, *(PAIR_FLOAT_OPS if pairs else ())]
    return mlir_quantize(bytes(changed), denylisted_ops=float_ops, denylisted_nodes=sorted(float_layers))


def _span(tensor: Any) -> float:
    """The range of a tensor's values on the sample; 0 if it was not calibrated."""
    seen = tensor.Quantization()
    return float(seen.Max(0) - seen.Min(0)) if seen is not None and seen.MinLength() else 0.0


def _span_table(model: Any, table: Any, output: Any) -> None:
    """Sets the range of looked-up values to the range of their whole table, in place.

    With the range on the sample, every look-up, of each text and signature, would have its own scale, and so its own
    copy of the table.
    """
    content, seen = model.Buffers(table.Buffer()).DataAsNumpy(), output.Quantization()
    # The data of a computed tensor is the number 0; integers have no range.
    if isinstance(content, int) or seen is None or not seen.MinLength():
        return
    values = content.view(np.float32)
    seen.MinAsNumpy()[:] = values.min()
    seen.MaxAsNumpy()[:] = values.max()


def run_converter(converter: Any) -> bytes:
    """Runs a TFLite converter; raises InputError, with the op's name, if the model needs an op that is not built in."""
    try:
        with warnings.catch_warnings():
            # Calibration still uses the deprecated interpreter.
            warnings.filterwarnings("ignore", r"\s*Warning: tf\.lite\.Interpreter is deprecated", UserWarning)
            return converter.convert()
    except ConverterError as error:
        named = re.search(r"^(?:Custom|Flex|TF Select) ops: (.+)$", str(error), re.MULTILINE)
        if named is None:
            raise
        raise InputError(f"expected built-in ops without variables, got {named[1]}") from error


def _named_vectors(bundle: Bundle, number: int) -> Callable:
    vectors = vectors_function(bundle, number)
    return lambda *inputs: {VECTORS: vectors(*inputs)}


def _concrete_function(bundle: Bundle, function: Callable, texts: Sequence[Any], length: int | None) -> Any:
    """Traces a function of the token ids and masks of some texts; specs name the signature's inputs."""
    if bundle.task == TAG:
        specs = ids_specs(bundle, 1, length)
    else:
        specs = [
            tf.TensorSpec([1, length and min(length, each.part.max_length)], tf.int32, name)
            for each in texts
            for name in (each.ids, each.mask)
        ]
    count = len(specs)
    if bundle.task == CLASSIFY:
        specs.append(tf.TensorSpec([1, length], tf.int32, SEGMENT_IDS))
    traced: Any = tf.function(lambda *inputs: function(*inputs[:count]), autograph=False)
    return traced.get_concrete_function(*specs)


def embedding_row(bundle: Bundle, number: int, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a signature of one text's vectors, selected from those that `one_row` returns."""
    others = {name for each in bundle.preprocessor.inputs if each.text != number for name in each[:2]}
    return {name: value for name, value in inputs.items() if name not in others}


def _calibration(
    bundle: Bundle, names: dict[str, int | None], embedded: dict[str, tuple[int, int | None]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, length in names.items():
        features = features_of(bundle, sample_rows(bundle), length or longest_length(bundle))
        for row in range(len(next(iter(features.values())))):
            inputs = one_row(bundle, features, row, trim=length is None)
            yield name, inputs
            for other, (number, expected) in embedded.items():
                if expected == length:
                    yield other, embedding_row(bundle, number, inputs)


def one_row(bundle: Bundle, features: dict[str, Any], row: int, trim: bool) -> dict[str, Any]:
    """A signature's inputs int32 [1, T] of one row of features [B, T]; `trim` removes the padding."""
    if trim and bundle.task == TAG:
        return one_window(features, row)
    inputs = {name: values[row : row + 1] for name, values in features.items()}
    if not trim:
        return inputs
    for each in bundle.preprocessor.inputs:
        steps = int(inputs[each.mask].sum())
        shared = {each.ids, each.mask, *({SEGMENT_IDS} if bundle.task == CLASSIFY else ())}
        inputs |= {name: inputs[name][:, :steps] for name in shared}
    return inputs

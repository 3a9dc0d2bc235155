"""Writes a bundle as an ONNX file with the files that a device needs, after checking the file's predictions."""

import contextlib
import importlib.metadata
import json
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import onnxruntime
import tensorflow as tf
import tf2onnx

from export.device.files import atomic_device_files
from export.graph import (
    FEWEST_8_BIT,
    OUTPUTS,
    PAIR_FLOAT_LAYERS,
    check_attention,
    check_embeds,
    device_function,
    eight_bit_forms,
    ids_specs,
    output_name,
)
from export.names import ATTENTION
from export.predictors.artifacts import ONNX, Artifact
from export.verification.examiner import check_export
from kmha.bundle.bundle import Bundle, parts_of
from kmha.bundle.manifest import CLASSIFY, MATCH, TAG
from kmha.errors import InputError
from kmha.features import CHARACTER_IDS, TOKEN_IDS, WORD_MASK, WORD_STARTS
from kmha.layers.attention_parts import blocks_from
from kmha.layers.eight_bit import forms_of_layers, round_to_8_bits

TABLE_VALUES = 1 << 18


def write_onnx(
    bundle: Bundle,
    out: Path,
    quantize: str = "none",
    opset: int = 17,
    attention: bool = False,
    overwrite: bool = False,
    embed: bool = False,
) -> dict[str, Any]:
    """Writes the file and the files that a device needs, if its predictions are the bundle's.

    `quantize` is "none" or "dynamic", `opset` 13 to 18. `embed` adds the vectors of texts; a bi-encoder always has
    them.

    Returns:
        The report of `check_export`: the differences from the bundle's predictions on its sample.

    Raises:
        InputError: An option does not fit the run, the file cannot be written, or its predictions differ from the
            bundle's by more than `export.verify` accepts.
    """
    if embed:
        check_embeds(bundle)
    if attention:
        check_attention(bundle)
    with atomic_device_files(bundle, out, overwrite) as path:
        model = convert(bundle, opset, attention, embed, quantize == "dynamic")
        if quantize == "dynamic":
            model = with_8_bit_kernels(model, PAIR_FLOAT_LAYERS if bundle.task == MATCH else ())
        onnx.save_model(model, str(path))
        return check_export(bundle, Artifact(path, ONNX), out)


def convert(
    bundle: Bundle, opset: int, attention: bool = False, vectors: bool = False, eight_bit: bool = False
) -> onnx.ModelProto:
    """Converts `device_function`, and adds labels and versions as metadata; `eight_bit`: with `eight_bit_forms`.

    Returns:
        A checked model: token_ids and padding_mask int32 [batch, length] to probabilities float32 [batch, C], and
        optionally attention float32 [batch, L, N, length, length] and vectors float32 [batch, D]. Of pairs
        token_ids_a, padding_mask_a, token_ids_b and padding_mask_b to scores float32 [batch, 1], with names and sizes
        as in `export.graph`, which has those of taggers too.

    Raises:
        InputError: ONNX has no counterpart of an op of the model; names the op.
    """
    forms = eight_bit_forms(bundle)[0] if eight_bit else {}
    replaced = {
        id(variable)
        for layer in bundle.model._flatten_layers()
        if id(layer) in forms
        for variable in layer.variables
    } | forms.keys()
    tables = [
        each
        for each in bundle.model.variables
        if np.prod(each.shape) >= TABLE_VALUES and id(each) not in replaced
    ]
    specs = [tf.TensorSpec(each.shape, each.dtype, f"table_{index}") for index, each in enumerate(tables)]
    with quiet_logging(), blocks_from(None), forms_of_layers(forms):
        model, _ = tf2onnx.convert.from_function(
            tf.function(_with_tables(bundle, tables, attention, vectors), autograph=False),
            input_signature=[*ids_specs(bundle), *specs],
            opset=opset,
            custom_op_handlers={"Erfc": (_erfc, [])},
        )
    _store_tables(model, tables)
    _order_and_name(model, bundle)
    _add_metadata(model, bundle)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise InputError(f"the model cannot be written as ONNX: {str(error).splitlines()[0]}") from error
    return model


@contextlib.contextmanager
def quiet_logging() -> Iterator[None]:
    """Silences Python's logging: tf2onnx and the quantizer log what the checks afterwards test."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def _with_tables(bundle: Bundle, tables: list[Any], attention: bool, vectors: bool):
    """The graph function with large variables as arguments.

    tf2onnx copies every constant in each of its passes: with the tables as constants it takes fifteen times as long.
    """
    predict = device_function(bundle, attention, vectors)

    def with_tables(*inputs):
        features, values = inputs[: len(inputs) - len(tables)], inputs[len(inputs) - len(tables) :]
        with keras.StatelessScope(state_mapping=list(zip(tables, values, strict=True))):
            return predict(*features)

    return with_tables


def _store_tables(model: onnx.ModelProto, tables: list[Any]) -> None:
    names = [f"table_{index}" for index in range(len(tables))]
    for name, variable in zip(names, tables, strict=True):
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(keras.ops.convert_to_numpy(variable), name)
        )
    retained = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(retained)


def _order_and_name(model: onnx.ModelProto, bundle: Bundle) -> None:
    """Names the dynamic sizes, and puts the predictions before the other outputs."""
    order = {output_name(bundle): -1}
    if bundle.task == TAG:
        order = {name: index - len(OUTPUTS) for index, name in enumerate(OUTPUTS)}
    outputs = sorted(model.graph.output, key=lambda value: order.get(value.name, 0))
    del model.graph.output[:]
    model.graph.output.extend(outputs)
    names = {}
    for each in bundle.preprocessor.inputs:
        names |= dict.fromkeys((each.ids, each.mask), ("batch", each.ids.replace(TOKEN_IDS, "length")))
    if bundle.task == TAG:
        names |= dict.fromkeys((WORD_STARTS, WORD_MASK, CHARACTER_IDS, *OUTPUTS), ("batch", "words"))
    for value in (*model.graph.input, *model.graph.output):
        sizes = names.get(value.name, ("batch", *_attention_sizes(value.name)))
        for dimension, name in zip(value.type.tensor_type.shape.dim, sizes, strict=False):
            if name is not None:
                dimension.dim_param = name


def _attention_sizes(name: str) -> tuple[str | None, ...]:
    """Of "char_attention_a_to_b": layers, heads, char_length_a, char_length_b; of other outputs nothing."""
    granularity, found, sides = name.partition(ATTENTION)
    if not found:
        return ()
    queries, _, keys = sides.partition("_to")
    return None, None, f"{granularity}length{queries}", f"{granularity}length{keys or queries}"


def _add_metadata(model: onnx.ModelProto, bundle: Bundle) -> None:
    """Adds what a caller needs to read the predictions, as JSON values by name."""
    packages = ("tensorflow", "keras", "tf2onnx", "onnx")
    sizes = {
        name: {"max_length": part.max_length, "vocabulary_size": len(part.vocabulary)}
        for name, part in parts_of(bundle.preprocessor).items()
    }
    values = {"labels": bundle.labels}
    if bundle.task == CLASSIFY:
        values |= {"multi_label": bundle.multi_label, "thresholds": bundle.thresholds, **sizes[""]}
    elif bundle.task == TAG:
        values |= {"task": bundle.task, "scheme": bundle.model.scheme, **sizes[""]}
    else:
        threshold = bundle.thresholds[0] if bundle.thresholds else None
        values |= {"task": bundle.task, "target": bundle.model.target, "threshold": threshold}
        values |= {"granularities": sizes}
    if bundle.abstain_below is not None:
        values |= {"abstain_below": bundle.abstain_below}
    values |= {"versions": {name: importlib.metadata.version(name) for name in packages}}
    properties = {
        name: json.dumps(value, ensure_ascii=False, allow_nan=False) for name, value in values.items()
    }
    onnx.helper.set_model_props(model, properties)


def _erfc(context, node, name, arguments) -> None:
    """Writes Erfc, a part of the exact GELU, as 1 - Erf: ONNX has no op for it."""
    (value,), outputs = node.input, node.output
    shapes, dtypes = node.output_shapes, node.output_dtypes
    context.remove_node(node.name)
    one = context.make_const(f"{name}/one", np.array(1, np.float32)).output[0]
    erf = context.make_node("Erf", [value]).output[0]
    context.make_node("Sub", [one, erf], name=name, outputs=outputs, shapes=shapes, dtypes=dtypes)


def with_8_bit_kernels(model: onnx.ModelProto, float_layers: Sequence[str] = ()) -> onnx.ModelProto:
    """The model that `convert` returned, with 8-bit integer weights of its products.

    Products with one of `float_layers` in their names are unchanged. The file has activations in float32: one scale for
    those of a whole batch does not fit the outliers of pretrained encoders, and on processors without VNNI products of
    integers saturate. Newer versions of onnxruntime may round each row of them to 8 bits.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with quiet_logging(), tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        folded = str(Path(scratch, "folded.onnx"))
        # Folds the reshaped attention kernels into weights.
        options.optimized_model_filepath = folded
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        result = onnx.load_model(folded)
    constants = {constant.name: constant for constant in result.graph.initializer}
    converted = {}
    for node in result.graph.node:
        name = node.input[1] if node.op_type in ("MatMul", "Gemm") else None
        if name not in constants or any(layer in node.name for layer in float_layers):
            continue
        kernel = onnx.numpy_helper.to_array(constants[name])
        if kernel.ndim != 2 or kernel.size < FEWEST_8_BIT:
            continue
        if name not in converted:
            # The axis of the outputs; a Gemm may have a transposed kernel.
            outputs = int(not any(each.name == "transB" and each.i for each in node.attribute))
            values, scales = round_to_8_bits(kernel, axis=1 - outputs)
            arrays = {f"{name}_8_bits": values, f"{name}_scales": scales.ravel()}
            result.graph.initializer.extend(
                onnx.numpy_helper.from_array(array, key) for key, array in arrays.items()
            )
            converted[name] = onnx.helper.make_node(
                "DequantizeLinear", [*arrays], [f"{name}_float"], axis=outputs
            )
        node.input[1] = f"{name}_float"
    for node in converted.values():
        result.graph.node.insert(0, node)
    used = {name for node in result.graph.node for name in node.input}
    for name in converted.keys() - used:
        result.graph.initializer.remove(constants[name])
    del result.metadata_props[:]
    result.metadata_props.extend(model.metadata_props)
    return result

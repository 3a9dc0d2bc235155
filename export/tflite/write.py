"""Writes a bundle as a TFLite model with the files that a device needs, after checking the model's predictions."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.checks.exportable import CheckError
from export.device.files import LABELS, VOCABULARY, atomic_device_files, device_files
from export.graph.device_function import features_of, longest_length, sample_rows
from export.graph.model_function import (
    check_attention,
    check_embeds,
    embedding_names,
    ids_function,
    ids_specs,
    input_names,
    output_name,
    vectors_function,
)
from export.names import VECTORS
from export.tflite import metadata
from export.tflite.convert import (
    Quantize,
    convert,
    embedding_row,
    embedding_signatures,
    one_row,
    signature_names,
)
from export.verification.differences import tag_difference
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import TAG
from kmha.errors import InputError
from kmha.features import WORD_MASK

# A file with variable handles has no weights, and its predictions are wrong.
FORBIDDEN = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CUSTOM", "DELEGATE")
TOLERANCE = 1e-4
SAMPLE_TEXTS = 32


def write_tflite(
    bundle: Bundle,
    final: Path,
    lengths: Sequence[int | None],
    quantize: Quantize = "none",
    with_attention: bool = False,
    overwrite: bool = False,
    with_vectors: bool = False,
) -> float:
    """Writes a bundle as a TFLite model, and the files that a device needs next to it; see `convert`.

    Returns:
        The largest difference of a probability, in float32 also of a vector's numbers, on the bundle's sample.

    Raises:
        InputError: A file exists or cannot be written, or int8 has no sample.
        CheckError: The model has an op that is not built in, returns NaN or infinity, or in float32 other predictions.
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
        difference = _check_predictions(content, bundle, lengths, quantize == "none", with_vectors)
        path.write_bytes(content)
    return difference


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
    """Raises CheckError, with the op's name, unless a model has only built-in ops and no variables."""
    for name in op_counts(content):
        if name.split(" ")[0] in FORBIDDEN:
            raise CheckError(f"expected built-in ops without variables, got {name}")


def _check_predictions(content: bytes, bundle: Bundle, lengths, exact: bool, with_vectors: bool) -> float:
    """The largest difference from the bundle of a probability, of an exact model also of a vector's numbers.

    Raises CheckError if an output is NaN or infinite, or an exact (float32) model's differ by more than 1e-4.
    """
    interpreter = new_interpreter(content)
    rows = sample_rows(bundle, SAMPLE_TEXTS)
    largest = 0.0
    for name, length in zip(signature_names(lengths), lengths, strict=True):
        runner: Any = interpreter.get_signature_runner(name)
        features = features_of(bundle, rows, length or longest_length(bundle))
        if bundle.task == TAG:
            largest = max(largest, _tag_difference(runner, bundle, features, not length, exact, name))
            continue
        expected = bundle.probabilities_of_features(features)
        for row in range(len(rows)):
            inputs = one_row(bundle, features, row, trim=not length)
            found = runner(**inputs)[output_name(bundle)][0]
            if not np.isfinite(found).all():
                raise CheckError(
                    f"signature {name}: expected finite numbers, got {found[~np.isfinite(found)][0]}"
                )
            largest = max(largest, float(np.abs(found - expected[row]).max()))
    embedded = embedding_signatures(bundle, lengths) if with_vectors else {}
    for name, (number, length) in embedded.items():
        features = features_of(bundle, rows, length or longest_length(bundle))
        runner = interpreter.get_signature_runner(name)
        difference = _vector_difference(runner, bundle, number, features, trim=not length)
        if not np.isfinite(difference):
            raise CheckError(f"signature {name}: expected finite numbers, got {difference}")
        largest = max(largest, difference) if exact else largest
    if exact and largest > TOLERANCE:
        raise CheckError(
            f"expected the run's predictions within {TOLERANCE:g}, got a difference of {largest:.2g}"
        )
    return largest


def _vector_difference(runner: Any, bundle: Bundle, number: int, features, trim: bool) -> float:
    """The largest difference of a number of the vectors of one text of each row."""
    count = len(next(iter(features.values())))
    rows = [embedding_row(bundle, number, one_row(bundle, features, row, trim)) for row in range(count)]
    expected = vectors_function(bundle, number)(*(features[name] for name in embedding_names(bundle, number)))
    return float(np.abs(np.concatenate([runner(**each)[VECTORS] for each in rows]) - expected.numpy()).max())


def _tag_difference(runner: Any, bundle: Bundle, features, trim: bool, exact: bool, name: str) -> float:
    """The largest difference of one signature's predictions for windows."""
    predict, largest = ids_function(bundle).get_concrete_function(*ids_specs(bundle)), 0.0
    for window in range(len(features[WORD_MASK])):
        inputs = one_row(bundle, features, window, trim)
        expected = {key: each.numpy() for key, each in predict(*map(inputs.get, input_names(bundle))).items()}
        place, found = f"signature {name}: ", runner(**inputs)
        largest = max(largest, tag_difference(found, expected, inputs[WORD_MASK], exact, place))
    return largest


def new_interpreter(content: bytes) -> Any:
    """LiteRT's interpreter of a model; raises InputError if the package is not installed."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise InputError(
            "TFLite: expected the package ai-edge-litert, got none; install kmha[litert]"
        ) from error
    return Interpreter(model_content=content)

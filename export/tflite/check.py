"""What a TFLite model is made of, and whether it answers as its bundle does."""

from collections import Counter
from typing import Any

import numpy as np

from export.checks.exportable import CheckError
from export.graph.device_function import features_of, sample_rows
from export.graph.embedding import VECTORS, embedding_names, vectors_function
from export.graph.model_function import ids_function, ids_specs, input_names, output_name
from export.tflite.convert import (
    embedding_row,
    embedding_signatures,
    longest_length,
    one_row,
    signature_names,
)
from export.verification.differences import tagged_difference
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import TAG
from kmha.errors import InputError
from kmha.features import WORD_MASK

# Handles of variables: a file that has them has no weights, and answers nonsense.
FORBIDDEN = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CUSTOM", "DELEGATE")
TOLERANCE = 1e-4
SAMPLE_TEXTS = 32


def op_counts(content: bytes) -> dict[str, int]:
    """How often each op stands in a model, by name; a custom op as CUSTOM and its own name.

    Args:
        content: The flatbuffer.
    """
    from ai_edge_litert import schema_py_generated as schema

    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if isinstance(code, int)}
    model = schema.Model.GetRootAsModel(content, 0)
    counts: Counter[str] = Counter()
    for graph in (model.Subgraphs(index) for index in range(model.SubgraphsLength())):
        for operator in (graph.Operators(index) for index in range(graph.OperatorsLength())):
            code = model.OperatorCodes(operator.OpcodeIndex())
            # Old files keep the number in a byte, which is full.
            name = names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
            counts[f"CUSTOM {code.CustomCode().decode()}" if name == "CUSTOM" else name] += 1
    return dict(sorted(counts.items()))


def check_ops(content: bytes) -> None:
    """Whether a model consists of built-in ops without variables.

    Raises:
        CheckError: It does not; names the op.
    """
    for name in op_counts(content):
        if name.split(" ")[0] in FORBIDDEN:
            raise CheckError(f"expected built-in ops without variables, got {name}")


def check_answers(content: bytes, bundle: Bundle, lengths, exact: bool, with_vectors: bool = False) -> float:
    """Compares a model's answers to sample texts with its bundle's.

    Args:
        content: The flatbuffer.
        bundle: The bundle it was made of.
        lengths: Tokens each signature takes; None for any number.
        exact: Whether the answers must be the bundle's within 1e-4 (float32).
        with_vectors: Whether it has signatures of vectors, to be compared too.

    Returns:
        The largest difference of a probability; of an exact model of a vector's numbers too.

    Raises:
        CheckError: An answer is not a number, or they differ.
    """
    interpreter = new_interpreter(content)
    rows = sample_rows(bundle, SAMPLE_TEXTS)
    largest = 0.0
    for name, length in zip(signature_names(lengths), lengths, strict=True):
        runner: Any = interpreter.get_signature_runner(name)
        features = features_of(bundle, rows, length or longest_length(bundle))
        if bundle.task == TAG:
            largest = max(largest, _tags_difference(runner, bundle, features, not length, exact, name))
            continue
        expected = bundle.probabilities_of_features(features)
        for row in range(len(rows)):
            inputs = one_row(bundle, features, row, cut=not length)
            found = runner(**inputs)[output_name(bundle)][0]
            if not np.isfinite(found).all():
                raise CheckError(f"signature {name}: expected numbers, got {found[~np.isfinite(found)][0]}")
            largest = max(largest, float(np.abs(found - expected[row]).max()))
    embedded = embedding_signatures(bundle, lengths) if with_vectors else {}
    for name, (number, length) in embedded.items():
        features = features_of(bundle, rows, length or longest_length(bundle))
        apart = _vectors_difference(interpreter.get_signature_runner(name), bundle, number, features, length)
        if not np.isfinite(apart):
            raise CheckError(f"signature {name}: expected numbers, got {apart}")
        largest = max(largest, apart) if exact else largest
    if exact and largest > TOLERANCE:
        raise CheckError(
            f"expected the run's answers within {TOLERANCE:g}, got a difference of {largest:.2g}"
        )
    return largest


def _vectors_difference(runner: Any, bundle: Bundle, number: int, features, length: int | None) -> float:
    """The largest difference of a number of the vectors of one text of each row."""
    inputs = [
        one_row(bundle, features, row, cut=not length) for row in range(len(next(iter(features.values()))))
    ]
    given = [embedding_row(bundle, number, each) for each in inputs]
    wanted = vectors_function(bundle, number)(*(features[name] for name in embedding_names(bundle, number)))
    return float(np.abs(np.concatenate([runner(**each)[VECTORS] for each in given]) - wanted.numpy()).max())


def _tags_difference(runner: Any, bundle: Bundle, features, cut: bool, exact: bool, name: str) -> float:
    """The largest difference of one signature's answers to windows of any number."""
    answer, largest = ids_function(bundle).get_concrete_function(*ids_specs(bundle)), 0.0
    for window in range(len(features[WORD_MASK])):
        inputs = one_row(bundle, features, window, cut)
        expected = {key: each.numpy() for key, each in answer(*map(inputs.get, input_names(bundle))).items()}
        place = f"signature {name}: "
        found = runner(**inputs)
        largest = max(largest, tagged_difference(found, expected, inputs[WORD_MASK], exact, place))
    return largest


def new_interpreter(content: bytes) -> Any:
    """LiteRT's interpreter of a model.

    Raises:
        InputError: The package is not installed.
    """
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise InputError(
            "TFLite: expected the package ai-edge-litert, got none; install kmha[litert]"
        ) from error
    return Interpreter(model_content=content)

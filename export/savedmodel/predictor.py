"""Runs a SavedModel with TensorFlow and tensorflow-text, without the code that trained it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export import names
from export.predictors.artifacts import Row
from kmha.errors import InputError
from kmha.quiet import import_tensorflow

BATCH_ROWS = 32


def open_savedmodel(path: Path | str) -> Any:
    """What `tf.saved_model.load` returns, with tensorflow-text's ops; raises InputError if it cannot be loaded."""
    import_tensorflow()
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)

    try:
        return tf.saved_model.load(str(path))
    except (OSError, ValueError, tf.errors.OpError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: expected a SavedModel, got another folder ({reason})") from error


def load_savedmodel(
    folder: Path | str, signature: str = names.SERVING_DEFAULT
) -> Callable[..., dict[str, Any]]:
    """A signature of an exported version, see `export.savedmodel.endpoints`, as a function to tensors by name.

    It takes the signature's only input, or its inputs by name: of a classifier's serving_default string [B]. Raises
    InputError if there is no SavedModel, or it does not have the signature.
    """
    loaded = open_savedmodel(folder)
    import tensorflow as tf

    function = loaded.signatures.get(signature)
    if function is None:
        raise InputError(f"{folder}: expected a SavedModel with the signature {signature}, got one without")
    specs = function.structured_input_signature[1]

    def predict(*only, **named):
        # `loaded` must outlive the signature, which does not hold the variables itself.
        assert loaded is not None
        # A SavedModel does not retain the order of its inputs.
        if only and (len(only), len(specs)) != (1, 1):
            expected = ", ".join(sorted(specs))
            raise InputError(
                f"{folder}: expected the inputs {expected} of {signature} by name, got values without"
            )
        inputs = dict(zip(specs, only, strict=True)) if only else named
        return function(**{name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()})

    return predict


def read(path: Path) -> "SavedModelPredictor | SavedModelTagger":
    """Loads a version's folder; raises InputError if there is no SavedModel with a text signature."""
    loaded = open_savedmodel(path)
    return (SavedModelTagger if names.PREDICT_WORDS in loaded.signatures else SavedModelPredictor)(
        path, loaded
    )


class SavedModelPredictor:
    """A classifier or matcher that `open_savedmodel` returned; see `export.predictors.artifacts.Predictor`."""

    def __init__(self, path: Path, loaded: Any):
        # `_loaded` must outlive the signature, which does not hold the variables itself.
        self._path, self._loaded = path, loaded
        self._signature, self._names = _text_signature(path, loaded)
        self.num_texts = len(self._names)

    def facts(self) -> dict[str, Any]:
        """See the protocol; the only label of a matcher with one score is "score"."""
        outputs = self._signature(**self.columns([(b"",) * self.num_texts]))
        return _facts(self._path, [b"score"] if names.SCORE in outputs else outputs[names.LABELS].numpy()[0])

    def token_ids(self, texts: Sequence[Row]) -> None:
        """None: the tokenizer is inside the graph."""

    def probabilities(self, texts: Sequence[Row]) -> np.ndarray:
        """See the protocol."""
        parts = [texts[first : first + BATCH_ROWS] for first in range(0, len(texts), BATCH_ROWS)] or [[]]
        return np.concatenate([self._predict(part) for part in parts])

    def _predict(self, rows: Sequence[Row]) -> np.ndarray:
        outputs = self._signature(**self.columns(rows))
        if names.SCORE in outputs:
            return outputs[names.SCORE].numpy()[:, None]
        return outputs[names.PROBABILITIES].numpy()

    def vectors(self, texts: Sequence[Row]) -> dict[str, np.ndarray]:
        """See the protocol."""
        found = {}
        for name in (names.EMBED, names.EMBED_QUERY):
            if name not in self._loaded.signatures:
                continue
            column = [
                row if isinstance(row, bytes) else row[-1 if name == names.EMBED else 0] for row in texts
            ]
            parts = (column[first : first + BATCH_ROWS] for first in range(0, len(column), BATCH_ROWS))
            embed = self._loaded.signatures[name]
            found[name] = np.concatenate(
                [embed(text=_strings(part))[names.VECTORS].numpy() for part in parts]
            )
        return found

    def tensors(self, texts: Sequence[Row]) -> Iterator[np.ndarray]:
        """See the protocol."""
        yield from _tensors(self._signature, self.columns(texts))

    def columns(self, rows: Sequence[Any]) -> dict[str, Any]:
        """The rows as the signature's inputs by name, string [R] each."""
        rows = [(row,) if isinstance(row, bytes) else row for row in rows]
        return {name: _strings([row[index] for row in rows]) for index, name in enumerate(self._names)}


class SavedModelTagger:
    """A tagger that `open_savedmodel` returned; see `export.predictors.artifacts.Predictor`."""

    num_texts = 1
    sentences = True

    def __init__(self, path: Path, loaded: Any):
        self._path, self._loaded = path, loaded

    def facts(self) -> dict[str, Any]:
        """See the protocol."""
        return _facts(self._path, self._labels())

    def token_ids(self, texts: Sequence[Row]) -> None:
        """None: the tokenizer is inside the graph."""

    def probabilities(self, texts: Sequence[Row]) -> np.ndarray:
        """See the protocol."""
        found: list[Any] = [None] * len(texts)
        for name, raw in ((names.SERVING_DEFAULT, True), (names.PREDICT_WORDS, False)):
            rows = [row for row, text in enumerate(texts) if isinstance(text, bytes) == raw]
            # Rows of similar length are batched: all are padded to the longest.
            rows.sort(key=lambda row: len(texts[row]))
            for first in range(0, len(rows), BATCH_ROWS):
                chosen = rows[first : first + BATCH_ROWS]
                outputs = self.run(name, [texts[row] for row in chosen])
                for index, row in enumerate(chosen):
                    found[row] = _of_words(outputs, index)
        return np.concatenate([np.zeros((0, len(self._labels()) + 2), np.float32), *found])

    def tensors(self, texts: Sequence[Row]) -> Iterator[np.ndarray]:
        """See the protocol; all texts raw or all as words. An explanation computes all windows at once."""
        raw = isinstance(texts[0], bytes)
        yield from _tensors(
            self._loaded.signatures[names.EXPLAIN if raw else names.EXPLAIN_WORDS], _inputs(texts)
        )

    def run(self, signature: str, texts: Sequence[Any]) -> dict[str, np.ndarray]:
        """A signature's outputs for raw texts or lists of words, with the number of words of each."""
        inputs = _inputs(texts)
        outputs = self._loaded.signatures[signature](**inputs)
        counts = {names.NUM_WORDS: inputs[names.NUM_WORDS]} if names.NUM_WORDS in inputs else {}
        return {name: np.asarray(value) for name, value in {**outputs, **counts}.items()}

    def _labels(self) -> Sequence[bytes]:
        return self.run(names.SERVING_DEFAULT, [b""])[names.LABELS][0]


def _facts(path: Path, labels: Sequence[bytes]) -> dict[str, Any]:
    decoded = [name.decode() for name in labels]
    return {"quantization": "none", "ops": _op_counts(path), "lengths": None, "labels": decoded}


def _text_signature(path: Path, loaded: Any) -> tuple[Any, tuple[str, ...]]:
    """The signature of texts, and the names of its inputs in the order of a row."""
    signature = loaded.signatures.get(names.SERVING_DEFAULT)
    inputs = {} if signature is None else signature.structured_input_signature[1]
    for columns in ((names.TEXT,), (names.TEXT_A, names.TEXT_B)):
        if set(inputs) == set(columns):
            return signature, columns
    expected = f"whose {names.SERVING_DEFAULT} takes {names.TEXT}, or {names.TEXT_A} and {names.TEXT_B}"
    raise InputError(f"{path}: expected a SavedModel {expected}, got one without")


def _strings(texts: Sequence[bytes]):
    import tensorflow as tf

    return tf.constant(list(texts), tf.string)


def _of_words(outputs: dict[str, np.ndarray], row: int) -> np.ndarray:
    """float32 [n, K + 2] of the words of a row."""
    count = outputs[names.NUM_WORDS][row]
    path, tag_ids = (outputs[name][row, :count, None] for name in (names.PATH_PROBABILITIES, names.TAG_IDS))
    return np.concatenate(
        [outputs[names.PROBABILITIES][row, :count], path, tag_ids.astype(np.float32)], axis=1
    )


def _inputs(texts: Sequence[Any]) -> dict[str, Any]:
    """Raw texts, or lists of words, as a signature's inputs by name."""
    import tensorflow as tf

    if texts and isinstance(texts[0], bytes):
        return {names.TEXT: _strings(texts)}
    lengths = [len(words) for words in texts]
    padded = [[*words, *[b""] * (max(lengths) - len(words))] for words in texts]
    words = tf.reshape(tf.constant(padded, tf.string), [len(texts), max(lengths, default=0)])
    return {names.WORDS: words, names.NUM_WORDS: tf.constant(lengths, tf.int32)}


def _tensors(signature: Any, inputs: Mapping[str, Any]) -> Iterator[np.ndarray]:
    """All tensors of numbers that a signature computes for inputs by name, except those inside loops."""
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    # Tensors can be fetched only from one flat graph.
    flat = convert_variables_to_constants_v2(signature, lower_control_flow=False)
    dtypes = {tf.float32, tf.float16, tf.bfloat16, tf.int32}
    outputs = [
        output
        for operation in flat.graph.get_operations()
        if operation.type not in ("Const", "Placeholder")
        for output in operation.outputs
        if output.dtype in dtypes
    ]
    values = [inputs[tensor.name.partition(":")[0]] for tensor in flat.inputs]
    for value in flat.prune(flat.inputs, outputs)(*values):
        yield tf.cast(value, tf.float32).numpy() if value.dtype == tf.bfloat16 else value.numpy()


def _op_counts(path: Path) -> dict[str, int]:
    """How often each op is in the graphs and functions of a SavedModel's folder, the most frequent first."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved: Any = saved_model_pb2.SavedModel()
    saved.ParseFromString((path / "saved_model.pb").read_bytes())
    counts = Counter()
    for meta in saved.meta_graphs:
        counts.update(node.op for node in meta.graph_def.node)
        for function in meta.graph_def.library.function:
            counts.update(node.op for node in function.node_def)
    return dict(counts.most_common())

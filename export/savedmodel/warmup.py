"""Warm-up requests, which TensorFlow Serving runs when it loads a model: the first request of each kind is slow."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from export import names
from export.graph.model_function import input_names
from export.savedmodel.input_checks import compiled_lengths, compiled_shapes
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import TAG
from kmha.features import MAX_WORDS
from kmha.text.sentence_preprocessor import SentencePreprocessor
from kmha.text.words import Ragged

WARMUP_REQUESTS = Path("assets.extra") / "tf_serving_warmup_requests"
BATCH_SIZES = (1, 8, 32)
OF_IDS = (names.PREDICT_IDS, names.PREDICT_IDS_XLA, names.EMBED_IDS, names.EMBED_QUERY_IDS)

Row = tuple[bytes, ...]


def write_warmup(
    bundle: Bundle, signatures: Mapping[str, Any], folder: Path, compiled_sizes: Sequence[int]
) -> int:
    """Writes requests made of the bundle's sample texts into a SavedModel's folder; returns their number.

    Requests to a compiled signature have the compiled sizes, each at every compiled length. Without sample texts no
    file is written.
    """
    if not bundle.sample:
        return 0
    path = folder / WARMUP_REQUESTS
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with tf.io.TFRecordWriter(str(path)) as writer:
        for request in _requests(bundle, signatures, compiled_sizes):
            writer.write(request)
            count += 1
    return count


def _requests(
    bundle: Bundle, signatures: Mapping[str, Any], compiled_sizes: Sequence[int]
) -> Iterator[bytes]:
    if bundle.task == TAG:
        for name, inputs in sentence_requests(bundle, signatures, BATCH_SIZES, compiled_sizes):
            yield predict_log(name, inputs)
        return
    sample = itertools.cycle(_sample(bundle))
    for name, function in signatures.items():
        if name in (names.RANK, names.RANK_VECTORS):
            yield predict_log(name, _ranking(name, function, next(sample)))
            continue
        is_compiled = name == names.PREDICT_IDS_XLA
        for size in compiled_sizes if is_compiled else BATCH_SIZES:
            rows = list(itertools.islice(sample, size))
            if name == names.CLASSIFY:
                yield classify_log(name, [serialized_example(*row) for row in rows])
            elif name in OF_IDS:
                for lengths in compiled_shapes(bundle.preprocessor.inputs) if is_compiled else [None]:
                    inputs = _ids(bundle, rows, lengths)
                    yield predict_log(name, {key: inputs[key] for key in inputs if key in _specs(function)})
            else:
                yield predict_log(name, _texts(name, function, rows))


def _sample(bundle: Bundle) -> list[Row]:
    """The bundle's sample, a row of texts each, truncated to what the tokenizer reads: requests stay small."""
    texts = bundle.preprocessor
    rows = [(row,) if texts.num_texts == 1 else row for row in bundle.sample]
    return [tuple(text.encode("utf-8", "replace")[: texts.max_bytes] for text in row) for row in rows]


def _ranking(name: str, function: Any, row: Row) -> dict[str, Any]:
    """One candidate only: a batching server refuses more candidates than queries, and would fail to start."""
    if name == names.RANK:
        return {names.QUERY: row[:1], names.CANDIDATES: row[1:]}
    dim = _specs(function)[names.VECTORS].shape[-1]
    return {names.QUERY: row[:1], names.VECTORS: np.full((1, dim), dim**-0.5, np.float32)}


def _ids(bundle: Bundle, rows: Sequence[Row], lengths: list[int] | None) -> dict[str, np.ndarray]:
    texts = bundle.preprocessor
    features = texts.pad(texts.encode(*(tf.constant(column) for column in zip(*rows, strict=True))), lengths)
    return {key: features[key].numpy() for key in input_names(bundle)}


def _texts(name: str, function: Any, rows: Sequence[Row]) -> dict[str, Sequence[bytes]]:
    columns = list(zip(*rows, strict=True))
    if names.TEXT in _specs(function):
        return {names.TEXT: columns[0] if name == names.EMBED_QUERY else columns[-1]}
    return dict(zip((names.TEXT_A, names.TEXT_B), columns, strict=True))


def _specs(function: Any) -> dict[str, Any]:
    """The input specs of a concrete function, by name."""
    return {spec.name: spec for spec in tf.nest.flatten(function.structured_input_signature)}


def sentence_requests(
    bundle: Bundle, signatures: Iterable[str], sizes: Sequence[int], compiled_sizes: Sequence[int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The requests to a tagger's signatures: the name of a signature, and its inputs by name.

    Sentences are truncated to one window: a batching server refuses an explanation with more windows than texts, and
    would fail to start. Requests to a compiled signature have the compiled sizes, each at every compiled length.
    """
    sample = _one_window(bundle.preprocessor, [text.split("\n")[:MAX_WORDS] for text in bundle.sample])
    texts = _texts_of_one_window(bundle.preprocessor, [" ".join(words) for words in sample])
    sentences, texts = itertools.cycle(sample), itertools.cycle(texts or [""])
    for name in signatures:
        if name == names.PREDICT_IDS_XLA:
            lengths = compiled_lengths(bundle.preprocessor.max_length)
            for size, length in itertools.product(compiled_sizes, lengths):
                yield name, _sentence_ids(bundle, list(itertools.islice(sentences, size)), length)
            continue
        for size in sizes:
            if name == names.PREDICT_IDS:
                yield name, _sentence_ids(bundle, list(itertools.islice(sentences, size)))
            elif name in (names.PREDICT_WORDS, names.EXPLAIN_WORDS):
                yield name, _word_columns(list(itertools.islice(sentences, size)))
            else:
                yield name, {names.TEXT: [text.encode() for text in itertools.islice(texts, size)]}


def _windows(
    texts: SentencePreprocessor, sentences: Sequence[Sequence[str]], length: int | None = None
) -> Any:
    flat = [word.encode("utf-8", "replace") for words in sentences for word in words]
    lengths = np.array([len(words) for words in sentences], np.int64)
    return texts.encode(Ragged.from_row_lengths(tf.constant(flat, tf.string), lengths), length)


def _first_windows(sentences) -> np.ndarray:
    """The number of each sentence's first window, from the number of each window's sentence."""
    return np.unique(np.asarray(sentences), return_index=True)[1]


def _one_window(texts: SentencePreprocessor, sentences: list[list[str]]) -> list[list[str]]:
    """The sentences, each truncated to its first window."""
    windows = _windows(texts, sentences).windows
    counts = windows.words.row_lengths().numpy()[_first_windows(windows.sentences)]
    return [words[:count] for words, count in zip(sentences, counts, strict=True)]


def _texts_of_one_window(texts: SentencePreprocessor, raw: list[str]) -> list[str]:
    """The raw texts that fit into one window after word splitting."""
    windows = texts.encode(texts.words(tf.constant(raw, tf.string)).words).windows
    return [text for text, count in zip(raw, np.bincount(windows.sentences), strict=True) if count == 1]


def _word_columns(sentences: Sequence[Sequence[str]]) -> dict[str, Any]:
    width = max(map(len, sentences))
    words = [
        [word.encode("utf-8", "replace") for word in row] + [b""] * (width - len(row)) for row in sentences
    ]
    return {
        names.WORDS: np.array(words, object).reshape(len(sentences), width),
        names.NUM_WORDS: np.array([len(row) for row in sentences], np.int32),
    }


def _sentence_ids(
    bundle: Bundle, sentences: Sequence[Sequence[str]], length: int | None = None
) -> dict[str, Any]:
    """Token ids of the first window of each sentence, and its other inputs; a length fixes T."""
    texts = bundle.preprocessor
    encoded = _windows(texts, sentences, length)
    first = texts.select_windows(encoded, _first_windows(encoded.windows.sentences))
    features = texts.pad(first, (length, None))
    return {name: features[name].numpy() for name in input_names(bundle)}


def predict_log(signature: str, inputs: dict) -> bytes:
    """A serialized PredictionLog that holds a PredictRequest of named arrays or lists.

    The field numbers are those of tensorflow_serving/apis/{prediction_log,predict,model}.proto. All used fields hold
    bytes, so a few lines write them; only clients need the package with the messages.
    """
    tensors = b"".join(
        _field(2, _field(1, name.encode()) + _field(2, tf.make_tensor_proto(value).SerializeToString()))
        for name, value in inputs.items()
    )
    return _field(6, _field(1, _model_spec(signature) + tensors))


def classify_log(signature: str, examples: Sequence[bytes]) -> bytes:
    """A serialized PredictionLog that holds a ClassificationRequest of serialized examples.

    The field numbers are those of tensorflow_serving/apis/{prediction_log,classification,input,model}.proto.
    """
    example_list = _field(1, b"".join(_field(1, example) for example in examples))
    return _field(2, _field(1, _model_spec(signature) + _field(2, example_list)))


def serialized_example(*texts: bytes) -> bytes:
    """A text, or a pair of texts, as the tf.Example that the signature `classify` reads."""
    columns = (names.TEXT,) if len(texts) == 1 else (names.TEXT_A, names.TEXT_B)
    features = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text]))
        for name, text in zip(columns, texts, strict=True)
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def _model_spec(signature: str) -> bytes:
    # The server reads only the signature's name: it runs the requests on the model that it has just loaded.
    return _field(1, _field(3, signature.encode()))


def _field(number: int, value: bytes) -> bytes:
    """A bytes field on the wire: number and wire type, length, value."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])

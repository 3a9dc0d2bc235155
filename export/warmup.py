"""Requests that a server answers by itself before it takes others: the first one of each kind is slow."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from export.served_ids import compiled_lengths
from export.serving import CLASSIFY, PREDICT_IDS, PREDICT_IDS_XLA, TEXT
from kmha.bundle import Bundle
from kmha.features import PADDING_MASK, TOKEN_IDS

WARMUP_REQUESTS = Path("assets.extra") / "tf_serving_warmup_requests"
BATCH_SIZES = (1, 8, 32)


def write_warmup(
    bundle: Bundle, signatures: Sequence[str], folder: Path, compiled_sizes: Sequence[int]
) -> int:
    """Writes requests made of the bundle's sample texts into a SavedModel's folder.

    Args:
        bundle: A bundle.
        signatures: Names of the SavedModel's signatures.
        folder: Of the SavedModel.
        compiled_sizes: Batch sizes that a compiled signature is asked for, each at every length it compiles for.

    Returns:
        How many requests; 0 where the bundle has no texts, and then no file is written.
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


def _requests(bundle: Bundle, signatures: Sequence[str], compiled_sizes: Sequence[int]) -> Iterator[bytes]:
    texts = bundle.preprocessor
    # Cut as tokenizing would: a request need not be megabytes.
    sample = itertools.cycle([text.encode("utf-8", "replace")[: texts.max_bytes] for text in bundle.sample])
    for name in signatures:
        is_compiled = name == PREDICT_IDS_XLA
        for size in compiled_sizes if is_compiled else BATCH_SIZES:
            batch = list(itertools.islice(sample, size))
            if name == CLASSIFY:
                yield classify_log(name, batch)
            elif name in (PREDICT_IDS, PREDICT_IDS_XLA):
                for length in compiled_lengths(texts.max_length) if is_compiled else [None]:
                    features = texts(tf.constant(batch), length)
                    ids = {key: features[key].numpy() for key in (TOKEN_IDS, PADDING_MASK)}
                    yield predict_log(name, ids)
            else:
                yield predict_log(name, {TEXT: batch})


def predict_log(signature: str, inputs: dict) -> bytes:
    """A serialized PredictionLog that holds a PredictRequest of named arrays or lists.

    The field numbers are those of tensorflow_serving/apis/{prediction_log,predict,model}.proto. Every field used is
    one of bytes, so a few lines write them; the package with the messages is wanted by clients only.
    """
    tensors = b"".join(
        _field(2, _field(1, name.encode()) + _field(2, tf.make_tensor_proto(value).SerializeToString()))
        for name, value in inputs.items()
    )
    return _field(6, _field(1, _model_spec(signature) + tensors))


def classify_log(signature: str, texts: Sequence[bytes]) -> bytes:
    """A serialized PredictionLog that holds a ClassificationRequest of examples with a feature "text".

    The field numbers are those of tensorflow_serving/apis/{prediction_log,classification,input,model}.proto.
    """
    examples = b"".join(_field(1, serialized_example(text)) for text in texts)
    example_list = _field(1, examples)
    return _field(2, _field(1, _model_spec(signature) + _field(2, example_list)))


def serialized_example(text: bytes) -> bytes:
    """A text as the tf.Example that the signature `classify` reads."""
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text]))
    return tf.train.Example(features=tf.train.Features(feature={TEXT: feature})).SerializeToString()


def _model_spec(signature: str) -> bytes:
    # Warming up asks for the signature only: the server runs the requests on the model it has just loaded.
    return _field(1, _field(3, signature.encode()))


def _field(number: int, value: bytes) -> bytes:
    """A field of bytes on the wire: number and kind, length, value."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])

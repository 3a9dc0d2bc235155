"""Writes a bundle as the next version of a served SavedModel, with warm-up requests and server settings."""

import contextlib
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from export import names
from export.graph import encode_words, input_names
from export.savedmodel.endpoints import ClassifierEndpoints, MatcherEndpoints
from export.savedmodel.input_checks import compiled_lengths, compiled_shapes
from export.savedmodel.tagger_endpoints import TaggerEndpoints
from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, MATCH, TAG
from kmha.errors import InputError
from kmha.features import MAX_WORDS
from kmha.text.sentence_preprocessor import SentencePreprocessor
from training.io.disk import publishing, staging_folder, writing

logger = logging.getLogger("kmha")

_ENDPOINTS = {CLASSIFY: ClassifierEndpoints, MATCH: MatcherEndpoints, TAG: TaggerEndpoints}
MODELS, BATCHING, MONITORING = "models.config", "batching.config", "monitoring.config"
COMPOSE = "docker-compose.yml"
ALLOWED_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
# Names of servers without batching, and the signatures that need them.
RANKING, EXPLAINING = "ranking", "explaining"
UNBATCHED = {RANKING: "rank", EXPLAINING: "explain"}
XLA_FLAG = "--xla_cpu_compilation_enabled=true"
WARMUP_REQUESTS = Path("assets.extra") / "tf_serving_warmup_requests"
BATCH_SIZES = (1, 8, 32)
OF_IDS = (names.PREDICT_IDS, names.PREDICT_IDS_XLA, names.EMBED_IDS, names.EMBED_QUERY_IDS)
Row = tuple[bytes, ...]


def endpoints(bundle: Bundle, xla: bool = False) -> Any:
    """The endpoints of a classifier, a matcher or a tagger; `xla` adds a signature that XLA compiles."""
    return _ENDPOINTS[bundle.task](bundle, xla)


def next_version(folder: Path) -> int:
    """The smallest integer above every version in the folder, at least 1."""
    found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in found if name.isascii() and name.isdigit()), default=0) + 1


def write_savedmodel(bundle: Bundle, folder: Path, xla: bool = False) -> Path:
    """Writes the next version of a served model and the files that a server needs; returns the version's folder.

    The version is written under a temporary name and renamed: a server that watches the folder never loads an
    incomplete model. Existing settings files are retained; `xla` adds a signature that XLA compiles. Raises
    InputError if the folder cannot be written to.
    """
    final = folder / str(next_version(folder))
    try:
        with writing(final), staging_folder(final) as staging:
            signatures = _save(bundle, staging / final.name, xla)
            explains = names.PREDICT_WORDS in signatures
            unbatched = RANKING if names.RANK in signatures else EXPLAINING if explains else ""
            with publishing(folder):
                _add_server_files(folder, staging, xla, unbatched)
                # Another process may have written this version meanwhile.
                final = (staging / final.name).rename(folder / str(next_version(folder)))
    except tf.errors.OpError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{folder}: cannot write there, {reason}") from error
    return final


def _save(bundle: Bundle, folder: Path, xla: bool) -> dict[str, Any]:
    """Writes a version; returns its signatures by name."""
    module = endpoints(bundle, xla)
    signatures = module.signatures()
    tf.saved_model.save(module, str(folder), signatures=signatures)
    if names.CLASSIFY in signatures:
        # TensorFlow saves every signature for Predict calls. Classify calls need another method name.
        updater = tf.compat.v1.saved_model.signature_def_utils.MethodNameUpdater(str(folder))
        updater.replace_method_name(names.CLASSIFY, tf.compat.v1.saved_model.CLASSIFY_METHOD_NAME)
        updater.save()
        # The checksum of the file before that change; loaders do not need one.
        (folder / "fingerprint.pb").unlink(missing_ok=True)
    if not write_warmup(bundle, signatures, folder, ALLOWED_BATCH_SIZES):
        logger.info(
            "the run has no sample texts: no warm-up requests written, the first requests will be slow"
        )
    return signatures


def _add_server_files(folder: Path, staging: Path, xla: bool, unbatched: str) -> None:
    retained = add_missing(folder, server_files(model_name(folder), xla, unbatched), staging)
    if retained:
        logger.info(f"not changed: {', '.join(retained)}")
    if COMPOSE not in retained:
        return
    path = folder / COMPOSE
    compose = path.read_text("utf-8", "replace")
    if xla and XLA_FLAG not in compose:
        logger.info(f"{path}: add {XLA_FLAG} to the command, the compiled signature needs it")
    if unbatched and f"{unbatched}:" not in compose:
        logger.info(f"{path}: add a server without batching, the signature {UNBATCHED[unbatched]} needs it")


def model_name(folder: Path) -> str:
    """The served name of a folder's model: the folder's name, without characters that a URL or path cannot hold."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", folder.resolve().name).strip("_") or "model"


def server_files(name: str, xla: bool, unbatched: str = "") -> dict[str, str]:
    """The texts by file name.

    `xla` adds the flag that a compiled signature needs. `unbatched` names a second server without batching, one of
    `UNBATCHED`. Ranking takes one query and many candidates, and explaining a tagger's long text returns more windows
    than texts. A batching server refuses both ("0th-dimension size").
    """
    home = f"/models/{name}"
    models = f"      - --model_config_file={home}/{MODELS}\n"
    batching = f"      - --enable_batching=true\n      - --batching_parameters_file={home}/{BATCHING}\n"
    compiled = f"      - {XLA_FLAG}\n" if xla else ""
    second = ""
    if unbatched:
        second = f"  {unbatched}:  # Joins no requests: for {UNBATCHED[unbatched]}.\n"
        second += _service(home, 8510, models + compiled)
    sizes = "\n".join(f"allowed_batch_sizes: {size}" for size in ALLOWED_BATCH_SIZES)
    return {
        MODELS: f"""\
# What is served: the highest version in the folder. Later exports keep this file, so edit it freely.
model_config_list {{
  config {{
    name: "{name}"
    base_path: "{home}"
    model_platform: "tensorflow"
  }}
}}
""",
        BATCHING: f"""\
# How requests are joined. Larger ones than max_batch_size are refused. Later exports keep this file.
max_batch_size {{ value: {ALLOWED_BATCH_SIZES[-1]} }}
batch_timeout_micros {{ value: 1000 }}
max_enqueued_batches {{ value: 100 }}
# A batch is filled up to the next of these sizes; the rows added change no prediction.
{sizes}
# Token ids of different lengths may share a batch; the columns added change no prediction.
pad_variable_length_inputs: true
""",
        MONITORING: """\
# Where Prometheus reads, at the port of REST. Later exports keep this file.
prometheus_config {
  enable: true
  path: "/monitoring/prometheus/metrics"
}
""",
        COMPOSE: f"""\
# docker compose up, in this folder. Later exports keep this file, so edit it freely.
services:
  serving:
{_service(home, 8500, models + batching + compiled)}"""
        + second,
    }


def _service(home: str, port: int, flags: str) -> str:
    """The settings of a server with gRPC at a port and REST at the next one."""
    return f"""\
    # Pin the tag that you have tried.
    image: tensorflow/serving:latest
    restart: unless-stopped
    ports:
      - "{port}:8500"  # gRPC
      - "{port + 1}:8501"  # REST and /monitoring/prometheus/metrics
    volumes:
      - type: bind
        source: .
        target: {home}
        read_only: true
    command:
      - --monitoring_config_file={home}/{MONITORING}
{flags}"""


def add_missing(folder: Path, texts: dict[str, str], staging: Path) -> list[str]:
    """Writes the files that a folder does not have yet, all of them or none; returns the names of the existing ones.

    Files are renamed from a staging folder. Raises OSError if one cannot be written.
    """
    existing = [name for name in texts if (folder / name).exists()]
    with contextlib.ExitStack() as if_failed:
        for name in texts:
            if name not in existing:
                (staging / name).write_text(texts[name], "utf-8")
                (staging / name).rename(folder / name)
                if_failed.callback((folder / name).unlink)
        if_failed.pop_all()
    return existing


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


def _first_windows(sentences) -> np.ndarray:
    """The number of each sentence's first window, from the number of each window's sentence."""
    return np.unique(np.asarray(sentences), return_index=True)[1]


def _one_window(texts: SentencePreprocessor, sentences: list[list[str]]) -> list[list[str]]:
    """The sentences, each truncated to its first window."""
    windows = encode_words(texts, sentences).windows
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
    encoded = encode_words(texts, sentences, length)
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

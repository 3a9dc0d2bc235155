"""Writes a bundle as the next version of a served SavedModel, with warm-up requests and server settings."""

import contextlib
import logging
import re
from pathlib import Path
from typing import Any

import tensorflow as tf

from export.names import CLASSIFY, PREDICT_WORDS, RANK
from export.savedmodel.endpoints import ClassifierEndpoints, MatcherEndpoints
from export.savedmodel.tagger_endpoints import TaggerEndpoints
from export.savedmodel.warmup import write_warmup
from kmha.bundle import manifest
from kmha.bundle.bundle import Bundle
from kmha.errors import InputError
from training.io.disk import atomic_write

logger = logging.getLogger("kmha")
_ENDPOINTS = {
    manifest.CLASSIFY: ClassifierEndpoints,
    manifest.MATCH: MatcherEndpoints,
    manifest.TAG: TaggerEndpoints,
}
MODELS, BATCHING, MONITORING, COMPOSE = (
    "models.config",
    "batching.config",
    "monitoring.config",
    "docker-compose.yml",
)
ALLOWED_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
# Names of servers without batching, and the signatures that need them.
RANKING, EXPLAINING = "ranking", "explaining"
UNBATCHED = {RANKING: "rank", EXPLAINING: "explain"}
XLA_FLAG = "--xla_cpu_compilation_enabled=true"


def endpoints(bundle: Bundle, xla: bool = False) -> Any:
    """The endpoints of a classifier, a matcher or a tagger; `xla` adds a signature that XLA compiles."""
    return _ENDPOINTS[bundle.task](bundle, xla)


def next_version(folder: Path) -> int:
    """The smallest integer above every version in the folder, at least 1."""
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=0) + 1


def write_savedmodel(bundle: Bundle, folder: Path, xla: bool = False) -> Path:
    """Writes the next version of a served model and the files that a server needs; returns the version's folder.

    The version is written under a temporary name and renamed: a server that watches the folder never loads an
    incomplete model. Existing settings files are retained; `xla` adds a signature that XLA compiles. Raises
    InputError if the folder cannot be written to.
    """
    final = folder / str(next_version(folder))
    try:
        # The folder comes first: a new one is removed again after an error.
        with atomic_write(final) as partial:
            signatures = _save(bundle, partial, xla)
            unbatched = RANKING if RANK in signatures else EXPLAINING if PREDICT_WORDS in signatures else ""
            _add_server_files(folder, xla, unbatched)
    except tf.errors.OpError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{folder}: cannot write there, {reason}") from error
    return final


def _save(bundle: Bundle, folder: Path, xla: bool) -> dict[str, Any]:
    """Writes a version; returns its signatures by name."""
    module = endpoints(bundle, xla)
    signatures = module.signatures()
    tf.saved_model.save(module, str(folder), signatures=signatures)
    if CLASSIFY in signatures:
        # TensorFlow saves every signature for Predict calls. Classify calls need another method name.
        updater = tf.compat.v1.saved_model.signature_def_utils.MethodNameUpdater(str(folder))
        updater.replace_method_name(CLASSIFY, tf.compat.v1.saved_model.CLASSIFY_METHOD_NAME)
        updater.save()
        # The checksum of the file before that change; loaders do not need one.
        (folder / "fingerprint.pb").unlink(missing_ok=True)
    if not write_warmup(bundle, signatures, folder, ALLOWED_BATCH_SIZES):
        logger.info(
            "the run has no sample texts: no warm-up requests written, the first requests will be slow"
        )
    return signatures


def _add_server_files(folder: Path, xla: bool, unbatched: str) -> None:
    retained = add_missing(folder, server_files(model_name(folder), xla, unbatched))
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
# A batch is filled up to the next of these sizes; the rows added change no answer.
{sizes}
# Token ids of different lengths may share a batch; the columns added change no answer.
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


def add_missing(folder: Path, texts: dict[str, str]) -> list[str]:
    """Writes the files that a folder does not have yet, all of them or none; returns the names of the existing ones."""
    existing = [name for name in texts if (folder / name).exists()]
    with contextlib.ExitStack() as if_failed:
        for name in texts:
            if name not in existing:
                with atomic_write(folder / name) as partial:
                    partial.write_text(texts[name], "utf-8")
                if_failed.callback((folder / name).unlink)
        if_failed.pop_all()
    return existing

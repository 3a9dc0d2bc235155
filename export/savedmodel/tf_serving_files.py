"""Settings files of a TensorFlow Serving container: model, batching, monitoring and docker-compose."""

import contextlib
import re
from pathlib import Path

from training.io.disk import atomic_write

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


def model_name(folder: Path) -> str:
    """The served name of a folder's model: the folder's name, without characters that a URL or path cannot hold."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", folder.resolve().name).strip("_") or "model"


def server_files(name: str, xla: bool, unbatched: str = "") -> dict[str, str]:
    """The texts by file name.

    Args:
        name: The model's, from `model_name`.
        xla: Whether a signature is compiled; the server needs a flag for it.
        unbatched: Name of a second server without batching, one of `UNBATCHED`; empty: not needed. Ranking takes one
            query and many candidates, and explaining a tagger's long text returns more windows than texts. A batching
            server refuses both ("0th-dimension size").
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
    """Writes the files that a folder does not have yet: all of them, or none.

    Args:
        folder: An existing folder.
        texts: The files' content by name.

    Returns:
        The names of the files that existed before; they are not changed.

    Raises:
        InputError: The folder cannot be written to.
    """
    existing = [name for name in texts if (folder / name).exists()]
    with contextlib.ExitStack() as if_failed:
        for name in texts:
            if name not in existing:
                with atomic_write(folder / name) as partial:
                    partial.write_text(texts[name], "utf-8")
                if_failed.callback((folder / name).unlink)
        if_failed.pop_all()
    return existing

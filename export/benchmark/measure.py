"""Measures models in turns on the same rows, each in its own process."""

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro

from export.benchmark.worker import BUNDLE, IDS, PEERS, TEXTS
from export.predictors.artifacts import Artifact, python_path
from kmha.bundle.manifest import MANIFEST, MODEL, VOCABULARY
from kmha.errors import InputError
from training.cli.bounds import Count, Positive, Range
from training.io.json_subprocess import Crashed, WorkerProcess

logger = logging.getLogger("kmha")

LEAST_ROUNDS, TARGET_ROUNDS = 3, 10
MOST_CALLS = 16
RUN_NAME = "the run itself"
WARM_SECONDS = 2.0


class Job(NamedTuple):
    """What is measured: calls of `batch` rows from texts or from ids."""

    column: str
    batch: int


class Round(NamedTuple):
    """Times of one model in one round: seconds of each call, and processor seconds of all calls."""

    seconds: list[float]
    cpu_seconds: float


@dataclass
class MeasuredModel:
    """A model and its measurements."""

    name: str
    kind: str
    # The `WorkerProcess` that runs it.
    worker: Any
    # What the process reported after loading the model.
    facts: dict[str, Any]
    # Size on disk; None for a model that was built in memory.
    bytes: int | None = None
    rounds: dict[Job, dict[int, Round]] = field(default_factory=dict)
    # Results of `Stopwatch.warm_up`.
    warm: dict[Job, dict[str, float]] = field(default_factory=dict)
    # Resident memory with one row at a time.
    peak_bytes: int | None = None
    # Why the measurement ended early.
    failed: str | None = None

    def supports(self, job: Job, has_ids: bool) -> bool:
        """Whether it can run a job; has_ids: the models have a common length of ids."""
        if self.failed is not None:
            return False
        takes = has_ids if job.column == IDS else self.facts["takes_texts"]
        return takes and (job.batch == 1 or self.facts["batched"])

    def request(self, **request: Any) -> dict[str, Any] | None:
        """The worker's reply; None if its process has ended."""
        if self.failed is not None:
            return None
        try:
            return self.worker.request(**request)
        except Crashed as error:
            self.failed = str(error)
            return None


def jobs(batches: Sequence[int]) -> list[Job]:
    """Jobs of each batch size, from texts and from ids."""
    return [Job(column, batch) for batch in batches for column in (TEXTS, IDS)]


def warm_up(models: Sequence[MeasuredModel], jobs: Sequence[Job], seconds: float, has_ids: bool) -> None:
    """Runs every job of every model before the measurement, for at most about these seconds each."""
    for model in models:
        for job in jobs:
            if model.supports(job, has_ids):
                found = model.request(do="warm_up", column=job.column, batch=job.batch, seconds=seconds)
                model.warm |= {} if found is None else {job: found}


def run_rounds(
    models: Sequence[MeasuredModel],
    jobs: Sequence[Job],
    seconds: float,
    rows: int,
    has_ids: bool,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measures the models in turns after `warm_up`; in a round of a job all make the same calls on the same rows.

    The mean time for each model and job is `seconds`; there are at least three rounds. Returns their number.
    """
    calls = {job: _calls(models, job, seconds) for job in jobs}
    turns = sum(model.supports(job, has_ids) for model in models for job in jobs)
    end, number = clock() + seconds * turns, 0
    while number < LEAST_ROUNDS or clock() < end:
        # The order changes, so that no model always follows the same one.
        shift = number % len(models)
        for job in jobs:
            first = number * calls[job] * job.batch % rows
            for model in (*models[shift:], *models[:shift]):
                if model.supports(job, has_ids):
                    found = model.request(
                        do="round", column=job.column, batch=job.batch, first=first, calls=calls[job]
                    )
                    if found is not None:
                        model.rounds.setdefault(job, {})[number] = Round(**found)
        number += 1
    return number


def _calls(models: Sequence[MeasuredModel], job: Job, seconds: float) -> int:
    """Calls a round, so that the slowest model still has several rounds."""
    slowest = max((model.warm[job]["least_seconds"] for model in models if job in model.warm), default=0)
    return max(1, min(MOST_CALLS, int(seconds / TARGET_ROUNDS / max(slowest, 1e-9))))


@dataclass(frozen=True)
class BenchmarkConfig:
    """Compares the speed of exported models with their run."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder that training.fit wrote."""
    artifacts: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARTIFACT")]
    """SavedModels or folders of their versions, .tflite and .onnx files."""
    texts: Path | None = None
    """Texts for the models: .csv, .tsv or .jsonl, also .gz; default: the sample in the run folder."""
    text_column: str = ""
    """Column of the text; empty: as in training."""
    rows: Annotated[int, Range(at_least=0)] = 256
    """Use this many texts, spread over the file; 0: all."""
    seconds: Positive = 3.0
    """Measure each model for about this time from texts and from ids; the same time again in batches."""
    threads: Count = 1
    """Threads of each model."""
    batch_sizes: tuple[int, ...] = (8, 32)
    """Batch sizes, in addition to one, in the search for the highest throughput."""
    peers: bool = False
    """Also measure encoders of the same sizes with random weights: keras_hub's, and Hugging Face's in PyTorch."""
    out: Path | None = None
    """Write the JSON object to this file too."""


@dataclass(frozen=True)
class ModelFile:
    """A model to load: its name in tables, its kind, its path and its size on disk."""

    name: str
    kind: str
    path: Path
    bytes: int | None


@dataclass(frozen=True)
class Measured:
    """The result of a benchmark."""

    # The loaded models: the run, the artifacts, the peers.
    models: list[MeasuredModel]
    # Reasons why peers were not loaded, by kind.
    skipped: dict[str, str]
    rows: int
    # Tokens of every row of ids; None where the models have no common length.
    ids_length: int | None
    # Of one row at a time, and of batches.
    rounds: tuple[int, int]


def models_to_measure(run: Path, artifacts: Sequence[Artifact]) -> list[ModelFile]:
    """The run and its artifacts."""
    files = [run / name for name in (MODEL, VOCABULARY, MANIFEST)]
    size = sum(file.stat().st_size for file in files if file.is_file())
    exported = [ModelFile(str(each.path), each.format, each.path, each.bytes) for each in artifacts]
    return [ModelFile(RUN_NAME, BUNDLE, run, size), *exported]


def measure_models(
    files: Sequence[ModelFile], texts: Sequence[str] | None, config: BenchmarkConfig
) -> Measured:
    """Loads all models, the run first, and measures them on the texts; None: the run's sample.

    Raises InputError if a model cannot be used or there are no texts, Crashed if the run's own process ended.
    """
    with contextlib.ExitStack() as stack:
        models, skipped = [], {}
        for file in files:
            logger.info(f"loading {file.name}")
            models.append(_load(file, stack, config.threads))
        _check_alive(models[0])
        run = models[0].facts["run"]
        sizes = {**run["encoder"], "window": run["window"], "labels": run["labels"]}
        for kind in PEERS if config.peers else ():
            logger.info(f"building {kind}")
            try:
                file = ModelFile(kind, kind, Path(kind), None)
                models.append(_load(file, stack, config.threads, sizes))
            except InputError as error:
                skipped[kind] = str(error)
        chosen = spread(run["sample"] if texts is None else texts, config.rows)
        if not chosen:
            raise InputError("--texts: expected a file of texts, since the run has no sample, got none")
        ready = [model for model in models if model.failed is None]
        length = common_length([model.facts["lengths"] for model in ready], run["length"])
        _set_rows(models, chosen, length)
        _check_alive(models[0])
        rounds = _measure(models, config, len(chosen), length is not None)
        _check_alive(models[0])
    return Measured(models, skipped, len(chosen), length, rounds)


def _load(
    file: ModelFile, stack: contextlib.ExitStack, threads: int, sizes: dict[str, Any] | None = None
) -> MeasuredModel:
    if sizes is None:
        read_into_cache(file.path)
    worker = stack.enter_context(start_worker(file.kind, str(file.path), threads, sizes))
    model = MeasuredModel(file.name, file.kind, worker, {}, file.bytes)
    try:
        model.facts = worker.listen()
    except Crashed as error:
        model.failed = str(error)
    return model


def start_worker(kind: str, path: str, threads: int, sizes: dict[str, Any] | None = None) -> WorkerProcess:
    """Starts the process of a model; `sizes` are for kinds that build an encoder. See `export.benchmark.worker`."""
    # TensorFlow and OpenMP read their threads from here, the other runtimes from an argument.
    names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
    environment = {"PYTHONPATH": python_path(), "TF_CPP_MIN_LOG_LEVEL": "3"}
    arguments = [kind, path, str(threads), json.dumps(sizes or {}, allow_nan=False)]
    return WorkerProcess(
        [sys.executable, "-m", "export.benchmark.worker", *arguments],
        {**dict.fromkeys(names, str(threads)), **environment},
    )


def read_into_cache(path: Path) -> None:
    """Reads all files at a path once, so that every model is loaded from the system's cache."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with open(file, "rb") as stream:
                while stream.read(1 << 20):
                    pass


def _check_alive(run: MeasuredModel) -> None:
    """Raises Crashed if the run, the reference of all comparisons, has failed."""
    if run.failed is not None:
        raise Crashed(f"{run.name}: {run.failed}")


def spread(texts: Sequence[str], most: int) -> list[str]:
    """At most this many of the texts, evenly spread; 0: all."""
    count = min(most or len(texts), len(texts))
    return [texts[int(place)] for place in np.linspace(0, len(texts) - 1, count).round()]


def common_length(lengths: Sequence[list[int] | None], default: int) -> int | None:
    """The shortest length that all models take from the default on, else the longest below it, or None.

    It is the default if all take any length (None).
    """
    fixed = [set(each) for each in lengths if each is not None]
    common = set.intersection(*fixed) if fixed else {default}
    return min((length for length in common if length >= default), default=max(common, default=None))


def _set_rows(models: Sequence[MeasuredModel], texts: Sequence[str], length: int | None) -> None:
    """Sends the same rows to all models; the run tokenizes them."""
    none = {"token_ids": None, "padding_mask": None}
    encoded = none if length is None else models[0].request(do="encode", texts=texts, length=length)
    for model in models:
        model.request(do="set_rows", texts=texts, **(encoded or none))


def _measure(
    models: Sequence[MeasuredModel], config: BenchmarkConfig, rows: int, has_ids: bool
) -> tuple[int, int]:
    single = jobs([1])
    batched = jobs([size for size in sorted(set(config.batch_sizes)) if size > 1])
    first = _phase("one text at a time", models, single, config.seconds, rows, has_ids)
    for model in models:
        model.peak_bytes = (model.request(do="memory") or {}).get("peak_bytes")
    if not batched:
        return first, 0
    share = config.seconds * len(single) / len(batched)
    return first, _phase("in batches", models, batched, share, rows, has_ids)


def _phase(
    name: str, models: Sequence[MeasuredModel], phase: Sequence[Job], seconds: float, rows: int, has_ids: bool
) -> int:
    turns = sum(model.supports(job, has_ids) for model in models for job in phase)
    logger.info(f"{name}: about {turns * seconds:.0f} s")
    warm_up(models, phase, min(seconds, WARM_SECONDS), has_ids)
    return run_rounds(models, phase, seconds, rows, has_ids)

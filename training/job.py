"""One training job, from settings to a run folder."""

import contextlib
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tomli_w

from kmha.bundle import MANIFEST, Bundle
from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.text.preprocessor import Preprocessor
from kmha.text.vectors import put_vectors, read_vectors
from kmha.text.vocabulary import Vocabulary, learn_vocabulary
from training import baseline
from training.averaging import WeightAverage
from training.buckets import bucket_lengths, computed_share
from training.callbacks import Progress
from training.config import FitConfig, settings
from training.data import Data, describe, load_data
from training.judge import Judge
from training.loop import Loop, epoch_plans
from training.optimizer import AdamW, warmup_then_decay
from training.pipeline import BatchSource, TokenCounts, pad, tokenize_examples
from training.precision import POLICIES, LossScale
from training.replicas import TrainingStep, make_strategy
from training.spool import Spool
from training.tasks.task import Part

CHUNK_ROWS = 4096
CHECKPOINT, RUN_LOG, METRICS, CONFIG = "checkpoint", "epochs.csv", "metrics.json", "config.toml"


def say(message: str) -> None:
    """Progress goes to stderr; stdout is for data."""
    print(message, file=sys.stderr, flush=True)


def fit(config: FitConfig) -> dict[str, Any]:
    """Trains, judges and writes the run folder.

    Args:
        config: All settings.

    Returns:
        What metrics.json holds.

    Raises:
        InputError: Wrong settings or data; nothing is left behind but a checkpoint of an earlier run.
        Stopped: Told to stop; a checkpoint is kept for --resume.
        Diverged: The loss left the numbers.
    """
    with run_folder(config) as folder, tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        started = time.monotonic()
        keras.utils.set_random_seed(config.train.seed)
        data = load_data(config, getattr(config, config.task), Path(scratch))
        for line in describe(data):
            say(line)
        job = _Job(config, data, Path(scratch), folder)
        metrics = job.run()
        metrics["seconds"] = round(time.monotonic() - started, 1)
        job.write(metrics)
    say(f"written to {config.out_folder()}")
    return metrics


@contextlib.contextmanager
def run_folder(config: FitConfig) -> Iterator[Path]:
    """The folder to write into, beside the final one; it takes its place when all has gone well.

    Raises:
        InputError: A run stands there already, or something else does.
    """
    final = config.out_folder()
    beside = final.with_name(final.name + ".partial")
    if final.exists() and not config.overwrite:
        what = "another run" if (final / MANIFEST).exists() else "something else"
        raise InputError(f"--out {final}: wanted a new folder, given one that holds {what}; use --overwrite")
    if final.exists() and not (final / MANIFEST).exists() and (not final.is_dir() or any(final.iterdir())):
        raise InputError(f"--out {final}: --overwrite replaces runs only, and this is none")
    if not config.resume:
        shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {final}: cannot write there, {error.strerror or error}") from error
    try:
        yield beside
    finally:
        if not (beside / MANIFEST).exists() and not (beside / CHECKPOINT).exists():
            shutil.rmtree(beside, ignore_errors=True)
    shutil.rmtree(beside / CHECKPOINT, ignore_errors=True)
    old = final.with_name(final.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        final.rename(old)
    beside.rename(final)
    shutil.rmtree(old, ignore_errors=True)


class _Job:
    """The steps of a fit, in order; holds what later steps need of earlier ones."""

    def __init__(self, config: FitConfig, data: Data, scratch: Path, folder: Path):
        self.config, self.data, self.scratch, self.folder = config, data, scratch, folder
        self.task = data.task
        self.resolved = dataclasses.replace(
            config,
            resume=False,
            overwrite=False,
            data=dataclasses.replace(config.data, label_column=data.columns.label),
            **{config.task: data.task},
        )

    def run(self) -> dict[str, Any]:
        """Trains and judges; returns the metrics."""
        self._check_resumable()
        self.preprocessor = self._preprocessor()
        self._tokenize()
        policy = POLICIES[self.config.train.precision]
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            return self._train_and_judge()
        finally:
            keras.config.set_dtype_policy(before)

    def _check_resumable(self) -> None:
        """A run goes on only under the settings it began with."""
        path = self.folder / CONFIG
        now = tomli_w.dumps(settings(self.resolved))
        if self.config.resume:
            if not path.exists():
                raise InputError(f"--resume: wanted an interrupted run in {self.folder}, given none")
            if path.read_text("utf-8") != now:
                raise InputError(
                    f"--resume: wanted the settings in {path}, given others; start without --resume"
                )
        path.write_text(now, "utf-8")

    def _preprocessor(self) -> Preprocessor:
        text = self.config.text
        if text.vocabulary is not None:
            vocabulary = Vocabulary.read(text.vocabulary)
        else:
            vocabulary = learn_vocabulary(
                _Texts(self.data.train),
                text.tokenization,
                text.vocabulary_size,
                text.min_frequency,
                text.lower_case,
            )
        return Preprocessor(vocabulary, text.tokenization, text.lower_case, text.max_length)

    def _tokenize(self) -> None:
        """Token ids of every set, and what tokenizing met."""
        self.tokens: dict[int, Spool] = {}
        self.token_counts: dict[str, TokenCounts] = {}
        for name, part in self._parts().items():
            key = id(part.examples)
            if key not in self.tokens:
                path = self.scratch / f"tokens-{name}"
                self.tokens[key], counts = tokenize_examples(part.examples, self.preprocessor, path)
                self.token_counts[name] = counts
                say(
                    f"{name} rows: {counts.tokens / max(1, counts.rows):.1f} tokens each,"
                    f" {counts.unknown_tokens / max(1, counts.tokens):.2%} unknown,"
                    f" {counts.truncated_rows:,} truncated, {counts.empty_rows:,} without a token"
                )

    def _parts(self) -> dict[str, Part]:
        parts = {"train": self.data.train, "validation": self.data.validation}
        return parts | ({"test": self.data.test} if self.data.test is not None else {})

    def _source(self, part: Part, weights: np.ndarray | None = None, **options) -> BatchSource:
        targets = self.task.targets(part, self.data.labels)
        weights = np.ones(len(targets), np.float32) if weights is None else weights
        return BatchSource(
            self.tokens[id(part.examples)],
            part.rows,
            targets,
            weights,
            self.preprocessor.padding_id,
            **options,
        )

    def _train_and_judge(self) -> dict[str, Any]:
        config, data, train = self.config, self.data, self.config.train
        strategy = make_strategy(train.strategy)
        jit = train.jit == "on" or (train.jit == "auto" and bool(tf.config.list_logical_devices("GPU")))
        source = self._source(
            data.train,
            self.task.weights(self.task.targets(data.train, data.labels)),
            full_shapes=jit,
            divisor=strategy.num_replicas_in_sync,
        )
        validation = self._source(data.validation)
        every_length = [source.lengths, validation.lengths]
        lengths = bucket_lengths(np.concatenate(every_length), train.buckets)
        plans = epoch_plans(source, lengths, train, 0)
        with strategy.scope():
            self.model = self._model(source)
            judge = Judge(self.model, self.task, data.labels, lengths)
            loop = self._loop(
                source, lengths, lambda: judge.validate(validation, data.validation), strategy, jit
            )
        say(
            f"{self.model.count_params():,} parameters, {len(plans):,} batches an epoch, padded to"
            f" {', '.join(map(str, lengths))}: {computed_share(plans, source.lengths):.2f} times the real tokens"
        )
        progress = loop.run(resume=config.resume)
        return self._judged(judge, validation, progress)

    def _model(self, source: BatchSource):
        """A built model with its n-grams learnt and its word vectors read."""
        section = dataclasses.asdict(self.config.encoder)
        vectors = section.pop("vectors")
        encoder = EncoderConfig(
            vocabulary_size=len(self.preprocessor.vocabulary),
            max_length=self.preprocessor.max_length,
            unknown_id=self.preprocessor.unknown_id,
            **section,
        )
        model = self.task.build(encoder, len(self.data.labels))
        embedding = model.encoder.embedding
        if embedding.ngrams is not None:
            known = embedding.ngrams.learn(_padded_chunks(source))
            orders = ", ".join(
                f"{count:,} of {n}" for n, count in zip(encoder.ngram_orders, known, strict=True)
            )
            say(f"n-grams known: {orders}")
        if vectors is not None:
            vocabulary = self.preprocessor.vocabulary
            found = read_vectors(vectors, vocabulary, encoder.hidden_dim, self.config.text.lower_case)
            put_vectors(embedding.tokens.embeddings, found)
            say(
                f"word vectors found for {len(found):,} of {len(vocabulary):,} tokens ({len(found) / len(vocabulary):.1%})"
            )
        return model

    def _loop(self, source: BatchSource, lengths: list[int], validate, strategy, jit: bool) -> Loop:
        optimizer, train = self.config.optimizer, self.config.train
        weights = [variable.value for variable in self.model.trainable_variables]
        batches = len(epoch_plans(source, lengths, train, 0))
        steps = -(-batches // optimizer.accumulation_steps) * train.epochs
        rate = warmup_then_decay(
            optimizer.learning_rate, steps, round(optimizer.warmup_fraction * steps), optimizer.decay
        )
        step = TrainingStep(
            self.model,
            self.task.loss,
            AdamW(weights, rate, optimizer.weight_decay),
            strategy,
            jit_compile=jit,
            clip_norm=optimizer.clip_norm or None,
            accumulation_steps=optimizer.accumulation_steps,
            loss_scale=LossScale() if train.precision == "float16" else None,
        )
        average = WeightAverage(weights, strategy, optimizer.ema_decay) if optimizer.ema_decay else None
        return Loop(
            model=self.model,
            step=step,
            source=source,
            lengths=lengths,
            validate=validate,
            metric=self.task.metric,
            settings=train,
            average=average,
            checkpoint=self.folder / CHECKPOINT,
            callbacks=self._callbacks(batches),
        )

    def _callbacks(self, batches: int) -> list[keras.callbacks.Callback]:
        callbacks: list[keras.callbacks.Callback] = [
            Progress(batches * self.config.train.epochs, self.task.metric),
            keras.callbacks.CSVLogger(str(self.folder / RUN_LOG), append=self.config.resume),
        ]
        if self.config.tensorboard:
            callbacks.append(keras.callbacks.TensorBoard(str(self.folder / "tensorboard")))
        return callbacks

    def _judged(self, judge: Judge, validation: BatchSource, progress) -> dict[str, Any]:
        data = self.data
        probabilities = judge.probabilities(validation)
        self.decision = self.task.decision(data.validation, data.labels, probabilities)
        metrics: dict[str, Any] = {
            "validation": self.task.scores(data.validation, data.labels, probabilities, self.decision)
        }
        if data.test is not None:
            probabilities = judge.probabilities(self._source(data.test))
        metrics["judged_on"] = data.judged_name
        metrics[data.judged_name] = scores = self.task.scores(
            data.judged, data.labels, probabilities, self.decision, intervals=True
        )
        say(f"{data.judged_name}: {self.task.metric} {scores[self.task.metric]:.4f}")
        if self.config.baseline:
            description, result = self.task.baseline(
                data.train, data.validation, data.judged, data.labels, self.config.train.seed
            )
            metrics["baseline"] = {"description": description, **result}
            say(baseline.compare(scores, result, self.task.metric))
        metrics["best_epoch"] = progress.best_epoch
        metrics["history"] = progress.history
        metrics["data"] = dataclasses.asdict(data.summary)
        metrics["tokens"] = {name: dataclasses.asdict(counts) for name, counts in self.token_counts.items()}
        return metrics

    def write(self, metrics: dict[str, Any]) -> None:
        """Writes the bundle, its settings and its metrics."""
        (self.folder / METRICS).write_text(json.dumps(metrics, ensure_ascii=False, indent=2) + "\n", "utf-8")
        details = {
            "columns": dataclasses.asdict(self.data.columns),
            "data": {
                part: {"name": s.name, "sha256": s.fingerprint()} for part, s in self.data.sources.items()
            },
        }
        bundle = Bundle(
            self.model, self.preprocessor, self.data.labels, self.decision.get("thresholds"), details
        )
        bundle.save(self.folder)


class _Texts:
    """The texts of a part, read from disk each time they are iterated over."""

    def __init__(self, part: Part):
        self.part = part

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self.part.rows), CHUNK_ROWS):
            yield from self.part.examples.read_texts(self.part.rows[first : first + CHUNK_ROWS])


def _padded_chunks(source: BatchSource) -> Iterator[np.ndarray]:
    """Token ids of all rows of a source, int32 [B, T], padded with 0."""
    for first in range(0, len(source.rows), CHUNK_ROWS):
        flat, lengths = source.tokens.gather(source.rows[first : first + CHUNK_ROWS])
        yield pad(flat, lengths, len(lengths), int(lengths.max()), 0)["token_ids"]

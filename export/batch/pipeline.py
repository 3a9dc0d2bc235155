"""The Beam pipeline of batch prediction: reads lines, checks them, runs the model, and writes shards.

It runs on this machine, or on the cluster that Beam's own flags name. Apache Beam has its own environment; see
docs/decisions/005-beam-in-its-own-environment.md.
"""

# Beam is not installed where types are checked; its | adds a step.
# pyright: reportMissingImports=false, reportUnusedExpression=false
import concurrent.futures
import contextlib
import gzip
import io
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import apache_beam as beam
from apache_beam.io.filebasedsource import FileBasedSource
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.ml.inference.base import ModelHandler, RunInference
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState

from export.batch.rows import dead_letter, is_blank, output_line, parse_row, predict, without_mark
from export.batch.shards import ERRORS, SUFFIX, BatchConfig, is_local, with_folder
from kmha.errors import InputError, did_you_mean

Line = tuple[str, int, bytes]
"""File, the position of the line's first byte, the line with its line feed."""
Row = tuple[str, str]
"""Text, and the fields to copy to the output as JSON."""
GOOD, BAD = "answered", "bad"
NAMESPACE = "kmha.batch"
_READ = (CompressionTypes.UNCOMPRESSED, CompressionTypes.GZIP)
_HERE = ("DirectRunner", "FnApiRunner")


class Lines(FileBasedSource):
    """The lines of files with their positions. Plain files are split into ranges, gzipped ones are not."""

    def open_file(self, file_name: str) -> IO[bytes] | gzip.GzipFile:
        """Opens a file, decompressed if its name ends in .gz.

        Beam's own decompression reads a truncated gzip file without an error; rows would be lost.
        """
        compressed = FileSystems.open(file_name, compression_type=CompressionTypes.UNCOMPRESSED)
        return gzip.open(compressed) if is_gzip(file_name) else compressed

    def read_records(self, file_name: str, offset_range_tracker: Any) -> Iterator[Line]:
        """The lines that start inside a range of bytes; raises InputError if the file cannot be read to its end."""
        try:
            yield from self._lines(file_name, offset_range_tracker)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(
                f"{file_name}: expected a readable file, {error or type(error).__name__}"
            ) from error

    def _lines(self, file_name: str, offset_range_tracker: Any) -> Iterator[Line]:
        byte = offset_range_tracker.start_position()
        with self.open_file(file_name) as file:
            if byte:
                # A line that starts before the range belongs to the previous range.
                file.seek(byte - 1)
                byte += len(file.readline()) - 1
            while offset_range_tracker.try_claim(byte):
                line = file.readline()
                if not line:
                    return
                yield file_name, byte, line
                byte += len(line)


class Check(beam.DoFn):
    """Parses lines to rows; the output `BAD` gets lines of the file of bad rows."""

    def __init__(self, text_column: str, keep_text: bool):
        self._arguments = text_column, keep_text
        self._good = Metrics.counter(NAMESPACE, GOOD)
        self._bad = Metrics.counter(NAMESPACE, BAD)

    def process(self, element: Line, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Parses one line; skips blank lines."""
        file, byte, line = element
        if is_blank(line, byte):
            return
        try:
            row = parse_row(without_mark(line, byte), *self._arguments)
        except InputError as error:
            self._bad.inc()
            yield beam.pvalue.TaggedOutput(BAD, dead_letter(file, byte, str(error), line))
        else:
            self._good.inc()
            yield row


class TextHandler(ModelHandler):
    """Predicts with the text signature of a SavedModel, which each worker loads once."""

    def __init__(self, folder: str, batch_rows: int):
        super().__init__(min_batch_size=batch_rows, max_batch_size=batch_rows)
        self._folder = folder

    def load_model(self) -> Any:
        """The signature as a function."""
        from kmha.quiet import import_tensorflow

        import_tensorflow()
        from export.savedmodel.predictor import load_savedmodel

        return load_savedmodel(self._folder)

    def run_inference(self, batch: Sequence[Row], model: Any, inference_args: Any = None) -> list[str]:
        """Rows to lines of the output."""
        found = predict([text for text, _ in batch], model)
        return [output_line(fields, each) for (_, fields), each in zip(batch, found, strict=True)]

    def get_num_bytes(self, batch: Sequence[Row]) -> int:
        """Size of a batch, for Beam's metrics."""
        return sum(len(text) + len(fields) for text, fields in batch)


def is_gzip(file_name: str) -> bool:
    """Whether Beam reads a file as gzip, and so does not split it into ranges."""
    return CompressionTypes.detect_compression_type(file_name) == CompressionTypes.GZIP


def matched_files(pattern: str) -> list[str]:
    """The files that match a pattern, on this machine or in a store that Beam reads; raises InputError for none."""
    try:
        found = [entry.path for entry in FileSystems.match([with_folder(pattern)])[0].metadata_list]
    except Exception as error:  # Each store raises its own classes.
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(
            f"{pattern}: expected files, got an error from the file system ({reason})"
        ) from error
    if not found:
        raise InputError(f"{pattern}: expected files, got a pattern that no file matches")
    if is_local(pattern) and os.path.isdir(pattern):
        raise InputError(f"{pattern}: expected files, got a folder; use a pattern of the files in it")
    for file in found:
        if CompressionTypes.detect_compression_type(file) not in _READ:
            raise InputError(f"{file}: expected plain or gzipped files, got another kind")
    return found


def build(pipeline: beam.Pipeline, batch: BatchConfig) -> None:
    """Adds the steps of a batch to a pipeline."""
    lines = pipeline | "Read" >> beam.io.Read(Lines(with_folder(batch.input)))
    checked = lines | "Check" >> beam.ParDo(Check(batch.text_column, batch.keep_text)).with_outputs(
        BAD, main=GOOD
    )
    answered = (
        checked[GOOD]
        # One worker reads a compressed file; then all workers share its rows.
        | "Spread" >> beam.Reshuffle()
        | "Answer" >> RunInference(TextHandler(batch.model, batch.batch_rows))
    )
    answered | "Write answers" >> beam.io.WriteToText(batch.output, SUFFIX, num_shards=batch.shards)
    checked[BAD] | "Write bad rows" >> beam.io.WriteToText(
        f"{batch.output}{ERRORS}", SUFFIX, skip_if_empty=True
    )


class PipelineFailed(Exception):
    """A pipeline did not finish; the message is one line."""


def runner_options(flags: Sequence[str]) -> PipelineOptions:
    """Beam's flags as options; raises InputError for an unknown flag or a wrong value.

    Runners of clusters may have more flags; for them unknown flags are passed on.
    """
    unknown: list[str] = []
    known: list[str] = []

    def collect(parser: Any) -> None:
        unknown.extend(parser.parse_known_args(list(flags))[1])
        known.extend(name for action in parser._actions for name in action.option_strings)

    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            options = PipelineOptions(list(flags))
            options.get_all_options(
                add_extra_args_fn=collect, current_only=False, retain_unknown_options=True
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        reason = messages.getvalue().strip().splitlines()[-1].split("error: ", 1)[-1]
        raise InputError(f"runner flags: {reason}") from None
    if unknown and is_local_runner(options):
        name = unknown[0].split("=")[0]
        raise InputError(f"runner flags: unknown flag {name}{did_you_mean(name, known)}")
    return options


def is_local_runner(options: PipelineOptions) -> bool:
    """Whether a pipeline runs on this machine."""
    return options.view_as(StandardOptions).runner in (None, *_HERE)


def run_batch(batch: BatchConfig, options: PipelineOptions) -> tuple[int, int] | None:
    """Runs a batch until it finishes; returns the numbers of predictions and bad rows, None if not reported.

    The model is the folder of a SavedModel. Raises InputError if the runner is unknown, or (from the local runner
    only) a file is damaged, PipelineFailed if the pipeline did not finish.
    """
    # Beam's DirectRunner would first try to download another runner, Prism.
    runner = FnApiRunner() if is_local_runner(options) else None
    try:
        pipeline = beam.Pipeline(runner=runner, options=options)
    except (ValueError, ImportError, AttributeError) as error:
        raise InputError(f"runner flags: {_last_line(error)}") from error
    build(pipeline, batch)
    try:
        result = _in_a_thread(lambda: _finished(pipeline))
    except InputError:
        raise
    except Exception as error:  # Any error of a step or a runner, with the tracebacks of all workers.
        raise PipelineFailed(_last_line(error)) from error
    if result.state not in (None, PipelineState.DONE):
        raise PipelineFailed(f"it ended in the state {result.state}")
    return _counts(result)


def _finished(pipeline: beam.Pipeline) -> Any:
    result: Any = pipeline.run()
    result.wait_until_finish()
    return result


def _in_a_thread(work: Callable[[], Any]) -> Any:
    """Runs in a thread, which gets no Ctrl-C: Beam would treat it as the error of a step, or lose it."""
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    # A daemon thread, so that the process can end after Ctrl-C.
    threading.Thread(target=run, daemon=True, name="pipeline").start()
    return outcome.result()


def _counts(result: Any) -> tuple[int, int] | None:
    try:
        found = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))["counters"]
    except (NotImplementedError, AttributeError):
        return None
    counts = {counter.key.metric.name: counter.result for counter in found}
    return counts.get(GOOD, 0), counts.get(BAD, 0)


def _last_line(error: BaseException) -> str:
    """The last line of an error's message, which may contain tracebacks."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__

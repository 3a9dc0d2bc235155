"""Runs the Beam pipeline on this machine, or on the cluster that Beam's own flags name."""

# Beam is not installed where types are checked.
# pyright: reportMissingImports=false
import concurrent.futures
import contextlib
import io
import threading
from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import PipelineState

from export.batch.pipeline import BAD, GOOD, NAMESPACE, Batch, build
from kmha.errors import InputError, did_you_mean

_HERE = ("DirectRunner", "FnApiRunner")


class PipelineFailed(Exception):
    """A pipeline did not finish; the message is one line."""


def runner_options(flags: Sequence[str]) -> PipelineOptions:
    """Beam's flags as options.

    Raises:
        InputError: A flag is unknown or has a wrong value. Runners of clusters may have more flags; for them unknown
            flags are passed on.
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


def run_batch(batch: Batch, options: PipelineOptions) -> tuple[int, int] | None:
    """Runs a batch until it finishes.

    Returns:
        The numbers of predictions and of bad rows, or None where the runner does not report them.

    Raises:
        InputError: The runner is unknown, or (from the local runner only) a file is damaged.
        PipelineFailed: The pipeline did not finish.
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

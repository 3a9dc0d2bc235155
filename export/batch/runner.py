"""Runs the Beam pipeline of a batch where Beam's own flags say, on this machine unless they name a cluster."""

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
    """A pipeline did not come to its end; the message is one line."""


def runner_options(flags: Sequence[str]) -> PipelineOptions:
    """Beam's flags as options.

    Raises:
        InputError: A flag has a wrong value, or nobody knows it. Runners of clusters may know more flags than Beam
            does here; with them an unknown one is passed on.
    """
    unknown: list[str] = []
    flags_known: list[str] = []

    def look(parser: Any) -> None:
        unknown.extend(parser.parse_known_args(list(flags))[1])
        flags_known.extend(name for action in parser._actions for name in action.option_strings)

    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            options = PipelineOptions(list(flags))
            options.get_all_options(add_extra_args_fn=look, current_only=False, retain_unknown_options=True)
    except SystemExit as stop:
        if not stop.code:
            raise
        reason = messages.getvalue().strip().splitlines()[-1].split("error: ", 1)[-1]
        raise InputError(f"runner flags: {reason}") from None
    if unknown and runs_here(options):
        name = unknown[0].split("=")[0]
        raise InputError(f"runner flags: unknown flag {name}{did_you_mean(name, flags_known)}")
    return options


def runs_here(options: PipelineOptions) -> bool:
    """Whether a pipeline runs in this process and those it starts."""
    return options.view_as(StandardOptions).runner in (None, *_HERE)


def run_batch(batch: Batch, options: PipelineOptions) -> tuple[int, int] | None:
    """Runs a batch to its end.

    Returns:
        The numbers of rows answered and of bad rows, or None where the runner does not tell.

    Raises:
        InputError: There is no such runner, or (told so by this machine's runner only) a file is damaged.
        PipelineFailed: The pipeline did not come to its end.
    """
    # Beam's DirectRunner would first try to download another runner, Prism, from the network.
    runner = FnApiRunner() if runs_here(options) else None
    try:
        pipeline = beam.Pipeline(runner=runner, options=options)
    except (ValueError, ImportError, AttributeError) as error:
        raise InputError(f"runner flags: {_last_line(error)}") from error
    build(pipeline, batch)
    try:
        result = _in_a_thread(lambda: _finished(pipeline))
    except InputError:
        raise
    except (
        Exception
    ) as error:  # Whatever a step or a runner raises, with the tracebacks of all its workers inside.
        raise PipelineFailed(_last_line(error)) from error
    if result.state not in (None, PipelineState.DONE):
        raise PipelineFailed(f"it ended in the state {result.state}")
    return _counts(result)


def _finished(pipeline: beam.Pipeline) -> Any:
    result: Any = pipeline.run()
    result.wait_until_finish()
    return result


def _in_a_thread(work: Callable[[], Any]) -> Any:
    """Works where no Ctrl-C arrives: Beam would take it for an error of a step, or lose it."""
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    # A daemon: after Ctrl-C nobody waits for it.
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
    """The point of an error whose message may hold tracebacks: the last line that stands at its edge."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__

"""python -m training.fit [--config FILE.toml] [--data.train FILE] [--data.test FILE] [--out FOLDER] …

Trains a model and writes the run folder: model, vocabulary, settings and metrics. Without data flags it trains on a
sample of Chinese reviews. `--help` lists all settings.
"""  # noqa: D415

import logging
import sys
from collections.abc import Sequence

from kmha.version import package_version
from training.cli.exceptions import CheckpointWriteError, Interrupted, TrainingDiverged, WorkerLost
from training.cli.parser import FAILED, INTERRUPTED, as_started, full_disk, parse, run
from training.config.config import MAIN_FLAGS, FitConfig
from training.io.disk import to_json
from training.runs.run_folder import can_resume, resolve_resume

logger = logging.getLogger("kmha")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    words = sys.argv[1:] if argv is None else argv
    if (
        sys.stderr is not None
        and sys.stderr.isatty()
        and not any(word.startswith("--help") for word in words)
    ):
        # Reading large files and importing TensorFlow take several seconds.
        logger.info(f"kmha {package_version()}: reading settings and data")
    return run(lambda: _fit(resolve_resume(parse(FitConfig, argv, "python -m training.fit", MAIN_FLAGS))))


def _fit(config: FitConfig) -> int:
    from training.job import run as job  # imports NumPy, after the first line is printed

    try:
        metrics = job.fit(config)
    except (Interrupted, KeyboardInterrupt) as stop:
        logger.info(f"stopped by {str(stop) or 'an interrupt'}; {_how_to_continue(config)}")
        return INTERRUPTED
    except (CheckpointWriteError, OSError) as error:
        reason = full_disk(error) if isinstance(error, OSError) else error
        logger.info(f"error: {reason}; {_how_to_continue(config)}")
        return FAILED
    except TrainingDiverged as error:
        logger.info(f"error: training diverged, {error}; {error.hint}")
        return FAILED
    except WorkerLost as error:
        # Without a shared file system only the chief worker has a checkpoint.
        hint = "; run the same command with --resume on all workers to continue" if can_resume(config) else ""
        logger.info(f"error: {error}{hint}")
        return FAILED
    if metrics is None:
        return 0
    logger.info(f"written to {config.out_folder()}")
    if sys.stdout.isatty() and not config.json:
        from training.reporting.verdict import terminal_lines

        print(as_started("\n".join(terminal_lines(config.out_folder(), metrics))))
        return 0
    scores = metrics[metrics["judged_on"]]
    shown = {name: value for name, value in scores.items() if isinstance(value, int | float)}
    base = {name: metrics["baseline"][name] for name in shown if name in metrics.get("baseline", {})}
    line = {"run": str(config.out_folder()), "judged_on": metrics["judged_on"], **shown}
    print(to_json(line | ({"baseline": base} if base else {})))
    return 0


def _how_to_continue(config: FitConfig) -> str:
    if can_resume(config):
        return "run the same command with --resume to continue"
    return "there is no checkpoint yet, run the same command to start over"


if __name__ == "__main__":
    sys.exit(main())

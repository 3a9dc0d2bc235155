"""SIGTERM and Ctrl-C in each stage of a fit: it reports how to continue, and resumes without loss."""

import logging
import signal

import pytest

from tests.command_runs import news_rows, write_csv
from tests.soak.fits import Fit

logger = logging.getLogger("kmha")

pytestmark = pytest.mark.soak

START_OVER = "there is no checkpoint yet, run the same command to start over"
CONTINUE = "run the same command with --resume to continue"
# The output of a fit when the stage starts; there are eight epochs.
BEFORE = {
    "reading": None,
    "cutting texts": " training, ",
    "making the model": "train rows: ",
}
AFTER = {
    "training": None,
    "judging": "\nepoch 8/",
    "the baseline": "\ntest: accuracy ",
    "the report": "\naccuracy: ",
}


def stopped(fit: Fit, number: int) -> str:
    """Sends a signal; checks the last line of the log and returns it."""
    fit.send(number)
    ended = fit.end()
    assert ended.status == 130 and ended.out == "" and "Traceback" not in ended.err, ended.err[-3000:]
    names = ("SIGTERM",) if number == signal.SIGTERM else ("SIGINT", "an interrupt")
    how = CONTINUE if fit.checkpoints else START_OVER
    assert ended.last in [f"stopped by {name}; {how}" for name in names], ended.err[-3000:]
    return ended.last


def test_a_stop_before_training_leaves_no_files(tmp_path):
    train = write_csv(tmp_path / "train.csv", news_rows(3000, seed=1) * 60)
    flags = [f"--data.train={train}", "--no-baseline"]
    signals = signal.SIGTERM, signal.SIGINT, signal.SIGTERM
    for (stage, words), number in zip(BEFORE.items(), signals, strict=True):
        with Fit(tmp_path, flags) as fit:
            if words is None:
                assert fit.wait_for(lambda: list((tmp_path / "temporary").glob("kmha-*/train/texts0")))
            else:
                assert fit.wait_for(lambda words=words, fit=fit: words in fit.log()), fit.log()
            last = stopped(fit, number)
        assert not fit.partial.exists() and not list((tmp_path / "temporary").glob("kmha-*"))
        logger.info(f"{stage}: {last} ")


def test_a_run_stopped_in_every_stage_resumes_and_equals_its_reference(kinds, tmp_path):
    flags = [*kinds.of("classify").flags, "--report"]
    number = signal.SIGTERM
    for stage, words in AFTER.items():
        with Fit(tmp_path, flags) as fit:
            if words is None:
                assert fit.wait_for(lambda fit=fit: fit.checkpoints), fit.log()
            else:
                assert fit.wait_for(lambda words=words, fit=fit: words in f"\n{fit.log()}"), fit.log()
            last = stopped(fit, number)
        assert fit.checkpoints
        logger.info(f"{stage}: {last} ")
        number = signal.SIGINT if number == signal.SIGTERM else signal.SIGTERM
    # The reference has no report, and the resumed run writes none.
    kinds.finish("classify", tmp_path)
    logger.info("equal after all four ")

"""docs/how-to/resume.md: its commands are run; the fits that --resume continues are interrupted in training."""

import re
import signal
from pathlib import Path

import pytest

from tests.command_runs import ROOT, TINY, call, saved_weights
from tests.shown_commands import commands_of, prepare, stages
from tests.soak.test_kills import KILLS, KINDS
from training.engine.loop import Loop
from training.fit import main as fit
from training.runs.run_folder import CHANGEABLE_ON_RESUME

PAGE = "docs/how-to/resume.md"


@pytest.mark.slow
def test_every_command_of_the_page_interrupts_and_resumes_as_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second, third = [stages(line)[0].words[3:] for line in commands_of(PAGE)]
    assert second == [*first, "--resume"] and third[-1] == "--resume-or-begin"
    for arguments in (first, third):
        prepare(arguments)
    run_batch = Loop._batch

    def stopped(self, batch, last):
        run_batch(self, batch, last)
        if self._progress.batches_done == 4:
            signal.raise_signal(signal.SIGTERM)

    for arguments, again in ((first, second), (third, third)):
        monkeypatch.setattr(Loop, "_batch", stopped)
        ended = call(fit, *arguments, *TINY)
        assert ended.status == 130
        # The page has the same messages.
        for line in ended.err.splitlines()[-2:]:
            assert line in (ROOT / PAGE).read_text("utf-8")
        monkeypatch.setattr(Loop, "_batch", run_batch)
        ended = call(fit, *again, *TINY)
        assert ended.status == 0, ended.err
    # Interrupted or not, both trained on the same rows.
    assert saved_weights(Path("runs/news")) == saved_weights(Path("runs/nightly"))


def test_the_page_lists_the_changeable_settings_and_the_soak_cases():
    text = " ".join((ROOT / PAGE).read_text("utf-8").split())
    (named,) = re.findall(r"These settings may change, because .*?: (.*?)\. `--train\.epochs` may not", text)
    flags = {f"--{name.replace('_', '-')}" for name in CHANGEABLE_ON_RESUME}
    assert set(re.findall(r"`(--[\w.-]+)`", named)) == flags
    assert (KILLS, len(KINDS)) == (20, 9) and "twenty random moments of nine kinds of training" in text

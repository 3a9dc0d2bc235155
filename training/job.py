"""One training job, from settings to a run folder. What can be refused is refused before TensorFlow loads."""

import json
import time
from typing import Any

from kmha.quiet import import_tensorflow
from training.checks import check_settings
from training.cli import say
from training.config import FitConfig, task_section
from training.cost import Cost
from training.data import describe, load_data
from training.run_folder import METRICS, check_same_data, run_folder
from training.scratch import named, scratch_folder
from training.teacher_checks import check_same_answers
from training.usual import with_usual_of_task


def fit(config: FitConfig) -> dict[str, Any]:
    """Trains, judges and writes the run folder.

    Args:
        config: All settings.

    Returns:
        What metrics.json holds.

    Raises:
        InputError: Wrong settings or data; nothing is left behind but the checkpoint of an earlier run.
        Stopped: Told to stop; a checkpoint is kept for --resume.
        Diverged: The loss left the numbers.
        Unwritten: A checkpoint could not be written; those before it stand.
    """
    config = with_usual_of_task(config)
    check_settings(config)
    with run_folder(config) as folder, scratch_folder(folder) as scratch:
        started, cost = time.monotonic(), Cost()
        with cost.of("data"), named(scratch):
            data = load_data(config, task_section(config), scratch)
        check_same_data(folder, data.origins, config.resume)
        check_same_answers(config, data.task, data.labels, data.origins["train"]["name"])
        for line in describe(data):
            say(line)
        import_tensorflow()
        from training.learner import learn

        learnt = learn(config, data, scratch, folder, cost)
        metrics = {**learnt.metrics, "seconds": round(time.monotonic() - started, 1)}
        (folder / METRICS).write_text(json.dumps(metrics, ensure_ascii=False, indent=2) + "\n", "utf-8")
        learnt.bundle.save(folder)
        if config.report:
            from training.reporting.making import rerun
            from training.reporting.of_fit import report_fit

            report_fit(config, data, learnt, metrics, folder, rerun(config))
    say(f"written to {config.out_folder()}")
    return metrics

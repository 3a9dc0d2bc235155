"""One training job, from settings to a run folder. What can be refused is refused before TensorFlow loads."""

import contextlib
import json
import time
from typing import Any

from kmha.quiet import import_tensorflow
from training.cli.exceptions import Dismissed
from training.cli.parser import say
from training.config.config import FitConfig, task_section
from training.config.defaults import with_usual_of_task
from training.config.validation import check_same_answers, check_settings
from training.data.load import describe, load_data
from training.distributed.coordinator import Crew
from training.engine.consistency import check_same_rows, check_same_settings
from training.io.scratch_folder import named, scratch_folder
from training.job.join_cluster import joined, own_settings, place
from training.runs.run_folder import METRICS, check_same_data
from training.runtime.malloc_tuning import keep_freed_memory
from training.runtime.resource_usage import Cost


def fit(config: FitConfig) -> dict[str, Any] | None:
    """Trains, judges and writes the run folder; with other workers, if TF_CONFIG names them.

    Args:
        config: All settings.

    Returns:
        What metrics.json holds; None on a worker that is not the chief, which leaves when the run is written.

    Raises:
        InputError: Wrong settings or data; nothing is left behind but the checkpoint of an earlier run.
        Stopped: Told to stop; a checkpoint is kept for --resume.
        Diverged: The loss left the numbers.
        Unwritten: A checkpoint could not be written; those before it stand.
        WorkerLost: Another worker is gone.
    """
    config = with_usual_of_task(config)
    with joined(config) as crew:
        check_settings(config)
        if crew.count > 1:
            check_same_settings(crew, config, len(crew.strategy.extended.worker_devices))
        config = own_settings(config, crew)
        metrics = None
        with contextlib.suppress(Dismissed):
            metrics = _fit(config, crew)
        # Nobody leaves before the run is in its place: then all leave with the same status.
        crew.once("end", lambda: None)
    return metrics


def _fit(config: FitConfig, crew: Crew) -> dict[str, Any]:
    with place(config, crew) as folder, scratch_folder(folder) as scratch:
        started, cost = time.monotonic(), Cost()
        with cost.of("data"), named(scratch):
            data = load_data(config, task_section(config), scratch)
        check_same_data(folder, data.origins, config.resume)
        check_same_answers(config, data.task, data.labels, data.origins["train"]["name"])
        if crew.count > 1:
            check_same_rows(crew, data)
        for line in describe(data):
            say(line)

        def start() -> None:
            from training.runtime.cpu_sharding import cores, split_cores, wanted_shares

            keep_freed_memory()
            alone = crew.count == 1
            split_cores(wanted_shares(config, data.task, len(data.train.rows), cores()) if alone else 1)

        import_tensorflow(start)
        from training.job.train_and_evaluate import learn

        learnt = learn(config, data, scratch, folder, cost, crew=crew)
        metrics = {**learnt.metrics, "seconds": round(time.monotonic() - started, 1)}
        (folder / METRICS).write_text(json.dumps(metrics, ensure_ascii=False, indent=2) + "\n", "utf-8")
        learnt.bundle.save(folder)
        if config.report:
            from training.job.fit_report import report_fit
            from training.reporting.reproducibility import rerun

            report_fit(config, data, learnt, metrics, folder, rerun(config))
    say(f"written to {config.out_folder()}")
    return metrics

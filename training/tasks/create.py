"""Creates the task of a run, from its settings or from its bundle."""

from typing import Any

from training.tasks.classify import ClassifyTask
from training.tasks.masked_lm import MaskedLmTask
from training.tasks.match.task import MatchTask
from training.tasks.protocol import Task
from training.tasks.settings import TaskSettings
from training.tasks.tag.task import TagTask

TASKS = {"classify": ClassifyTask, "match": MatchTask, "tag": TagTask, "masked-lm": MaskedLmTask}


def make_task(kind: str, settings: TaskSettings) -> Task:
    """The task that --task names, with its settings."""
    return TASKS[kind](**vars(settings))


def task_from_bundle(bundle: Any) -> Task:
    """The task of a trained bundle, to read and to score rows."""
    return TASKS[bundle.task].from_bundle(bundle)

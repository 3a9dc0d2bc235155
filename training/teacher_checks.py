"""What can be known to be wrong with a teacher before TensorFlow is loaded, and what is noted of it."""

from pathlib import Path
from typing import Any

from kmha.errors import InputError
from kmha.manifest import A_MODEL, KINDS, MANIFEST, MATCH, read_manifest, sha256
from training.config import DistillSection, FitConfig
from training.tasks.task import Task

# Of each task, a model in the words of what it must have in common with its student.
_KIND_WORDS = {
    "multi_label": lambda value: f"{'several labels' if value else 'one label'} a row",
    "target": lambda value: f"a {value} target",
    "scheme": lambda value: f"tags spelt {value}" if value != "none" else "tags that spell no spans",
}
_SHOWN_LABELS = 12


def check_teacher(config: FitConfig) -> None:
    """Refuses what is no run of the same task, settings that need a teacher where there is none, and the reverse.

    Raises:
        InputError: Names the flag.
    """
    distill = config.distill
    if distill.teacher is None:
        for flag, given in (
            ("hidden-states", distill.hidden_states),
            ("attention", distill.attention),
            ("texts", distill.texts),
            ("cache", distill.cache),
        ):
            if given:
                raise InputError(f"--distill.{flag}: wanted --distill.teacher beside it, given none")
        return
    try:
        task = read_manifest(distill.teacher)["task"]
        if task != config.task:
            raise InputError(f"wanted {A_MODEL[config.task]} for --task {config.task}, given {A_MODEL[task]}")
    except InputError as error:
        raise InputError(f"--distill.teacher {distill.teacher}: {error}") from error
    if config.task == MATCH and config.match.loss == "contrastive":
        raise InputError(
            "--match.loss: wanted one that scores each pair by itself beside --distill.teacher, given contrastive"
        )
    if distill.cache is not None and distill.cache.exists() and not distill.cache.is_dir():
        raise InputError(f"--distill.cache {distill.cache}: wanted a folder, given a file")


def check_same_answers(config: FitConfig, task: Task, labels: list[str], origin: str) -> None:
    """Refuses a teacher that answers with other labels than the rows have.

    Args:
        config: All settings.
        task: Settled by the rows.
        labels: Names of the outputs that will be learnt.
        origin: Where they come from, for messages.

    Raises:
        InputError: Names the flag and the labels of both.
    """
    run = config.distill.teacher
    if run is None:
        return
    manifest = read_manifest(run)
    kind = KINDS[config.task]
    wanted = {"multi_label": task.several_labels}.get(kind, getattr(task, kind, None))
    if manifest[kind] != wanted:
        words = _KIND_WORDS[kind]
        raise InputError(
            f"--distill.teacher {run}: wanted a model of {words(wanted)} as in {origin}, given one of"
            f" {words(manifest[kind])}"
        )
    if set(manifest["labels"]) != set(labels):
        raise InputError(
            f"--distill.teacher {run}: wanted a model of the labels of {origin},"
            f" {_differences(labels, manifest['labels'])}"
        )


def _differences(wanted: list[str], given: list[str]) -> str:
    """Both lists; where they are long, what only one of them has."""
    if max(len(wanted), len(given)) > _SHOWN_LABELS:
        lists = (_few(sorted(set(one) - set(other))) for one, other in ((wanted, given), (given, wanted)))
        return "given one that lacks {} and has {}".format(*lists)
    return f"{', '.join(wanted)}, given {', '.join(given)}"


def _few(names: list[str]) -> str:
    return (
        ", ".join(names[:_SHOWN_LABELS]) + ", …" * (len(names) > _SHOWN_LABELS) if names else "nothing else"
    )


def teacher_origins(distill: DistillSection) -> dict[str, dict[str, Any]]:
    """What a run notes of its teacher and of the texts without labels: {"name", "sha256"} of each."""
    files = {
        "texts": (distill.texts, distill.texts),
        # It holds the hashes of all others.
        "teacher": (distill.teacher, (distill.teacher or Path()) / MANIFEST),
    }
    return {
        name: {"name": str(shown), "sha256": sha256(file)}
        for name, (shown, file) in files.items()
        if shown is not None and file is not None
    }

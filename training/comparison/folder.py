"""The folder of a comparison: what is finished stays there, so that the same command goes on after a stop."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from training.cli.config_diff import differences
from training.io.atomic_write import atomic_write
from training.runs.run_folder import CHANGEABLE_ON_RESUME, has_checkpoint, lock_folder

SETTINGS, TRAININGS = "settings.json", "trainings"
FIGURES, TABLE, PICTURE = "compare.json", "table.md", "compare.png"


class Workplace:
    """Results of trainings, and unfinished ones, in a folder; `opened` makes it."""

    def __init__(self, folder: Path):
        self.folder = folder

    def kept(self, name: str, rate: float) -> dict[str, Any] | None:
        """What was kept of a candidate's training with a rate; None: nothing yet."""
        path = self._path(name, rate, ".json")
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    def keep(self, name: str, rate: float, result: dict[str, Any]) -> None:
        """Keeps the result of a training, JSON values; its checkpoint is no longer needed."""
        with atomic_write(self._path(name, rate, ".json"), overwrite=True, flag="--out") as beside:
            beside.write_text(json.dumps(result, ensure_ascii=False), "utf-8")
        shutil.rmtree(self._path(name, rate), ignore_errors=True)

    def training(self, name: str, rate: float) -> tuple[Path, bool]:
        """The folder of an unfinished training, and whether there is a checkpoint in it to go on from."""
        folder = self._path(name, rate)
        folder.mkdir(parents=True, exist_ok=True)
        return folder, has_checkpoint(folder)

    def _path(self, name: str, rate: float, ending: str = "") -> Path:
        return self.folder / TRAININGS / f"{name}.rate-{rate:g}{ending}"


def check_place(folder: Path) -> None:
    """Raises InputError where something else than a comparison stands."""
    if not folder.exists() or (folder / SETTINGS).is_file():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        what = "a folder that holds something else than a comparison" if folder.is_dir() else "a file"
        raise InputError(f"--out {folder}: expected a new folder, or that of a comparison, got {what}")


@contextlib.contextmanager
def opened(folder: Path, settings: dict[str, Any], overwrite: bool) -> Iterator[Workplace]:
    """The folder of a comparison, new or begun before with the same settings; no other process writes into it.

    Args:
        folder: Made where it does not exist.
        settings: Nested plain values that all results rest on.
        overwrite: Whether what was begun before is thrown away.

    Raises:
        InputError: It was begun with other settings, something else stands there, or nobody can write there.
    """
    check_place(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot write there, {error.strerror or error}") from error
    with lock_folder(folder, folder, "comparison"):
        path = folder / SETTINGS
        if overwrite:
            for name in (FIGURES, TABLE, PICTURE, SETTINGS):
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / TRAININGS, ignore_errors=True)
        if path.exists():
            began, now = json.loads(path.read_text("utf-8")), json.loads(json.dumps(settings))
            if found := differences(began, now, CHANGEABLE_ON_RESUME):
                raise InputError(
                    f"--out {folder}: expected the settings that the comparison there began with, {found};"
                    " --overwrite starts anew"
                )
        path.write_text(json.dumps(settings, ensure_ascii=False, indent=2) + "\n", "utf-8")
        yield Workplace(folder)

"""The folder of a comparison; it has the results of finished trainings, so that the same command resumes it."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from kmha.input_files import read_json
from training.config.config import differences
from training.io.disk import atomic_write, to_json
from training.runs.run_folder import CHANGEABLE_ON_RESUME, has_checkpoint, lock_folder

SETTINGS, TRAININGS = "settings.json", "trainings"
FIGURES, TABLE, PICTURE = "compare.json", "table.md", "compare.png"


class ComparisonFolder:
    """Finished and unfinished trainings in a folder; see `open_folder`."""

    def __init__(self, folder: Path):
        self.folder = folder

    def result(self, name: str, rate: float) -> dict[str, Any] | None:
        """The saved result of a candidate with a learning rate; None if it is not finished."""
        path = self._path(name, rate, ".json")
        return read_json(path) if path.exists() else None

    def save(self, name: str, rate: float, result: dict[str, Any]) -> None:
        """Saves the result of a training, JSON values, and removes its checkpoint."""
        with atomic_write(self._path(name, rate, ".json"), overwrite=True, flag="--out") as partial:
            partial.write_text(to_json(result), "utf-8")
        shutil.rmtree(self._path(name, rate), ignore_errors=True)

    def training(self, name: str, rate: float) -> tuple[Path, bool]:
        """The folder of an unfinished training, and whether it has a checkpoint."""
        folder = self._path(name, rate)
        folder.mkdir(parents=True, exist_ok=True)
        return folder, has_checkpoint(folder)

    def _path(self, name: str, rate: float, ending: str = "") -> Path:
        return self.folder / TRAININGS / f"{name}.rate-{rate:g}{ending}"


def check_out_folder(folder: Path) -> None:
    """Raises InputError if the folder has other content than a comparison."""
    if not folder.exists() or (folder / SETTINGS).is_file():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        what = "a folder with other content" if folder.is_dir() else "a file"
        raise InputError(f"--out {folder}: expected a new folder, or that of a comparison, got {what}")


@contextlib.contextmanager
def open_folder(folder: Path, settings: dict[str, Any], overwrite: bool) -> Iterator[ComparisonFolder]:
    """Opens and locks the folder of a comparison; InputError for other settings or content, or if not writable."""
    check_out_folder(folder)
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
            now = json.loads(json.dumps(settings, allow_nan=False))
            if found := differences(read_json(path), now, CHANGEABLE_ON_RESUME):
                raise InputError(
                    f"--out {folder}: expected the settings of the comparison in it, {found};"
                    " --overwrite starts again"
                )
        path.write_text(json.dumps(settings, ensure_ascii=False, indent=2, allow_nan=False) + "\n", "utf-8")
        yield ComparisonFolder(folder)

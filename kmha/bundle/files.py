"""Writes and reads the files of a bundle. Reading validates everything: a run folder may come from anywhere."""

import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from kmha.bundle.manifest import (
    CLASSIFY,
    MASKED_LM,
    MATCH,
    MODEL,
    SAMPLE,
    TAG,
    vocabulary_file,
    write_manifest,
)
from kmha.errors import InputError
from kmha.models.classifier import TextClassifier
from kmha.models.masked_lm import MaskedLanguageModel
from kmha.models.matcher import TextMatcher
from kmha.models.tagger import SequenceTagger
from kmha.text.pair_preprocessor import PairPreprocessor
from kmha.text.preprocessor import Preprocessor
from kmha.text.sentence_preprocessor import SentencePreprocessor
from kmha.text.vocabulary import Vocabulary

MODELS = {
    CLASSIFY: TextClassifier,
    MATCH: TextMatcher,
    TAG: SequenceTagger,
    MASKED_LM: MaskedLanguageModel,
}
AnyPreprocessor = Preprocessor | PairPreprocessor | SentencePreprocessor


def task_of(model: Any) -> str:
    """The task of a model, by its class."""
    return next(task for task, kind in MODELS.items() if isinstance(model, kind))


def parts_of(preprocessor: AnyPreprocessor) -> dict[str, Preprocessor]:
    """The preprocessors of single texts by granularity; only pairs have granularities, otherwise the key is ""."""
    if isinstance(preprocessor, Preprocessor):
        return {"": preprocessor}
    if isinstance(preprocessor, SentencePreprocessor):
        return {"": preprocessor.part}
    return dict(zip(preprocessor.granularities, preprocessor.parts, strict=True))


def write_files(
    folder: Path,
    model: Any,
    preprocessor: AnyPreprocessor,
    sample: Sequence[str | tuple[str, str]],
    values: dict[str, Any],
) -> None:
    """Writes model.keras, the vocabularies, sample.jsonl and bundle.json with their hashes.

    Args:
        folder: Created if it does not exist.
        model: A built model.
        preprocessor: Its preprocessor.
        sample: Texts or pairs of texts.
        values: More JSON values for bundle.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / MODEL)
    files = [MODEL]
    for index, (granularity, part) in enumerate(parts_of(preprocessor).items()):
        files.append(vocabulary_file(index, granularity))
        part.vocabulary.write(folder / files[-1])
    (folder / SAMPLE).unlink(missing_ok=True)
    if sample:
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in sample)
        (folder / SAMPLE).write_text(lines, "utf-8")
        files.append(SAMPLE)
    packages = ("tensorflow", "keras", "tensorflow-text")
    values = {
        **values,
        "task": task_of(model),
        "text": preprocessor.get_config(),
        "versions": {name: importlib.metadata.version(name) for name in packages},
    }
    write_manifest(folder, values, files)


def read_preprocessor(folder: Path, manifest: dict[str, Any]) -> AnyPreprocessor:
    """Reads the preprocessor of a run folder after `check_files`.

    Raises:
        InputError: A vocabulary or a setting is invalid.
        TypeError: A setting has an unknown name or a wrong type.
    """
    text = dict(manifest["text"])
    if manifest["task"] in (CLASSIFY, MASKED_LM):
        return Preprocessor(Vocabulary.read(folder / vocabulary_file(0)), **text)
    if manifest["task"] == TAG:
        sentences = {name: text.pop(name) for name in ("split", "characters") if name in text}
        part = Preprocessor(Vocabulary.read(folder / vocabulary_file(0)), **text)
        return SentencePreprocessor(part, **sentences)
    parts = {}
    for index, (granularity, settings) in enumerate(text.items()):
        # The file name contains the granularity: it must not leave the folder.
        name = vocabulary_file(index, granularity)
        if name not in manifest["files"]:
            raise InputError(f"files must contain the SHA-256 of {name}, got none")
        parts[granularity] = Preprocessor(Vocabulary.read(folder / name), **settings)
    return PairPreprocessor(parts)


def read_sample(path: Path, num_texts: int) -> list[Any]:
    """Reads the sample: texts, or pairs if `num_texts` is 2; raises InputError if the file is damaged."""
    expected = "a JSON string" if num_texts == 1 else "a JSON list of two strings"
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
    except ValueError as error:
        raise InputError(f"{path}: expected {expected} a line, {error}") from error
    if num_texts == 1 and all(isinstance(row, str) for row in rows):
        return rows
    pairs = (isinstance(row, list) and len(row) == 2 and all(isinstance(t, str) for t in row) for row in rows)
    if num_texts == 2 and all(pairs):
        return [tuple(row) for row in rows]
    raise InputError(f"{path}: expected {expected} a line, got something else")


def read_model(path: Path, task: str) -> Any:
    """Loads the model of a task; raises InputError if the file is damaged or contains code or a different model."""
    kind = MODELS[task]
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    # Keras raises errors of many types for damaged files and for files with code.
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: expected a saved {kind.__name__}, {reason}") from error
    if not isinstance(model, kind):
        raise InputError(f"{path}: expected a saved {kind.__name__}, got {type(model).__name__}")
    return model

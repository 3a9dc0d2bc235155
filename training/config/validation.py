"""Checks of the settings before any row is read."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from kmha.bundle.manifest import (
    CLASSIFY,
    MANIFEST,
    MASKED_LM,
    MATCH,
    MODEL_NAMES,
    TAG,
    TASK_ENTRY,
    read_manifest,
    sha256,
)
from kmha.config import MAX_HASHED_ID, EncoderConfig
from kmha.errors import InputError, format_names, require_package
from kmha.features import MIN_WINDOW_LENGTH
from kmha.pretrained.checkpoint import Checkpoint
from kmha.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from training.config.config import DistillSection, FitConfig, given_task_section, task_section
from training.config.defaults import encoder_config, resolve_config
from training.runtime.memory_estimate import available_bytes, check_model_memory
from training.tasks.match.rows import LABEL, TEXT_A, TEXT_B
from training.tasks.protocol import Task
from training.tasks.settings import BM25, NONE, TEXT

# Describes a teacher by the manifest entry in which it must agree with the student.
_KIND_WORDS = {
    "multi_label": lambda value: f"{'several labels' if value else 'one label'} a row",
    "target": lambda value: f"a {value} target",
    "scheme": lambda value: f"tags spelt {value}" if value != "none" else "tags that spell no spans",
}
_SHOWN_LABELS = 10


def check_teacher(config: FitConfig) -> None:
    """Checks the settings that depend on a teacher, and that it is a run of the same task; raises InputError."""
    distill = config.distill
    if distill.teacher is None:
        for flag, given in (
            ("hidden-states", distill.hidden_states),
            ("attention", distill.attention),
            ("texts", distill.texts),
            ("cache", distill.cache),
        ):
            if given:
                raise InputError(f"--distill.{flag}: expected --distill.teacher with it, got none")
        return
    try:
        task = read_manifest(distill.teacher)["task"]
        if task != config.task:
            raise InputError(
                f"expected {MODEL_NAMES[config.task]} for --task {config.task}, got {MODEL_NAMES[task]}"
            )
    except InputError as error:
        raise InputError(f"--distill.teacher {distill.teacher}: {error}") from error
    if config.task == MATCH and config.match.loss == "contrastive":
        raise InputError(
            "--match.loss: expected one that scores each pair by itself with --distill.teacher, got contrastive"
        )
    if distill.cache is not None and distill.cache.exists() and not distill.cache.is_dir():
        raise InputError(f"--distill.cache {distill.cache}: expected a folder, got a file")


def check_teacher_labels(config: FitConfig, task: Task, labels: list[str], origin: str) -> None:
    """Checks that the teacher has the labels of the student, read from `origin`; the InputError names both."""
    run = config.distill.teacher
    if run is None:
        return
    manifest = read_manifest(run)
    kind = TASK_ENTRY[config.task]
    expected = {"multi_label": task.traits.is_multi_label}.get(kind, getattr(task, kind, None))
    if manifest[kind] != expected:
        words = _KIND_WORDS[kind]
        raise InputError(
            f"--distill.teacher {run}: expected a model of {words(expected)} as in {origin}, got one of"
            f" {words(manifest[kind])}"
        )
    if set(manifest["labels"]) != set(labels):
        raise InputError(
            f"--distill.teacher {run}: expected a model of the labels of {origin},"
            f" {_differences(labels, manifest['labels'])}"
        )


def _differences(expected: list[str], given: list[str]) -> str:
    """Both lists; if they are long, only their differences."""
    if max(len(expected), len(given)) > _SHOWN_LABELS:
        pairs = ((expected, given), (given, expected))
        lists = (format_names(sorted(set(one) - set(other)), "nothing else") for one, other in pairs)
        return "got one that lacks {} and has {}".format(*lists)
    return f"{format_names(expected)}, got {format_names(given)}"


def allows_few_labels(config: FitConfig) -> bool:
    """Whether the settings allow the stages of few labels; with "auto" the number of rows decides too."""
    if not given_task_section(config).allow_few_labels:
        return False
    if not config.encoder.pretrained or config.distill.teacher is not None:
        return False
    if config.fewshot.mode == "auto":
        # Settings of fine-tuning, which few labels do without.
        return not config.train.epochs and config.optimizer.learning_rate is None
    return config.fewshot.mode != "off"


def teacher_origins(distill: DistillSection, texts: Path | None = None) -> dict[str, dict[str, Any]]:
    """Returns {"name", "sha256"} of the teacher and of the unlabeled texts, to save in the run."""
    files = {
        "texts": (texts, texts),
        # The manifest contains the hashes of all other files.
        "teacher": (distill.teacher, (distill.teacher or Path()) / MANIFEST),
    }
    return {
        name: {"name": str(shown), "sha256": sha256(file)}
        for name, (shown, file) in files.items()
        if shown is not None and file is not None
    }


def check_settings(config: FitConfig) -> None:
    """Checks the settings of training and the files of the model; raises InputError, which names the flag."""
    config = resolve_config(config)
    if not config.data.label_separator:
        raise InputError("--data.label-separator: expected a character or more, got none")
    _check_columns(config)
    _check_task(config)
    if config.task == CLASSIFY:
        config.classify.check_windows(config.text.longest)
    _check_sections(config)
    if config.tensorboard:
        require_package("tensorboard", "--tensorboard", "tensorboard")
    check_teacher(config)
    if config.fewshot.mode in ("probe", "contrastive") and not allows_few_labels(config):
        raise InputError(
            "--fewshot: expected auto or off, except for --task classify, and match with its default model and loss,"
            f" with --encoder.pretrained and without --distill.teacher, got {config.fewshot.mode}"
        )
    if config.fewshot.texts is not None:
        if config.fewshot.mode == "probe" or config.task != CLASSIFY or not allows_few_labels(config):
            raise InputError(
                "--fewshot.texts: expected --task classify with --encoder.pretrained and --fewshot contrastive, or auto"
                " without settings that turn it off (--train.epochs, --optimizer.learning-rate, --distill.teacher),"
                f" got --task {config.task}, --fewshot {config.fewshot.mode}"
            )
    if config.text.vocabulary is not None and len(tokenizations(config)) > 1:
        raise InputError(
            "--text.vocabulary: expected none with several --match.granularities, each of which learns its own, got"
            f" {config.text.vocabulary}"
        )
    if config.text.prune and config.text.vocabulary is None and not config.encoder.pretrained:
        raise InputError("--text.prune: expected --text.vocabulary or --encoder.pretrained with it, got none")
    # A vocabulary that is not trained yet is assumed to have its maximum size.
    given, checkpoint = config.text.vocabulary, config.checkpoint
    known = checkpoint.vocabulary if checkpoint else None if given is None else Vocabulary.read(given)
    size = config.text.vocabulary_size if known is None else len(known)
    if size <= len(SPECIAL_TOKENS) and known is None:
        raise InputError(f"--text.vocabulary-size: expected more than {len(SPECIAL_TOKENS)}, got {size}")
    try:
        encoder = encoder_config(config, size, unknown_id=1)
    except InputError as error:
        raise InputError(_with_flags(str(error))) from None
    # The weights alone, which may be on another device than the host later. The vocabulary may turn out to be small.
    least = encoder if known is not None else dataclasses.replace(encoder, vocabulary_size=1)
    check_model_memory([least], available_bytes(), copies=1)
    if config.encoder.linear and config.task != "tag" and size >= MAX_HASHED_ID:
        raise InputError(f"--text.vocabulary-size must be below {MAX_HASHED_ID} with n-grams, got {size}")
    if getattr(task_section(config), "form", None) == "joint" and encoder.positions == "rotary":
        raise InputError(
            "--encoder.positions: expected learned, sinusoidal or none for the joint form, got rotary"
        )
    if checkpoint is not None:
        _check_checkpoint_settings(config, encoder, checkpoint)
    vectors = config.encoder.vectors
    if vectors is not None and not vectors.is_file():
        given_kind = "a folder" if vectors.is_dir() else "no such file"
        raise InputError(f"--encoder.vectors {vectors}: expected a file of word vectors, got {given_kind}")


def _check_sections(config: FitConfig) -> None:
    """Checks that the settings of other tasks are the defaults."""
    for task in TASK_ENTRY:
        section = getattr(config, task.replace("-", "_"))
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if task != config.task and value != field.default:
                flag = f"--{task}.{field.name}".replace("_", "-")
                raise InputError(f"{flag}: expected --task {task} with it, got --task {config.task}")


def _check_checkpoint_settings(config: FitConfig, encoder: EncoderConfig, checkpoint: Checkpoint) -> None:
    """Checks the settings that a checkpoint does not support."""
    if len(tokenizations(config)) > 1:
        raise InputError("--match.granularities: expected one with --encoder.pretrained, got several")
    longest, positions = task_section(config).encoder(encoder).max_length, checkpoint.config.max_length
    if checkpoint.config.positions == "learned" and longest > positions:
        raise InputError(
            f"--text.max-length: expected room for both texts in the {positions} positions of --encoder.pretrained,"
            f" got {config.text.longest}, {longest} for both"
        )


def _check_task(config: FitConfig) -> None:
    given, defaults = config.data.sample, "pos" if config.task == TAG else "reviews"
    if config.data.train is None and not config.data.tfds and given not in ("auto", defaults):
        raise InputError(f"--data.sample: expected {defaults} for --task {config.task}, got {given}")
    if config.task == MATCH:
        if config.data.train is None and not config.data.tfds:
            raise InputError(
                "--data.train: expected pairs of texts for --task match (the sample has none), got none"
            )
        if config.match.hard_negatives not in (NONE, BM25):
            _check_miner(Path(config.match.hard_negatives))
        return
    if config.task == TAG and config.tag.context_width and config.tag.context_width % 2 == 0:
        raise InputError(
            f"--tag.context-width: expected an odd number, or 0 for none, got {config.tag.context_width}"
        )
    if config.task == TAG and config.text.longest < MIN_WINDOW_LENGTH:
        raise InputError(
            f"--text.max-length: expected {MIN_WINDOW_LENGTH} or more for sentences, got {config.text.longest}"
        )
    if config.task == MASKED_LM and config.data.label_column:
        raise InputError(
            f"--data.label-column: expected none for --task masked-lm, got {config.data.label_column}"
        )
    for flag, name in (
        ("text-b-column", config.data.text_b_column),
        ("query-column", config.data.query_column),
    ):
        if name:
            raise InputError(f"--data.{flag}: expected --task match with it, got --task {config.task}")


def _check_miner(run: Path) -> None:
    """Checks that the run is a matcher; its form is checked when the model is loaded."""
    try:
        task = read_manifest(run)["task"]
        if task != MATCH:
            raise InputError(f"expected a matcher of the bi form, got {MODEL_NAMES[task]}")
    except InputError as error:
        raise InputError(f"--match.hard-negatives {run}: {error}") from error


def tokenizations(config: FitConfig) -> tuple[str, ...]:
    """Returns the tokenizations that the task uses."""
    return task_section(config).tokenizations(config.text.tokenization or "wordpiece")


def _check_columns(config: FitConfig) -> None:
    """Checks that columns are distinct; the first text of a pair may also be its query."""
    defaults = {
        CLASSIFY: {"text_column": TEXT},
        MATCH: {"text_column": TEXT_A, "text_b_column": TEXT_B, "label_column": LABEL},
        TAG: {},
        MASKED_LM: {"text_column": TEXT},
    }
    named: dict[str, str] = {}
    for flag in ("text_column", "text_b_column", "label_column"):
        name = getattr(config.data, flag) or defaults[config.task].get(flag, "")
        shown = f"--data.{flag.replace('_', '-')}"
        if name and name in named:
            raise InputError(f"{shown}: expected another column than {named[name]}, got {name!r} twice")
        named[name] = shown
    query = config.data.query_column
    if query and named.get(query, "--data.text-column") != "--data.text-column":
        raise InputError(
            f"--data.query-column: expected another column than {named[query]}, got {query!r} twice"
        )


def _with_flags(message: str) -> str:
    """Replaces the field names in a message of EncoderConfig by flags."""
    flags = {f.name: f"--encoder.{f.name.replace('_', '-')}" for f in dataclasses.fields(EncoderConfig)}
    flags |= {name: f"--text.{name.replace('_', '-')}" for name in ("vocabulary_size", "max_length")}
    # Names that are also common words are unchanged.
    known = [name for name in flags if "_" in name or name == "dropout"]
    return re.sub(rf"\b({'|'.join(known)})\b", lambda found: flags[found[0]], message)

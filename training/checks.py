"""What can be known to be wrong with settings before any row is read."""

import dataclasses
import re
from pathlib import Path

from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.manifest import A_MODEL, CLASSIFY, MASKED_LM, MATCH, TAG, read_manifest
from kmha.pretrained.checkpoint import Checkpoint
from kmha.text.sentence_limits import SHORTEST
from kmha.text.special_tokens import SPECIAL_TOKENS
from kmha.text.vocabulary import Vocabulary
from training.config import FitConfig, task_section
from training.encoder_shape import checkpoint_of, encoder_config
from training.ranges import check_ranges
from training.tasks.classify import TEXT
from training.tasks.classify_windows import check_windows
from training.tasks.match_settings import BM25, NONE
from training.tasks.pair_rows import LABEL, TEXT_A, TEXT_B
from training.teacher_checks import check_teacher
from training.usual import with_usual_of_task


def check_settings(config: FitConfig) -> None:
    """Checks the settings of a fit, each alone and against each other, and the files they name for the model.

    Raises:
        InputError: A setting is out of its range or contradicts another, or a file is not what it must be;
            the message names the flag.
    """
    check_ranges(config)
    config = with_usual_of_task(config)
    if not config.data.label_separator:
        raise InputError("--data.label-separator: wanted a character or more, given none")
    _check_columns(config)
    _check_task(config)
    if config.task == CLASSIFY:
        check_windows(config.classify, config.text.max_length)
    check_teacher(config)
    if config.text.vocabulary is not None and len(tokenizations(config)) > 1:
        raise InputError(
            "--text.vocabulary: wanted none beside several --match.granularities, each of which learns its own, given"
            f" {config.text.vocabulary}"
        )
    if config.text.prune and config.text.vocabulary is None and not config.encoder.pretrained:
        raise InputError(
            "--text.prune: wanted --text.vocabulary or --encoder.pretrained beside it, given none"
        )
    # The largest vocabulary that may be learnt stands for the one that will be.
    given, checkpoint = config.text.vocabulary, checkpoint_of(config)
    known = checkpoint.vocabulary if checkpoint else None if given is None else Vocabulary.read(given)
    size = config.text.vocabulary_size if known is None else len(known)
    if size <= len(SPECIAL_TOKENS) and known is None:
        raise InputError(f"--text.vocabulary-size: wanted more than {len(SPECIAL_TOKENS)}, given {size}")
    try:
        encoder = encoder_config(config, size, unknown_id=1)
    except InputError as error:
        raise InputError(_with_flags(str(error))) from None
    if config.task == "match" and config.match.form == "joint" and encoder.positions == "rotary":
        raise InputError(
            "--encoder.positions: wanted learned, sinusoidal or none for the joint form, given rotary"
        )
    if checkpoint is not None:
        _check_beside_checkpoint(config, encoder, checkpoint)
    vectors = config.encoder.vectors
    if vectors is not None and not vectors.is_file():
        given_kind = "a folder" if vectors.is_dir() else "no such file"
        raise InputError(f"--encoder.vectors {vectors}: wanted a file of word vectors, given {given_kind}")


def _check_beside_checkpoint(config: FitConfig, encoder: EncoderConfig, checkpoint: Checkpoint) -> None:
    """Refuses what an encoder that starts from a checkpoint cannot do."""
    if len(tokenizations(config)) > 1:
        raise InputError("--match.granularities: wanted one beside --encoder.pretrained, given several")
    longest, positions = task_section(config).encoder(encoder).max_length, checkpoint.config.max_length
    if checkpoint.config.positions == "learned" and longest > positions:
        raise InputError(
            f"--text.max-length: wanted room for both texts in the {positions} positions of --encoder.pretrained,"
            f" given {config.text.max_length}, {longest} for both"
        )


def _check_task(config: FitConfig) -> None:
    """Refuses data settings that the task has no use for, and those it lacks."""
    given, usual = config.data.sample, "pos" if config.task == TAG else "reviews"
    if config.data.train is None and not config.data.tfds and given not in ("auto", usual):
        raise InputError(f"--data.sample: wanted {usual} for --task {config.task}, given {given}")
    if config.task == MATCH:
        if config.data.train is None and not config.data.tfds:
            raise InputError(
                "--data.train: wanted pairs of texts for --task match (the sample has none), given none"
            )
        if config.match.hard_negatives not in (NONE, BM25):
            _check_miner(Path(config.match.hard_negatives))
        return
    if config.task == TAG and config.tag.context_width and config.tag.context_width % 2 == 0:
        raise InputError(
            f"--tag.context-width: wanted an odd number, or 0 for none, given {config.tag.context_width}"
        )
    if config.task == TAG and config.text.max_length < SHORTEST:
        raise InputError(
            f"--text.max-length: wanted {SHORTEST} or more for sentences, given {config.text.max_length}"
        )
    if config.task == MASKED_LM and config.data.label_column:
        raise InputError(
            f"--data.label-column: wanted none for --task masked-lm, given {config.data.label_column}"
        )
    for flag, name in (
        ("text-b-column", config.data.text_b_column),
        ("query-column", config.data.query_column),
    ):
        if name:
            raise InputError(f"--data.{flag}: wanted --task match beside it, given --task {config.task}")


def _check_miner(run: Path) -> None:
    """Refuses what is no run of a matcher; of which form it is, only the model knows."""
    try:
        task = read_manifest(run)["task"]
        if task != MATCH:
            raise InputError(f"wanted a matcher of the bi form, given {A_MODEL[task]}")
    except InputError as error:
        raise InputError(f"--match.hard-negatives {run}: {error}") from error


def tokenizations(config: FitConfig) -> tuple[str, ...]:
    """The ways in which the task of the settings cuts texts."""
    return task_section(config).tokenizations(config.text.tokenization or "wordpiece")


def _check_columns(config: FitConfig) -> None:
    """Refuses a column that is named for two purposes; but a first text may be the name of its query."""
    usual = {
        CLASSIFY: {"text_column": TEXT},
        MATCH: {"text_column": TEXT_A, "text_b_column": TEXT_B, "label_column": LABEL},
        TAG: {},
        MASKED_LM: {"text_column": TEXT},
    }
    named: dict[str, str] = {}
    for flag in ("text_column", "text_b_column", "label_column"):
        name = getattr(config.data, flag) or usual[config.task].get(flag, "")
        shown = f"--data.{flag.replace('_', '-')}"
        if name and name in named:
            raise InputError(f"{shown}: wanted another column than {named[name]}, given {name!r} twice")
        named[name] = shown
    query = config.data.query_column
    if query and named.get(query, "--data.text-column") != "--data.text-column":
        raise InputError(
            f"--data.query-column: wanted another column than {named[query]}, given {query!r} twice"
        )


def _with_flags(message: str) -> str:
    """An EncoderConfig's message with the names of flags in place of its fields'."""
    flags = {f.name: f"--encoder.{f.name.replace('_', '-')}" for f in dataclasses.fields(EncoderConfig)}
    flags |= {name: f"--text.{name.replace('_', '-')}" for name in ("vocabulary_size", "max_length")}
    # Names that are also plain words stay as they are.
    known = [name for name in flags if "_" in name or name == "dropout"]
    return re.sub(rf"\b({'|'.join(known)})\b", lambda found: flags[found[0]], message)

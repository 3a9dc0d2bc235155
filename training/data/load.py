"""Reads, checks and splits the data of a training run."""

import collections
import dataclasses
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kmha.errors import InputError, format_names
from training.config.config import FitConfig, sample_name
from training.config.validation import allows_few_labels, teacher_origins
from training.data.near_copies import MAX_BYTES, count_near_copies, near_copy_groups
from training.data.sources import Source, find_sources, read_examples, read_unlabeled, unseen, without_copies
from training.data.split import DataSummary, Large, held_out_fraction, split, with_fewer_validation_rows
from training.io.disk import require_disk_space, unchanged, unpacked_bytes
from training.io.examples import Columns, ExampleSet, Subset
from training.tasks.protocol import Task

# With fewer rows for each label, on average, a contrastive stage is better than fine-tuning with held-out rows; see
# docs/decisions/016-few-labels.md.
FEW_ROWS_OF_A_LABEL = 100
# With more rows or more outputs in all, the heads of all folds would take longer than fine-tuning.
MOST_ROWS, MOST_OUTPUTS = 5_000, 500_000
# Share of the training rows from which on near copies of a text stay together; see docs/decisions/020-near-copies.md.
MANY_NEAR_COPIES = 0.1
# Texts without labels: the encoder reads all of them once for each fold.
MOST_TEXTS = 2_000


@dataclasses.dataclass(frozen=True)
class Data:
    """The parts of the data and their metadata."""

    task: Task
    columns: Columns
    labels: list[str]
    train: Subset
    validation: Subset
    test: Subset | None
    summary: DataSummary
    origins: dict[str, dict[str, Any]]  # part to {"name", "sha256" (None if not a single file)}
    groups: np.ndarray  # equal for training rows that stay in one fold, uint64 [R]
    texts: Subset | None = None  # unlabeled texts for distillation or few labels
    has_few_labels: bool = False  # without a validation file, the validation rows are then the training rows

    @property
    def parts(self) -> dict[str, Subset]:
        """The existing parts by name."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test, "texts": self.texts}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def evaluated(self) -> Subset:
        """The test rows, or the validation rows if there is no test set."""
        return self.validation if self.test is None else self.test

    @property
    def is_cross_validated(self) -> bool:
        """Whether the validation rows are the training rows."""
        return self.validation is self.train

    @property
    def holds_out_validation(self) -> bool:
        """Whether the validation rows are other rows of the training file."""
        return self.validation.examples is self.train.examples and not self.is_cross_validated

    @property
    def evaluated_name(self) -> str:
        """Name of the part in `evaluated`."""
        return "validation" if self.test is None else "test"


def load_data(
    config: FitConfig, task: Task, folder: Path, in_memory: Mapping[str, Source] | None = None
) -> Data:
    """Reads, checks and splits the rows, and writes the examples to a folder; raises InputError for invalid data."""
    sources = find_sources(config.data, sample_name(config), in_memory)
    columns = Columns(
        config.data.text_column,
        config.data.label_column,
        config.data.label_separator,
        text_b=config.data.text_b_column,
        query=config.data.query_column,
    )
    task, columns = task.resolve_columns(sources["train"].columns, columns)
    for source in sources.values():
        # Check the columns of all files before reading the first one.
        source.check(columns)
    require_disk_space(
        folder,
        unpacked_bytes(s.file for s in sources.values() if s.file is not None),
        "the texts of all rows",
    )
    # The recorded SHA-256 must match the rows that were read.
    with unchanged(*(source.file for source in sources.values())):
        origins = {part: {"name": s.name, "sha256": s.fingerprint()} for part, s in sources.items()}
        sets = {part: read_examples(source, task, columns, folder / part) for part, source in sources.items()}
    train_set = sets["train"]
    if task.masking is None and task.traits.num_texts == 1 and train_set.empty_texts == len(train_set):
        raise InputError(
            f"{train_set.place(0)}: expected texts, got white space alone in this and all other rows"
        )
    task = task.resolve_from_data(sets)
    few = has_few_labels(config, task, sets)
    if few:
        task = task.for_few_labels()
    near_copies = None
    if task.traits.is_text_and_label and (few or "validation" not in sets):
        near_copies = find_near_copies(train_set)
    parts = split(
        sets["train"],
        sets.get("validation"),
        sets.get("test"),
        validation_fraction=0.0
        if few
        else held_out_fraction(config.data.validation_fraction, len(sets["train"]), config.data.large_rows),
        seed=config.train.seed,
        multi_label=task.traits.is_multi_label,
        classes=task.traits.has_classes,
        whole_queries=task.traits.keeps_queries_together,
        near_copies=near_copies,
        # Validation rows held out of positive rows alone cannot rank models.
        # Texts for masked language modeling have no labels.
        one_label=task.masking is not None or (task.traits.makes_negatives and "validation" in sets),
        single_rows=few,
    )
    if "validation" in sets:
        parts = with_fewer_validation_rows(parts, Large(config.data.large_rows, config.train.seed))
    train = Subset(sets["train"], parts.train_rows)
    summary, groups = parts.summary, row_groups(task, train)
    if near_copies is not None and (not few or has_enough_groups(train, near_copies[train.rows])):
        groups = near_copies[train.rows]
        used = parts.train_rows if few else np.union1d(parts.train_rows, parts.validation_rows)
        near = count_near_copies(near_copies[used], train_set.digests[used])
        summary = dataclasses.replace(summary, near_copies=near)
    if few:
        check_few_labels(task, train, groups, sources["train"].name)
    if few and "validation" not in sets:
        validation = train
    else:
        _check_validation(summary, sources["train"].name)
        validation = Subset(sets.get("validation", sets["train"]), parts.validation_rows)
    test = Subset(sets["test"], parts.test_rows) if "test" in sets else None
    texts, path = None, config.distill.texts or config.fewshot.texts
    with unchanged(path):
        if path is not None:
            unlabeled = read_unlabeled(path, config.task, columns, folder / "texts", config.data.form)
            rows = unseen(unlabeled, [validation] if test is None else [validation, test])
            texts = Subset(unlabeled, rows)
            if config.fewshot.texts is not None:
                texts = _select_texts(texts, train, path, config.train.seed)
        origins |= teacher_origins(config.distill, path)
    return Data(
        task=task,
        columns=columns,
        labels=task.output_names(parts.labels, train),
        train=train,
        validation=validation,
        test=test,
        summary=summary,
        origins=origins,
        texts=texts,
        groups=groups,
        has_few_labels=few,
    )


def has_few_labels(config: FitConfig, task: Task, sets: Mapping[str, ExampleSet]) -> bool:
    """Whether there are too few rows to hold some out, so that a model with a pretrained encoder is cross-validated."""
    rows, labels = len(sets["train"]), len(sets["train"].label_names)
    most = min(MOST_ROWS, config.data.large_rows, MOST_OUTPUTS // max(1, labels))
    limit = f"{most:,} training rows or fewer"
    fits = rows <= most
    if config.fewshot.mode == "auto":
        limit += f", under {FEW_ROWS_OF_A_LABEL} a label"
        fits &= rows < FEW_ROWS_OF_A_LABEL * labels
    few = allows_few_labels(config)
    if few and not task.allow_few_labels:
        if config.fewshot.mode != "auto":
            raise InputError(
                f"--fewshot: expected auto or off for graded pairs and triplets, got {config.fewshot.mode}"
            )
        few = False
    if few and config.fewshot.mode == "contrastive" and not task.has_contrastive_stage:
        raise InputError("--fewshot: expected auto, probe or off for classes of pairs, got contrastive")
    if few and not fits and config.fewshot.mode != "auto":
        raise InputError(
            f"--fewshot: expected auto or off with more than {most:,} rows of {labels:,} labels, got"
            f" {config.fewshot.mode} with {rows:,}"
        )
    if config.fewshot.texts is not None and not (few and fits):
        raise InputError(
            f"--fewshot.texts: expected {limit}, and one worker, got {rows:,} rows of {labels:,} labels"
        )
    return few and fits


def _select_texts(texts: Subset, train: Subset, path: Path, seed: int) -> Subset:
    """At most `MOST_TEXTS` of the texts at random, without copies and texts of the training rows."""
    examples, rows = texts.examples, texts.rows
    rows = without_copies(examples, np.intersect1d(rows, unseen(examples, [train])))
    if not len(rows):
        raise InputError(f"--fewshot.texts {path}: expected texts that the labeled rows lack, got none")
    if len(rows) > MOST_TEXTS:
        rows = np.sort(np.random.default_rng([seed, 19]).choice(rows, MOST_TEXTS, replace=False))
    return Subset(examples, rows)


def check_few_labels(task: Task, train: Subset, groups: np.ndarray, origin: str) -> None:
    """Checks that a label has groups of rows, [R], to train on and others to predict."""
    if not has_enough_groups(train, groups):
        labels = len(np.unique(train.examples.local_labels(train.rows)[0]))
        kind = "queries" if task.traits.keeps_queries_together else "texts"
        raise InputError(
            f"{origin}: expected a label with two different training {kind} or more,"
            f" got {labels:,} labels with one each"
        )


def has_enough_groups(train: Subset, groups: np.ndarray) -> bool:
    """Whether a label has rows of two groups, [R], or more."""
    ids, counts = train.examples.local_labels(train.rows)
    of_labels = np.unique(np.stack([ids, np.repeat(groups, counts)]), axis=1)[0]
    return bool(np.bincount(of_labels.astype(np.int64), minlength=1).max() >= 2)


def row_groups(task: Task, part: Subset) -> np.ndarray:
    """Equal for the rows that stay in one part or fold: copies of a text, or all rows of a query; uint64 [R]."""
    examples = part.examples
    return (examples.queries if task.traits.keeps_queries_together else examples.digests)[part.rows]


def find_near_copies(examples: ExampleSet) -> np.ndarray | None:
    """The groups of `near_copy_groups` of all rows, uint64 [rows]; None if few rows are near copies, or of large data.

    Few of them hardly change a score, and then interrupted runs of earlier versions keep their validation rows.
    """
    sizes = examples.texts[0].lengths
    if sizes.sum() > MAX_BYTES:
        return None
    groups = near_copy_groups(examples.read_texts, examples.digests, sizes)
    share = count_near_copies(groups, examples.digests) / max(1, len(examples))
    return groups if share >= MANY_NEAR_COPIES else None


def _check_validation(summary: DataSummary, origin: str) -> None:
    """Checks that there are validation rows with labels of the training rows."""
    if not summary.validation_rows:
        raise InputError(
            f"{origin}: expected rows to hold out for validation, none can be spared;"
            " give rows with --data.validation"
        )
    unknown = sum(summary.labels_only_in_validation.values())
    if unknown >= summary.validation_rows:
        names = format_names(summary.labels_only_in_validation)
        raise InputError(f"--data.validation: expected labels of the training rows, got only {names}")


def _labels_of_equal_text(labels: Sequence[str]) -> list[str]:
    """The labels, in ASCII, that are equal to another one after Unicode normalization."""
    forms = [unicodedata.normalize("NFC", label) for label in labels]
    counts = collections.Counter(forms)
    return [ascii(label) for label, form in zip(labels, forms, strict=True) if counts[form] > 1]


def describe(data: Data) -> list[str]:
    """Summary lines: sizes, dropped rows and possible problems."""
    s = data.summary
    lines = [f"{s.train_rows:,} training, {s.validation_rows:,} validation, {s.test_rows:,} test rows"]
    if data.is_cross_validated:
        lines[0] = f"{s.train_rows:,} training rows, cross-validated, {s.test_rows:,} test rows"
    if len(data.labels) > 1:
        lines[0] += f"; {len(data.labels)} labels"
    notes = [
        (s.dropped_in_test, "rows dropped: their text is also in the test file"),
        (s.dropped_in_validation, "training rows dropped: their text is also in the validation file"),
        (s.left_out_of_validation, "validation rows left out: of large data a sample is evaluated"),
        (s.repeated_train_rows, "training rows repeat an earlier text"),
        (s.conflicting_train_rows, "training rows have a text that also has another label"),
        (s.near_copies, "training rows are near copies of others, which are held out together"),
        (s.empty_texts, f"rows have an empty text ({'skipped' if data.task.masking else 'used'})"),
    ]
    if data.texts is not None:
        lines.append(f"{len(data.texts.rows):,} texts without labels")
        why = "they are also in the validation or test rows"
        if data.has_few_labels:
            why = f"copies, texts of labeled rows, and all beyond a random choice of {MOST_TEXTS:,}"
        notes.append(
            (len(data.texts.examples) - len(data.texts.rows), f"texts without labels dropped: {why}")
        )
    lines += [f"{count:,} {what}" for count, what in notes if count]
    if alike := _labels_of_equal_text(data.labels):
        lines.append(f"labels that differ only in their Unicode normal form: {format_names(alike)}")
    for part, labels in (("validation", s.labels_only_in_validation), ("test", s.labels_only_in_test)):
        if labels:
            names = format_names(f"{label} ({rows})" for label, rows in labels.items())
            lines.append(f"labels that only {part} rows have, counted as errors: {names}")
    return lines

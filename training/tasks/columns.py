"""Columns and values that a task does not expect: the hints in its messages."""

from collections.abc import Sequence

from kmha.bundle.manifest import CLASSIFY, MASKED_LM, MATCH, TAG
from kmha.errors import InputError, did_you_mean
from training.io.tables import TEXT, header_hint

# Columns by which the rows of a task are recognized, with their name in a message.
_RECOGNIZED = (
    (("text_a", "text_b"), "pairs", MATCH),
    (("anchor", "positive", "negative"), "triplets", MATCH),
    (("words", "tags"), "words with tags", TAG),
    (("text", "spans"), "texts with spans", TAG),
    (("1", "2"), "words with tags", TAG),
    (("text", "label"), "texts with labels", CLASSIFY),
    (("text", "labels"), "texts with labels", CLASSIFY),
)


def column_hint(name: str, flag: str, available: Sequence[str], task: str) -> str:
    """A hint to append to a message about a missing column of the training rows.

    Names another task that has these columns, or the one for texts alone, else a similar column, else a missing header
    and the flag of the column.
    """
    for columns, rows, other in _RECOGNIZED:
        if other != task and all(each in available for each in columns):
            return f"; {rows}? --task {other}"
    if list(available) == [TEXT]:
        return f"; texts without labels? --task {MASKED_LM}"
    return (
        did_you_mean(name, available, f"--data.{flag} {{}}") or f"{header_hint(available)}; set --data.{flag}"
    )


def refuse_missing_value(label: str, column: str, place: str) -> None:
    """Raises InputError for nan, NaN and <NA>, which pandas writes for a missing label."""
    if label in ("nan", "NaN", "<NA>"):
        raise InputError(
            f"{place}: {column} must be a label, got {label}, a missing value of pandas; remove the row or rename the"
            " label"
        )

"""Flags that name the columns of labeled rows."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ColumnFlags:
    """Column settings of the commands that read labeled rows."""

    text_column: str = ""
    """Column of the text, the words, or the first text of a pair; empty: as in training."""
    text_b_column: str = ""
    """Column of the second text of a pair; empty: as in training."""
    label_column: str = ""
    """Column of the label or the tags; empty: as in training."""
    query_column: str = ""
    """Column of the query of a pair; empty: as in training."""

    def given(self) -> "ColumnOverrides":
        """Returns the columns for evaluation."""
        return ColumnOverrides(self.text_column, self.label_column, self.text_b_column, self.query_column)


@dataclass(frozen=True)
class ColumnOverrides:
    """Column names in a file of rows to evaluate; empty: as in training."""

    text: str = ""
    label: str = ""
    text_b: str = ""
    query: str = ""

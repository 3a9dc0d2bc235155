"""The flags that name the columns of labelled rows."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ColumnFlags:
    """Settings of every command that reads labelled rows for a run."""

    text_column: str = ""
    """Column of the text, of the words, or of the first of a pair; empty: as in training."""
    text_b_column: str = ""
    """Column of the second text of a pair; empty: as in training."""
    label_column: str = ""
    """Column of the label or of the tags; empty: as in training."""
    query_column: str = ""
    """Column of the query that a pair belongs to; empty: as in training."""

    def given(self) -> "ColumnOverrides":
        """The columns as a judge takes them."""
        return ColumnOverrides(self.text_column, self.label_column, self.text_b_column, self.query_column)


@dataclass(frozen=True)
class ColumnOverrides:
    """Names of columns in a file of rows to judge; empty ones are as in training."""

    text: str = ""
    label: str = ""
    text_b: str = ""
    query: str = ""

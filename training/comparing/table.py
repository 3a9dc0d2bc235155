"""A comparison as a table, for the terminal and as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

HEAD = (
    "candidate",
    "weights",
    "rate",
    "validation",
    "accuracy",
    "interval",
    "difference",
    "s an epoch",
    "cpu s",
)


def cells(comparison: Mapping[str, Any]) -> list[list[str]]:
    """The head, then a row a candidate.

    Args:
        comparison: What `training.comparing.job.compare` gives.
    """
    lengths = sorted({int(length) for row in comparison["candidates"] for length in row["latency_ms"]})
    rows = [[*HEAD, *(f"ms at {length}" for length in lengths)]]
    for row in comparison["candidates"]:
        low, high = row["intervals"]["accuracy"]
        rows.append(
            [
                row["name"],
                f"{row['weights']:,}",
                f"{row['rate']:g}" if "rate" in row else "",
                f"{row['validation']:.4f}" if "validation" in row else "",
                f"{row['accuracy']:.4f}",
                f"{low:.4f}–{high:.4f}",
                _difference(row.get("difference")),
                _seconds(row, ""),
                _seconds(row, "cpu_"),
                *(
                    f"{row['latency_ms'][str(length)]:.2f}" if str(length) in row["latency_ms"] else ""
                    for length in lengths
                ),
            ]
        )
    return rows


def _difference(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    low, high = found["interval"]
    return f"{found['value']:+.4f} ({low:+.4f} to {high:+.4f})"


def _seconds(row: Mapping[str, Any], kind: str) -> str:
    if f"{kind}seconds_per_epoch" in row:
        return f"{row[f'{kind}seconds_per_epoch']:.1f}"
    return f"{row[f'{kind}seconds_in_all']:.1f} in all" if f"{kind}seconds_in_all" in row else ""


def notes(comparison: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must know."""
    reference = comparison["reference"]
    level = comparison["weights"]
    told = [
        f"difference: accuracy less that of {reference}, on the same rows; in brackets its 95 % interval",
        "s an epoch: training steps by the clock, cpu s: processor time of all threads, both of the middle epoch; ms:"
        " one text by the clock, the middle of several rounds in turns",
    ]
    if level["target"] is not None:
        told.append(
            f"weights: trained networks within {level['largest_distance']:.2%} of {level['target']:,}, embeddings"
            " included; linear and runs are as they are"
        )
    told += [f"{row['name']}: {row['description']}" for row in comparison["candidates"]]
    return told


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in lines)

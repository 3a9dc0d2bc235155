"""What a benchmark found, as lines for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

_TITLES = (
    "learner",
    "numbers",
    "real tokens/s",
    "per CPU s",
    "kmha over it",
    "kmha float32 over it",
    "computed / real",
    "of matmul rate",
)


def cells(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header and a row for each learner that played to the end."""
    rows: list[list[str]] = [list(_TITLES)]
    for each in found:
        if "failed" in each:
            continue
        share = each["matmul_share"]
        rows.append(
            [
                each["learner"],
                each["precision"],
                f"{each['tokens_per_second']:,}",
                f"{each['tokens_per_cpu_second']:,}",
                _ratio(each["kmha_over"]),
                _ratio(each["kmha_float32_over"]),
                f"{each['computed_over_real']:.2f}",
                "" if share is None else f"{share:.0%}",
            ]
        )
    return rows


def op_cells(times: Mapping[str, Mapping[str, float]], most: int = 12) -> list[list[str]]:
    """A header and a row for each kind of operation with its share of all processor time, the largest first.

    Args:
        times: For training and for inference, seconds of each kind.
        most: Kinds to show; the rest stand together.
    """
    totals = {name: sum(kinds.values()) or 1.0 for name, kinds in times.items()}
    order = sorted(
        {kind for kinds in times.values() for kind in kinds},
        key=lambda kind: -max(kinds.get(kind, 0.0) / totals[name] for name, kinds in times.items()),
    )
    shares = {kind: [kinds.get(kind, 0.0) / totals[name] for name, kinds in times.items()] for kind in order}
    shown = {kind: shares[kind] for kind in order[:most]}
    if rest := order[most:]:
        shown[f"{len(rest)} others"] = [
            sum(column) for column in zip(*(shares[kind] for kind in rest), strict=True)
        ]
    return [
        ["operation", *times],
        *([kind, *(f"{share:.1%}" for share in row)] for kind, row in shown.items()),
    ]


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"

"""The results of a benchmark as table cells."""

from collections.abc import Mapping, Sequence
from typing import Any

_TITLES = (
    "trainer",
    "precision",
    "real tokens/s",
    "per CPU s",
    "kmha / it",
    "kmha float32 / it",
    "computed / real",
    "of matmul speed",
)


def result_cells(found: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A header, and a row for each trainer that did not fail."""
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


def operation_cells(times: Mapping[str, Mapping[str, float]], most: int = 12) -> list[list[str]]:
    """A header, and a row for each kind of operation with its share of the processor time, largest first."""
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

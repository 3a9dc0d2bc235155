"""Differences between two configurations, for messages."""

from collections.abc import Sequence
from typing import Any


def differences(began: dict[str, Any], now: dict[str, Any], free: Sequence[str] = ()) -> str:
    """Lists the settings that differ between two nested dicts: the flag, the old value and the new value.

    Settings in `free`, as `section.name`, are ignored. The result is empty if all others are equal.
    """
    before, after = _flat(began), _flat(now)
    return "; ".join(
        f"--{name.replace('_', '-')} {_word(before.get(name))}, got {_word(after.get(name))}"
        for name in before | after
        if name not in free and before.get(name) != after.get(name)
    )


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _word(value: Any) -> str:
    return "unset" if value is None else str(value)

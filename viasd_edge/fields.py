"""Typed fields of JSON objects that others may have written."""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

Value = TypeVar("Value", str, int, float, bool, list[Any], dict[str, Any])

_MAX_DEPTH = 16  # nobody nests deeper; what follows may use the stack
_MAX_WHOLE = 2**53  # what every reader of JSON holds exactly
_KINDS: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def read_object(text: str) -> dict[str, Any]:
    """The JSON object in `text`; its numbers are finite, its texts can be printed. Raises ValueError, TypeError."""
    try:
        found = json.loads(text, parse_float=_finite, parse_int=_whole, parse_constant=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise TypeError("it must hold one JSON object")
    _check(found)
    return found


def optional(table: dict[str, Any], key: str, kind: type[Value]) -> Value | None:
    """A field of that type, None if it is missing or null. Raises ValueError for any other type."""
    value = table.get(key)
    if value is None:
        return None
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{key!r} must be {_KINDS[kind]}")
    return value


def required(table: dict[str, Any], key: str, kind: type[Value]) -> Value:
    """A field that must be there. Raises ValueError."""
    value = optional(table, key, kind)
    if value is None:
        raise ValueError(f"it has no {key!r}")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _whole(text: str) -> int:
    value = int(text)
    if abs(value) > _MAX_WHOLE:
        raise ValueError(f"{text[:20]}... is too large a number")
    return value


def _check(value: Any, depth: int = 0) -> None:
    """Raise ValueError for text that would break a line or a terminal, and for deep nesting."""
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, str) and not value.isprintable():
        raise ValueError(f"the text {value[:20]!a} cannot be printed")
    for item in (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check(item, depth + 1)

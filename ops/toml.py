"""Plain values to TOML text, for ``config show`` and for the file that child processes read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A key that needs no quotes."""


def dump_toml(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Write one table per group; what lies deeper becomes inline tables and arrays."""
    lines: list[str] = []
    for group, values in groups.items():
        lines.append(f"[{group}]")
        lines.append(dump_values(values))
    return "\n".join(lines)


def dump_values(values: Mapping[str, Any]) -> str:
    """Write a line per value, what lies deeper as inline tables and arrays: a table's inside, or a whole file."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in values.items())


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        items = [_value(inner) for inner in value]
        if any(isinstance(inner, Mapping) for inner in value):
            return "[\n" + "".join(f"  {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    raise TypeError(f"no TOML for {type(value).__name__}")

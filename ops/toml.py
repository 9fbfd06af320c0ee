"""Plain values to TOML text, for ``config show`` and for the file that child processes read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def dump_toml(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Write one table per group; what lies deeper becomes inline tables and arrays."""
    lines: list[str] = []
    for group, values in groups.items():
        lines.append(f"[{group}]")
        lines += [f"{key} = {_value(value)}" for key, value in values.items()]
        lines.append("")
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        items = [_value(inner) for inner in value]
        if any(isinstance(inner, Mapping) for inner in value):
            return "[\n" + "".join(f"  {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    raise TypeError(f"no TOML for {type(value).__name__}")

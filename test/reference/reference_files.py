"""How the reference files beside this one are written and read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def read(name: str) -> Any:
    """The content of one reference file."""
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def write(path: Path, content: dict[str, Any]) -> None:
    """JSON with one line per innermost list, so that a change can be read in a diff."""
    path.write_text(dumps(content) + "\n", encoding="utf-8")


def dumps(value: Any, depth: int = 0) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + depth < 110 or not isinstance(value, (dict, list)):
        return flat
    if isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value):
        return flat
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(value, dict):
        rows = [f"{pad}{json.dumps(key)}: {dumps(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + end + "}"
    return "[\n" + ",\n".join(f"{pad}{dumps(item, depth + 1)}" for item in value) + "\n" + end + "]"

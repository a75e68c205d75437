"""What tests of ``edgellm check`` share: how it is run, and files that it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

Check = Callable[..., dict[str, list[str]]]


def written(path: Path, parameters: Mapping[str, Any]) -> Path:
    path.write_text(yaml.safe_dump({"/**": {"ros__parameters": dict(parameters)}}))
    return path

"""Where the engine directories of the demonstrations lie, and how they are made the first time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

SMOLLM2 = "smollm2-135m-instruct-int8"
TABLETOP = "tabletop-int8"


def cached_engine_directory(name: str) -> Path:
    """The place of an engine directory in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "edgellm" / name


def build_smollm2(directory: Path, say: Callable[[str], None]) -> Path:
    """SmolLM2-135M-Instruct, int8; one that is there is taken as it is.

    :raises EngineDirectoryError: somebody's own cannot be taken.
    """
    from ..engine_format import open_engine_directory
    from ..errors import EngineDirectoryError

    try:
        open_engine_directory(directory)
        say(f"Engine directory: {directory} (already built)")
        return directory
    except EngineDirectoryError:
        if not _may_be_built(directory, SMOLLM2):
            raise
    from ..builder.build import build_engine
    from .build import ProgressLine

    say(f"Building {directory} from the SmolLM2-135M-Instruct weights (int8); this is done once.")
    start, progress = time.monotonic(), ProgressLine()
    try:
        build_engine("smollm2", directory, precision="int8", progress=progress)
    finally:
        progress.close()
    say(f"Built in {time.monotonic() - start:.1f} s.")
    return directory


def build_tabletop(directory: Path | str, precision: str = "int8") -> Path:
    """The shipped tabletop policy, in about a second; one that is there and equal is left as it is."""
    from ..builder.build import build_engine
    from ..tabletop.checkpoint_files import checkpoint_directory

    return build_engine(checkpoint_directory(), directory, precision=precision)


def tabletop_directory(directory: Path | str) -> Path:
    """The engine directory for the tabletop; that of the cache is brought up to date, another built where nothing is.

    What somebody has put elsewhere is never replaced, whatever it holds.
    """
    path = Path(directory).expanduser()
    if _may_be_built(path, TABLETOP):
        build_tabletop(path)
    return path


def _may_be_built(path: Path, name: str) -> bool:
    """Whether it is our own in the cache, or nothing is there."""
    own = path.resolve() == cached_engine_directory(name).resolve()
    return own or not path.exists() or (path.is_dir() and not any(path.iterdir()))

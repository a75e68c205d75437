"""An engine directory appears whole or not at all: it is written beside its place and renamed into it.

A build holds a lock on its temporary folder for as long as its process lives; a folder without a holder is what a
killed build left, and the next build to the same place removes it. The last step of two builds to one place is
serialised by a lock on the folder that holds them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from ..engine_format import open_engine_directory
from ..engine_manifest import MANIFEST_FILE
from ..errors import EngineDirectoryError
from ..json_values import read_json, shown

_PLAN = re.compile(r"\.(engine|timing\.cache)(\.|$)")  # what a compilation for a GPU adds
SPARE_BYTES = 32 << 20  # left free for the rest of the machine


def holds_build(path: Path, fingerprint: str) -> bool:
    """Whether ``path`` is a sound engine directory of exactly this checkpoint and these settings."""
    try:
        return open_engine_directory(path).manifest.fingerprint == fingerprint
    except EngineDirectoryError:
        return False


def _readable(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


def check_place(output: Path, needed: int) -> None:
    """Whether ``needed`` bytes can become the engine directory ``output``, whose parents need not be there yet.

    :raises EngineDirectoryError: no room, or ``output`` is or holds something else; a parent is a file, or closed.
    """
    try:
        _check_place(output, needed)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise EngineDirectoryError(f"{output} cannot be written ({reason}); check the place.") from None


def _check_place(output: Path, needed: int) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        output.lstat()  # refuses what can be no path
    parent = next((folder for folder in output.parents if folder.exists()), output)
    if not os.access(parent, os.W_OK | os.X_OK) or not parent.is_dir():
        raise EngineDirectoryError(f"{output} cannot be written (no folder may be made in {parent}); check the place.")
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise EngineDirectoryError(f"{output} is not a folder; choose another place for the engine directory.")
    if output.is_dir() and any(output.iterdir()):
        if not os.access(output, os.W_OK | os.X_OK):
            raise EngineDirectoryError(f"{output} cannot be replaced (it is read-only); choose another place.")
        _check_replaceable(output)
    free = shutil.disk_usage(parent).free
    if free < needed + SPARE_BYTES:
        raise EngineDirectoryError(
            f"{output.parent} has {_readable(free)} free; want {_readable(needed + SPARE_BYTES)} for the engine "
            "directory: free some space or choose another disk."
        )


def _check_replaceable(output: Path) -> None:
    """:raises EngineDirectoryError: a folder with files that no build put there, which a new one would take along."""
    content, reason = {}, f"{MANIFEST_FILE} is not one of an engine directory"
    try:
        content = read_json(output / MANIFEST_FILE)
    except EngineDirectoryError as error:
        reason = str(error).partition(";")[0]
    files = content.get("files")
    if "fingerprint" not in content or not isinstance(files, dict):
        raise EngineDirectoryError(
            f"{output} holds files that are no engine directory ({reason}); choose another place, or empty it."
        )
    for path in output.rglob("*"):
        name = path.relative_to(output).as_posix()
        if (
            name not in {MANIFEST_FILE, *files}
            and not _PLAN.search(path.name)
            and (path.is_symlink() or not path.is_dir())
        ):
            raise EngineDirectoryError(
                f"{output} holds {shown(name)}, which no build put there and which would be lost; move it away, or "
                "choose another place."
            )


def _remove_abandoned(output: Path) -> None:
    """Delete the temporary folders of builds to this place whose process is gone."""
    for folder in output.parent.glob(f".{output.name}.building-*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its builder lives
                shutil.rmtree(folder)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def _parent_lock(output: Path) -> Iterator[int]:
    """Holds off other builds to the same parent for a short step; gives the parent's descriptor."""
    parent = os.open(output.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(parent, fcntl.LOCK_EX)
        yield parent
    finally:
        os.close(parent)


def _put_in_place(temporary: Path, output: Path, fingerprint: str) -> None:
    with _parent_lock(output) as parent:
        if holds_build(output, fingerprint):
            return  # another build of the same thing was faster
        if not output.exists():
            temporary.rename(output)
        else:
            check_place(output, 0)
            # the old one takes the temporary folder's fate: removed when the build is over
            retired = temporary.with_name(temporary.name + "-replaced")
            output.rename(retired)
            try:
                temporary.rename(output)
            except BaseException:
                retired.rename(output)
                raise
            shutil.rmtree(retired, ignore_errors=True)  # what is left of it is removed by the next build
        os.fsync(parent)


@contextlib.contextmanager
def writing(output: Path, fingerprint: str, needed: int) -> Iterator[Path]:
    """A temporary folder that becomes ``output`` when the block ends without an exception, and vanishes otherwise.

    ``needed`` is the number of bytes that will be written.

    :raises EngineDirectoryError: no room, not allowed, or ``output`` holds something else than an engine directory.
    """
    # named before it exists: an interrupt right after its creation must still find it
    temporary = output.parent / f".{output.name}.building-{secrets.token_hex(6)}"
    lock = -1
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        check_place(output, needed)
        with _parent_lock(output):  # else a rival could take a folder for abandoned before its lock is held
            _remove_abandoned(output)
            temporary.mkdir()
            lock = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield temporary
        _put_in_place(temporary, output, fingerprint)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EngineDirectoryError(
                f"the disk of {output.parent} is full; want {_readable(needed + SPARE_BYTES)} for the engine "
                "directory: free some space or choose another disk."
            ) from None
        raise EngineDirectoryError(
            f"{output} cannot be written ({error.strerror or error}); check the place."
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if lock >= 0:
            os.close(lock)

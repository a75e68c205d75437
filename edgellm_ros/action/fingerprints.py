"""Of what a policy was built, and whether what lies beside its manifest is still that.

Samples in the engine directory's own manifest tell a file from another one; these digests are whole, and tie the parts
of a policy to each other: words are its own tokenizer's ids, and numbers mean what its own statistics say.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine_format import (
    ACTION_DIRECTORY,
    POLICY_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    VISUAL_DIRECTORY,
    EngineDirectory,
    read_json,
)
from ..engine_manifest import MANIFEST_FILE, Manifest
from ..errors import PolicyError
from ..json_values import shown
from .normalization import Normalization

if TYPE_CHECKING:
    from .policy_manifest import PolicyManifest

_NONE = "0" * 64
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Fingerprints:
    """SHA-256 in hexadecimal. ``checkpoint`` cannot be checked without it; the others are when a policy is loaded.

    ``checkpoint``: weights, configuration, statistics and tokenizer that were read. ``statistics``: how state and
    actions are normalised. ``tokenizer``: its files. ``build``: the engine directory, the same as in its manifest.

    :raises PolicyError: one is no such number.
    """

    checkpoint: str = _NONE
    statistics: str = _NONE
    tokenizer: str = _NONE
    build: str = _NONE

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not isinstance(value, str) or not _SHA256.fullmatch(value):
                raise PolicyError(
                    f"{POLICY_FILE} has the fingerprint {shown(value)} of the {name}; want 64 hexadecimal digits: "
                    "build it again."
                )


def statistics_digest(state: Normalization, action: Normalization) -> str:
    """Of all that decides how numbers are normalised."""
    content = json.dumps([state.to_json(), action.to_json()], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def tokenizer_digest(files: Mapping[str, bytes]) -> str:
    """Of those among a tokenizer's files that decide about ids, by name."""
    checksum = hashlib.sha256()
    for name in (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE):
        if name in files:
            checksum.update(name.encode() + b"\0" + hashlib.sha256(files[name]).digest())
    return checksum.hexdigest()


def check_fingerprints(directory: EngineDirectory, policy: PolicyManifest) -> None:
    """:raises PolicyError: the tokenizer, the statistics or another part of the directory is of another build."""
    place, state, action = directory.path, policy.state.normalization, policy.action.normalization
    parts = [
        ("statistics", f"the statistics in {place / ACTION_DIRECTORY / POLICY_FILE}", statistics_digest(state, action)),
        ("tokenizer", f"the tokenizer in {place}", tokenizer_digest(_tokenizer_files(place))),
        ("build", str(place), directory.manifest.fingerprint),
    ]
    visual = place / VISUAL_DIRECTORY / MANIFEST_FILE
    if visual.is_file():
        parts.append(("build", str(visual.parent), Manifest.from_json(read_json(visual)).fingerprint))
    for name, what, has in parts:
        wanted: str = getattr(policy.fingerprints, name)
        if has != wanted:
            raise PolicyError(
                f"{what} has the fingerprint {has[:12]!r} where the policy was built with {wanted[:12]!r}; take "
                "the files of one build, or build it again."
            )


def _tokenizer_files(directory: Path) -> dict[str, bytes]:
    files = {name: directory / name for name in (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE)}
    try:
        return {name: file.read_bytes() for name, file in files.items() if file.is_file()}
    except OSError as error:
        raise PolicyError(
            f"the tokenizer in {directory} cannot be read ({error.strerror}); check its permissions."
        ) from None

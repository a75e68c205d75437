"""Action policies: which tensors each family has, which graphs they make, and what its manifest says."""

from __future__ import annotations

from ...errors import CheckpointError
from .base import LanguagePart as LanguagePart
from .base import PolicyFamily as PolicyFamily
from .pi_files import PI0, PI05
from .smolvla_files import SMOLVLA

FAMILIES = (SMOLVLA, PI0, PI05)


def find_family(kind: str) -> PolicyFamily:
    """The family of a policy's type. :raises CheckpointError: none is built; the sentence lists those that are."""
    for family in FAMILIES:
        if kind in family.kinds:
            return family
    raise CheckpointError(
        f"policies of type {kind!r} are not built; want one of "
        f"{', '.join(name for row in FAMILIES for name in row.kinds)}."
    )

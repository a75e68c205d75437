"""Action policies: which tensors each family has, which graphs they make, and what its manifest says."""

from __future__ import annotations

from ...errors import CheckpointError
from .alpamayo_files import ALPAMAYO
from .base import LanguagePart as LanguagePart
from .base import PolicyFamily as PolicyFamily
from .groot_files import GROOT
from .openpi_files import OPENPI_PI0, OPENPI_PI05
from .pi_files import PI0, PI05
from .smolvla_files import SMOLVLA

FAMILIES = (SMOLVLA, PI0, PI05, OPENPI_PI0, OPENPI_PI05, GROOT, ALPAMAYO)

_FIXED = "it gives a chunk in one pass, without noise to take away"
REASONS = {
    "act": _FIXED, "vqbet": _FIXED, "tdmpc": _FIXED,
    "diffusion": "it denoises with a convolutional network of its own",
    "pi0_fast": "it writes actions as tokens",
    "groot": "GR00T is built of version N1.7 in NVIDIA's own layout; give the folder that base_model_path names",
}  # fmt: skip


def find_family(kind: str) -> PolicyFamily:
    """The family of a policy's type. :raises CheckpointError: none is built; the sentence lists those that are."""
    for family in FAMILIES:
        if kind in family.kinds:
            return family
    reason = f": {REASONS[kind]}" if kind in REASONS else ""
    raise CheckpointError(
        f"policies of type {kind!r} are not built{reason}; want one of "
        f"{', '.join(name for row in FAMILIES for name in row.kinds)}."
    )

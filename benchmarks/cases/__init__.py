"""The cases by name. A module adds its own with a table ``CASES``: name -> function from a workspace to a case."""

from __future__ import annotations

from collections.abc import Callable

from ..harness import Case
from ..workspace import Workspace
from . import batch, build, decode, images, node, policy, prefill, prefix, shaped, vision

CaseMaker = Callable[[Workspace], Case]

CASES: dict[str, CaseMaker] = {
    **decode.CASES,
    **batch.CASES,
    **prefill.CASES,
    **prefix.CASES,
    **shaped.CASES,
    **vision.CASES,
    **policy.CASES,
    **node.CASES,
    **build.CASES,
    **images.CASES,
}

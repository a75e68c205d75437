"""Whether this Python has the packages that an engine directory and its settings need, in versions that fit."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import MissingPackageError
from .findings import Findings, Verdict

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_MODULES = {"pyyaml": "yaml", "opencv-python-headless": "cv2"}  # where the package is imported under another name
_SUBJECT = "packages"


@dataclass(frozen=True)
class Need:
    """An extra of this package; ``reason`` says what needs it, ``verdict`` what it means where it is not there."""

    extra: str
    reason: str
    verdict: Verdict = Verdict.PROBLEM


def check_packages(findings: Findings, needs: Iterable[Need]) -> None:
    """What this package requires, and the extras that are needed here.

    :raises MissingPackageError: what reads requirements is not there.
    """
    try:
        from packaging.requirements import Requirement
    except ImportError:
        raise MissingPackageError(
            "packaging cannot be imported, which reads versions; install it with 'pip install packaging'."
        ) from None
    try:
        requirements = [Requirement(text) for text in importlib.metadata.requires("edgellm_ros") or ()]
    except importlib.metadata.PackageNotFoundError:
        findings.warning(
            _SUBJECT, "edgellm_ros is not installed, so what it requires is not known; use pip install or colcon build."
        )
        return
    found = [f"Python {platform.python_version()}"]
    for need in (Need("", "edgellm_ros"), *needs):
        found += [_check(findings, one, need) for one in requirements if _applies(one, need.extra)]
    findings.ok(_SUBJECT, f"{', '.join(filter(None, found))}.")


def _applies(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    always = marker is None or marker.evaluate({"extra": ""})
    return always if not extra else not always and marker is not None and marker.evaluate({"extra": extra})


def _check(findings: Findings, requirement: Requirement, need: Need) -> str:
    """Name and version of a package; empty where it is not there."""
    name, wanted = requirement.name, f"{requirement.name}{requirement.specifier}"
    remedy = f"install it with \"pip install '{wanted}'\"."
    try:
        version = _version(name)
    except Exception as error:  # of whatever the package does when it is imported
        reason = "is not installed" if isinstance(error, ModuleNotFoundError) else f"does not import ({error})"
        findings.add(_SUBJECT, need.verdict, f"{name} {reason}; {need.reason} needs {wanted}: {remedy}")
        return ""
    if not _fits(requirement, version):
        verdict = Verdict.WARNING if need.extra else Verdict.PROBLEM
        findings.add(_SUBJECT, verdict, f"{name} has the version {version}; {need.reason} needs {wanted}: {remedy}")
    return f"{name} {version}"


def _fits(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except ValueError:  # no version by the rules of Python's packages
        return False


def _version(name: str) -> str:
    """Of an installed package, by whoever installed it."""
    module = importlib.import_module(_MODULES.get(name.lower(), name.lower().replace("-", "_")))
    try:
        return str(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:  # a variant under another name, such as onnxruntime-gpu
        return str(getattr(module, "__version__", "0"))

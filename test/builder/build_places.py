"""Places that are built to, and what lies there."""

from __future__ import annotations

from edgellm_ros.engine_format import BuilderLimits

LIMITS = BuilderLimits(2, 16, 32)


def content(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def siblings(place):
    return sorted(file.name for file in place.parent.iterdir())

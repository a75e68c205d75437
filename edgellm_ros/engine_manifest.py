"""What an engine directory was built of and for, and the files that it consists of (``manifest.json``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import EngineDirectoryError
from .json_values import LARGEST_FILE, plain_text, problem_of, shown, whole_number

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """``manifest.json``."""

    lowering: str  # onnxruntime | tensorrt | tensorrt_legacy | fake
    precision: str  # fp32 | fp16 | bf16 | int8 | int4
    builder_version: str
    source: str  # where the weights came from, as a person would say it
    licence: str
    fingerprint: str  # of the checkpoint and the build settings; equal means the same engine
    files: Mapping[str, int]  # name -> size in bytes of every file but the manifest
    format_version: int = FORMAT_VERSION
    samples: Mapping[str, str] = field(default_factory=dict)  # name -> ``file_sample``; none in a fake directory

    def to_json(self) -> dict[str, Any]:
        """The file's content."""
        return {
            "format_version": self.format_version,
            "builder_version": self.builder_version,
            "lowering": self.lowering,
            "precision": self.precision,
            "source": self.source,
            "licence": self.licence,
            "fingerprint": self.fingerprint,
            "files": dict(self.files),
            "samples": dict(self.samples),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Manifest:
        """:raises EngineDirectoryError: another format version, or a missing or ill-typed key."""
        version = content.get("format_version")
        if version != FORMAT_VERSION:
            raise EngineDirectoryError(
                f"{MANIFEST_FILE} has format_version {shown(version)}; this version reads {FORMAT_VERSION}: "
                "build the engine directory again."
            )
        try:
            return cls(
                lowering=plain_text(content["lowering"]),
                precision=plain_text(content["precision"]),
                builder_version=plain_text(content["builder_version"]),
                source=plain_text(content["source"]),
                licence=plain_text(content["licence"]),
                fingerprint=plain_text(content["fingerprint"]),
                files={
                    str(name): whole_number(f"the size of {name!r}", size, 0, LARGEST_FILE)
                    for name, size in content["files"].items()
                },
                samples={str(name): str(sample) for name, sample in content.get("samples", {}).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineDirectoryError(
                f"{MANIFEST_FILE} {problem_of(error)}; build the engine directory again."
            ) from None

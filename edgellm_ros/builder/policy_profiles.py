"""Shapes that the plans of a policy are compiled for, from its manifest: one profile for each of its graphs.

Pictures of a policy whose tower takes any grid have the shorter side that its manifest says; the longer one may be
twice that.
"""

from __future__ import annotations

from ..action.policy_manifest import Handoff, PolicyManifest, StateInput
from ..errors import BackendError, CheckpointError
from ..vision.visual_directory import TILES, TowerSettings

Shape = tuple[int, ...]
Range = tuple[int, int, int]  # smallest, most usual, largest
_USUAL_WORDS, _MOST_MARKS = 16, 64  # tokens of a task, and of what stands around it and the pictures
_LONGEST = 2  # times the shorter side of a picture
_BY_ROW = ("text", "image", "prefix")  # kinds of rows that inputs are named for


class PolicyProfile:
    """Ranges of the inputs of a policy's graphs. :raises CheckpointError: of a policy that has no plans."""

    def __init__(self, manifest: PolicyManifest, tower: TowerSettings) -> None:
        if manifest.driving is not None:
            raise CheckpointError(
                "a plan is asked of a policy that reasons before it drives, which ONNX Runtime runs on the CPU; build "
                "it without --plan."
            )
        cameras, tokens = len(manifest.cameras), manifest.image_tokens
        state = int(manifest.state_input is StateInput.PREFIX_TOKEN)
        words = min(_USUAL_WORDS, manifest.prompt_tokens)
        patches = tokens * tower.spatial_merge_size**2
        context = manifest.handoff is Handoff.CONTEXT
        image: Range = (1, cameras * tokens, cameras * tokens * (_LONGEST if context else 1))
        marks = _MOST_MARKS if context else 0
        text: Range = (1, words + marks // 4, manifest.prompt_tokens + marks)
        seen: Range = (1, image[1] + text[1], image[2] + text[2])
        self._ranges: dict[str, Range] = {
            "images": (1, cameras, cameras) if tower.layout == TILES else (1, 1, 1),
            "patches": (1, patches, patches * _LONGEST),
            "image": image,
            "text": text,
            "seen": seen,
            "prefix": (seen[0] + state, seen[1] + state, seen[2] + state),
        }

    def ranges(self, folder: str, name: str, shape: Shape) -> tuple[Shape, Shape, Shape]:
        """Of one input of a graph in ``folder`` (``visual`` or ``action``); ``shape`` has -1 where it varies.

        :raises BackendError: an input whose free dimensions this version does not know.
        """
        kinds = iter(_kinds(folder, name))
        found = []
        for size in shape:
            kind = None if size >= 0 else next(kinds, None)
            if size < 0 and kind is None:
                raise BackendError(
                    f"the policy's input {name!r} of shape {shape} varies where this version knows no range; build the "
                    "directory again."
                )
            found.append((size,) * 3 if kind is None else self._ranges[kind])
        smallest, usual, largest = (tuple(sizes) for sizes in zip(*found, strict=True))
        return smallest, usual, largest


def _kinds(folder: str, name: str) -> tuple[str, ...]:
    """Of the dimensions that vary, in their order."""
    if name == "pixel_values":
        return "images", "patches"
    if folder == "visual":
        return () if name.startswith("window_") else ("patches",)
    if name == "prefix_embeds" or name.startswith("deepstack_"):
        return ("seen",)
    if name in ("rope_cos", "rope_sin", "attend_end"):
        return ("prefix",)
    kind = name.split("_")[0]
    return (kind,) if kind in _BY_ROW else ()

"""Shapes that the plans of a policy are compiled for, from its manifest: one profile for each of its graphs.

Pictures of a policy whose tower takes any grid have the shorter side that its manifest says; the longer one may be
twice that.
"""

from __future__ import annotations

from functools import partial

from ..action.policy_manifest import Handoff, PolicyManifest, StateInput
from ..engine_format import BuilderLimits
from ..errors import BackendError
from ..vision.visual_directory import TILES, TowerSettings
from .plan_profiles import Profile, Ranges, Shape
from .visual_profiles import visual_profiles, visual_ranges

Range = tuple[int, int, int]  # smallest, most usual, largest
_USUAL_WORDS, _MOST_MARKS = 16, 64  # tokens of a task, and of what stands around it and the pictures
_LONGEST = 2  # times the shorter side of a picture
_BY_ROW = ("text", "image", "prefix")  # kinds of rows that inputs are named for


def policy_tower_profile(manifest: PolicyManifest, tower: TowerSettings) -> Profile:
    """Of the image tower, which sees every camera at once, or one after the other where their grids may differ."""
    if tower.layout == TILES:
        cameras = len(manifest.seen_cameras)
        return partial(visual_ranges, sizes={"images": (1, cameras, cameras)})
    sizes = visual_profiles(tower, _LONGEST * manifest.image_tokens)[-1]
    least, _, most = sizes["patches"]
    return partial(visual_ranges, sizes={**sizes, "patches": (least, most // _LONGEST, most)})


def policy_profile(manifest: PolicyManifest, limits: BuilderLimits) -> Profile:
    """Of what lies in the directory ``action``; ``limits`` are those of the language model."""
    if manifest.driving is not None:  # it reads the language model's own cache
        capacity = limits.max_kv_cache_capacity
        return partial(_ranges, sizes={"prefix": (1, min(limits.max_input_len, capacity), capacity)})
    state = int(manifest.state_input is StateInput.PREFIX_TOKEN)
    context = manifest.handoff is Handoff.CONTEXT
    pictures, marks = len(manifest.seen_cameras) * manifest.image_tokens, _MOST_MARKS if context else 0
    image = (1, pictures, pictures * (_LONGEST if context else 1))
    text = (1, min(_USUAL_WORDS, manifest.prompt_tokens) + marks // 4, manifest.prompt_tokens + marks)
    seen = (1, image[1] + text[1], image[2] + text[2])
    prefix = (seen[0] + state, seen[1] + state, seen[2] + state)
    return partial(_ranges, sizes={"image": image, "text": text, "seen": seen, "prefix": prefix})


def _ranges(name: str, shape: Shape, sizes: dict[str, Range]) -> Ranges:
    """:raises BackendError: an input whose free dimensions this version does not know."""
    kind = "seen" if name == "prefix_embeds" or name.startswith("deepstack_") else name.split("_")[0]
    kind = "prefix" if name in ("rope_cos", "rope_sin", "attend_end") else kind
    if sum(size < 0 for size in shape) > (kind in ("seen", *_BY_ROW)):
        raise BackendError(
            f"the policy's input {name!r} of shape {shape} varies where this version knows no range; build the "
            "directory again."
        )
    ranges = [(size,) * 3 if size >= 0 else sizes[kind] for size in shape]
    smallest, usual, largest = (tuple(sizes) for sizes in zip(*ranges, strict=True))
    return smallest, usual, largest

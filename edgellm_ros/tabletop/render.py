"""Draws what the two cameras see, with OpenCV alone: table, shadow, objects, hand and arm.

A picture is a list of strokes over one array of points in metres, so that each camera projects all points at once.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import numpy as np

from ..vision.opencv import opencv
from .cameras import CAMERAS, IMAGE_SIZE, Camera
from .geometry import PAD_HALF_LENGTH, PAD_RADIUS, Array, arm_points, hand_height, pad_offset
from .objects import HEIGHTS, RADII, SHAPE_NAMES, UNNAMED_SHAPE
from .physics import Worlds

SHIFT = 4  # fractional bits of OpenCV's drawing coordinates
ARM_HEIGHT = 0.11
PAD_HEIGHT = 0.03
UPPER_LINK, LOWER_LINK, HAND_LINK, PALM_BAR = 0.017, 0.014, 0.010, 0.006  # drawn widths in metres
ARM_COLOUR, JOINT_COLOUR, HAND_COLOUR = (92.0, 96.0, 104.0), (60.0, 62.0, 70.0), (30.0, 30.0, 34.0)
CUBE, RING = SHAPE_NAMES.index("cube"), SHAPE_NAMES.index("ring")
_ANGLES = np.arange(18) * (2.0 * math.pi / 18)
CIRCLE = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=-1)
SQUARE = np.array([[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]]) / math.sqrt(2.0)
CUBE_SCALE, RING_HOLE = 1.12, 0.52
TABLE_CORNERS = np.array([[-0.18, 0.0, 0.0], [0.18, 0.0, 0.0], [0.18, 0.35, 0.0], [-0.18, 0.35, 0.0]])

Colour = tuple[float, ...]


@dataclass
class Strokes:
    """Strokes in drawing order; each names its points by their number, its colour and, for lines, a width in metres."""

    points: list[Array] = field(default_factory=list)
    strokes: list[tuple[str, int, int, Colour, float]] = field(default_factory=list)
    count: int = 0

    def add(self, kind: str, outline: Array, height: float, colour: Colour, width: float = 0.0) -> None:
        """Add a ``fill``, ``hull``, ``line`` or ``dot`` over outline [n,2] at one height."""
        part = np.empty((len(outline), 3))
        part[:, :2] = outline
        part[:, 2] = height
        self.add_points(kind, part, colour, width)

    def add_points(self, kind: str, part: Array, colour: Colour, width: float = 0.0) -> None:
        """Add a stroke over points [n,3]."""
        self.points.append(part)
        self.strokes.append((kind, self.count, self.count + len(part), colour, width))
        self.count += len(part)

    def draw(self, image: Array, camera: Camera) -> None:
        """Draw everything into ``image``, uint8 [128,128,3]."""
        cv2 = opencv()
        pixels = np.rint(camera.project(np.concatenate(self.points)) * (1 << SHIFT)).astype(np.int32)
        for kind, start, stop, colour, width in self.strokes:
            part = pixels[start:stop]
            if kind == "fill":
                cv2.fillConvexPoly(image, part, colour, cv2.LINE_AA, SHIFT)
            elif kind == "hull":
                cv2.fillConvexPoly(image, cv2.convexHull(part), colour, cv2.LINE_AA, SHIFT)
            elif kind == "line":
                thickness = max(1, round(width * camera.scale))
                cv2.line(image, part[0].tolist(), part[1].tolist(), colour, thickness, cv2.LINE_AA, SHIFT)
            else:
                radius = round(width * camera.scale * (1 << SHIFT))
                cv2.circle(image, part[0].tolist(), radius, colour, -1, cv2.LINE_AA, SHIFT)


def render_views(worlds: Worlds, row: int) -> Array:
    """Both cameras' pictures of one world, uint8 RGB [2,128,128,3], in the order of ``CAMERA_NAMES``."""
    images = np.empty((len(CAMERAS), IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    strokes = strokes_of(worlds, row)
    tint = tuple(worlds.tint[row].round(1).tolist())
    for image, camera in zip(images, CAMERAS, strict=True):
        image[:] = background(camera, tint)
        strokes.draw(image, camera)
    return images


@functools.lru_cache(maxsize=64)
def background(camera: Camera, tint: Colour) -> Array:
    """The empty table in a tint, with a darker floor around it, uint8 [128,128,3]; not to be written to."""
    image = np.empty((IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
    image[:] = (np.array(tint) * 0.62).astype(np.uint8)
    table = Strokes()
    table.add_points("fill", TABLE_CORNERS, tint)
    table.draw(image, camera)
    return image


def strokes_of(worlds: Worlds, row: int) -> Strokes:
    """All strokes of one world's picture."""
    strokes = Strokes()
    joints = worlds.joints[row]
    held = int(worlds.held[row])
    height = float(hand_height(joints[3]))
    arm = arm_points(joints)
    tint = worlds.tint[row]
    if height > 0.0:
        ground = arm[3] + height * np.array([0.3, -0.2])
        size = float(RADII[worlds.shape[row, held]]) if held >= 0 else 0.012
        strokes.add("fill", ground + size * CIRCLE, 0.0, tuple((0.72 * tint).tolist()))
    support = worlds.support[row].tolist()
    depth = worlds.position[row, :, 1].tolist()
    items = [item for item in np.flatnonzero(worlds.present[row]).tolist() if item != held]
    # Far objects first; what rests on another one after all that stand; what is held last of all.
    for item in sorted(items, key=lambda i: (support[i] >= 0, -depth[i])):
        base = float(HEIGHTS[worlds.shape[row, support[item]]]) if support[item] >= 0 else 0.0
        _add_object(strokes, worlds, row, item, base)
    if held >= 0:
        _add_object(strokes, worlds, row, held, height)
    _add_hand(strokes, worlds, row, arm[3], height)
    strokes.add("line", arm[0:2], ARM_HEIGHT, ARM_COLOUR, UPPER_LINK)
    strokes.add("line", arm[1:3], ARM_HEIGHT, ARM_COLOUR, LOWER_LINK)
    strokes.add("line", arm[2:4], ARM_HEIGHT, JOINT_COLOUR, HAND_LINK)
    strokes.add("dot", arm[1:2], ARM_HEIGHT, JOINT_COLOUR, 0.011)
    strokes.add("dot", arm[2:3], ARM_HEIGHT, JOINT_COLOUR, 0.011)
    return strokes


def _add_object(strokes: Strokes, worlds: Worlds, row: int, item: int, base: float) -> None:
    shape = int(worlds.shape[row, item])
    centre = worlds.position[row, item]
    radius, top = float(RADII[shape]), base + float(HEIGHTS[shape])
    colour, turn = worlds.paint[row, item], float(worlds.turn[row, item])
    if shape == CUBE:
        cosine, sine = radius * CUBE_SCALE * math.cos(turn), radius * CUBE_SCALE * math.sin(turn)
        outline = centre + SQUARE @ np.array([[cosine, sine], [-sine, cosine]])
    elif shape == UNNAMED_SHAPE:
        corners = (3, 5, 6)[int(turn * 1000.0) % 3]
        angles = turn + np.arange(corners) * (2.0 * math.pi / corners)
        stretch = np.array([1.15, 1.15 if corners < 6 else 0.7])
        outline = centre + radius * stretch * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    else:
        outline = centre + radius * CIRCLE
    body = np.empty((2 * len(outline), 3))
    body[:, :2] = np.concatenate([outline, outline])
    body[: len(outline), 2], body[len(outline) :, 2] = base, top
    strokes.add_points("hull", body, tuple((0.62 * colour).tolist()))
    strokes.add_points("fill", body[len(outline) :], tuple(colour.tolist()))
    if shape == RING:
        strokes.add("fill", centre + RING_HOLE * radius * CIRCLE, top, tuple((0.8 * worlds.tint[row]).tolist()))


def _add_hand(strokes: Strokes, worlds: Worlds, row: int, hand: Array, height: float) -> None:
    joints = worlds.joints[row]
    heading = float(joints[0] + joints[1] + joints[2])
    held = int(worlds.held[row])
    offset = float(RADII[worlds.shape[row, held]]) + PAD_RADIUS if held >= 0 else float(pad_offset(joints[3]))
    forward = np.array([math.cos(heading), math.sin(heading)])
    left = np.array([-forward[1], forward[0]])
    for side in (1.0, -1.0):
        ends = hand + (side * offset) * left + np.outer([-PAD_HALF_LENGTH, PAD_HALF_LENGTH], forward)
        pad = np.empty((4, 3))
        pad[:, :2] = np.concatenate([ends, ends])
        pad[:2, 2], pad[2:, 2] = height, height + PAD_HEIGHT
        strokes.add_points("hull", pad, HAND_COLOUR)
        strokes.add("line", ends, height + PAD_HEIGHT, HAND_COLOUR, 2.0 * PAD_RADIUS)
    palm = hand - (PAD_HALF_LENGTH + 0.002) * forward
    strokes.add(
        "line", np.stack([palm + offset * left, palm - offset * left]), height + PAD_HEIGHT, HAND_COLOUR, PALM_BAR
    )

"""The picture on ``~/overlay``: what was seen, with the parts that were left out dark, and the answer below."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..vision.opencv import opencv

if TYPE_CHECKING:
    from sensor_msgs.msg import Image

SHADE = 4  # what dropped parts are divided by
LINE = 22  # rows of pixels of a line of text
LETTER = 10  # columns of a letter
MOST_LINES = 12
LARGEST_SIDE = 2048  # pixels of an image in the picture


def overlay(
    images: Sequence[np.ndarray], boxes: Sequence[np.ndarray], kept: Sequence[Sequence[int]], answer: str
) -> np.ndarray:
    """uint8 RGB: the images side by side, at the height of the first where that fits, over the answer.

    ``boxes`` [n,4] of each image's tokens (fractions), ``kept`` the tokens of each image that were read; empty: all.
    """
    height = min(images[0].shape[0], LARGEST_SIDE)
    shown = []
    for index, image in enumerate(images):
        shaded = _shaded(image, boxes[index], kept[index]) if kept else image
        shown.append(_at_height(shaded, height))
    picture = np.concatenate(shown, axis=1)
    return np.concatenate([picture, _lines(answer, picture.shape[1])])


def _shaded(image: np.ndarray, boxes: np.ndarray, kept: Sequence[int]) -> np.ndarray:
    """What no kept token looks at is dark; a view of the whole behind tiles only counts where it is all there is."""
    height, width = image.shape[:2]
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    fine = areas < areas.max() * 0.99 if areas.min() < areas.max() * 0.99 else np.ones(len(boxes), bool)
    bright = np.zeros((height, width), bool)
    for token in kept:
        if fine[token]:
            top, left, bottom, right = np.round(boxes[token] * (height, width, height, width)).astype(int)
            bright[top:bottom, left:right] = True
    return np.where(bright[..., None], image, image // SHADE)


def _at_height(image: np.ndarray, height: int) -> np.ndarray:
    """The image at this height; one that is too wide for that is smaller, over black."""
    scale = min(height / image.shape[0], LARGEST_SIDE / image.shape[1])
    if scale == 1:
        return image
    cv2 = opencv()
    size = [max(1, round(side * scale)) for side in image.shape[:2]]
    result = np.zeros((height, size[1], 3), np.uint8)
    result[: size[0]] = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
    return result


def _lines(text: str, width: int) -> np.ndarray:
    cv2 = opencv()
    plain = " ".join(text.split()).encode("ascii", "replace").decode()
    lines = textwrap.wrap(plain, max(1, width // LETTER)) or [""]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], "..."]
    strip = np.zeros((LINE * len(lines) + LINE // 2, width, 3), np.uint8)
    for index, line in enumerate(lines):
        place = (2, LINE * (index + 1) - 4)
        cv2.putText(strip, line, place, cv2.FONT_HERSHEY_SIMPLEX, 0.5, (255, 255, 255), 1, cv2.LINE_AA)
    return strip


def overlay_message(picture: np.ndarray, stamp: int, frame_id: str) -> Image:
    """The message; ``stamp`` in ns, of the images."""
    from sensor_msgs.msg import Image

    height, width = picture.shape[:2]
    message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
    message.header.frame_id = frame_id
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp, 10**9)
    message.data.frombytes(picture.tobytes())
    return message

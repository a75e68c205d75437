"""Frames that were decoded, so that each is decoded once however often it is used.

A policy that computes faster than its cameras send uses a frame again, and one that drives uses it as the newest and
then as each of the earlier ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .cameras import Camera, decode_frame
from .synchronizer import Frame

if TYPE_CHECKING:
    import numpy as np


class DecodedFrames:
    """Belongs to the thread that computes. Holds ``each`` frames of each camera, those used last."""

    def __init__(self, cameras: Sequence[Camera], each: int) -> None:
        self._cameras = {camera.name: camera for camera in cameras}
        self._most = each * len(self._cameras)
        self._held: OrderedDict[Frame, tuple[np.ndarray, str]] = OrderedDict()

    def of(self, frame: Frame, max_pixels: int) -> tuple[np.ndarray, str]:
        """uint8 RGB [H,W,3], not to be written to, and the frame of reference it was taken in.

        :raises RequestError: see ``decode_frame``.
        """
        found = self._held.pop(frame, None)
        if found is None or found[0].shape[0] * found[0].shape[1] > max_pixels:  # a limit that was lowered meanwhile
            found = decode_frame(self._cameras[frame.camera], frame.payload, max_pixels)
            found[0].flags.writeable = False
        self._held[frame] = found
        if len(self._held) > self._most:
            self._held.popitem(last=False)
        return found

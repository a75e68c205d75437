"""What a policy that drives observes: several pictures of each camera, and the way up to the last of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..action.driving import Driving
from ..action.observation import Observation
from ..errors import ObservationError
from .joint_states import NANOSECONDS
from .odometry import OdometryTracker

if TYPE_CHECKING:
    from .images import CameraInputs, RequestImages
    from .parameters import ImageSettings

ODOMETRY_WAIT = 0.5  # s for the odometry that belongs to an image


class DrivingInputs:
    """Used by the thread that answers; pictures and positions are ``step`` s apart."""

    def __init__(self, cameras: CameraInputs, odometry: OdometryTracker, driving: Driving, step: float) -> None:
        self._cameras, self._odometry = cameras, odometry
        self._driving, self._step = driving, step

    def observation(self, last: RequestImages, settings: ImageSettings) -> Observation:
        """From the last pictures to the whole observation.

        :raises ObservationError: the way is not known, or a camera changed its size.
        :raises RequestError: an earlier picture is missing or does not decode.
        """
        step = round(self._step * NANOSECONDS)
        back = range(self._driving.frames - 1, 0, -1)
        series = [self._cameras.take_near(settings, last.stamp - step * count, self._step / 2) for count in back]
        images = {}
        for index, camera in enumerate(last.cameras):
            frames = [found.images[index] for found in (*series, last)]
            if len({frame.shape for frame in frames}) != 1:
                raise ObservationError(f"camera {camera!r} changed the size of its pictures; wait for more of them.")
            images[camera] = np.stack(frames)
        history = self._odometry.history(last.stamp, self._driving.history.points, self._step, ODOMETRY_WAIT)
        return Observation(images, np.zeros(0), last.stamp, history)

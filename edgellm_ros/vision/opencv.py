"""OpenCV, imported when the first image needs it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..errors import MissingPackageError


@lru_cache(maxsize=1)
def opencv() -> Any:
    """The module ``cv2``.

    :raises MissingPackageError: it is not installed.
    """
    try:
        import cv2
    except ImportError as error:
        raise MissingPackageError(
            f"Images need OpenCV, which does not import here ({error}): install it with "
            "pip install 'edgellm_ros[vision]', or python3-opencv of the distribution."
        ) from None
    return cv2

"""What a robot reports at one moment, checked against what its policy needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import ObservationError
from ..vision.processor import LARGEST_RATIO, is_line
from .driving import check_frames
from .policy_manifest import CameraSlot, PolicyManifest


@dataclass(frozen=True)
class Observation:
    """``images``: uint8 RGB [H,W,3] by camera name; ``state``: [n] in robot units; ``stamp`` in nanoseconds.

    A policy that drives takes several pictures of a camera, [frames,H,W,3], and ``history``: the positions that were
    driven [points,3] in m, in the vehicle's frame at ``stamp``, oldest first.
    """

    images: Mapping[str, np.ndarray]
    state: np.ndarray
    stamp: int = 0
    history: np.ndarray | None = None


def check_state(state: np.ndarray, manifest: PolicyManifest) -> np.ndarray:
    """The state as float64 [n].

    :raises ObservationError: another shape, or numbers that are not finite; the sentence names the dimension.
    """
    values = np.asarray(state, dtype=np.float64)
    names = manifest.state.names
    if values.shape != (len(names),):
        raise ObservationError(
            f"the state has shape {values.shape}; the policy takes {(len(names),)}: {', '.join(names)}."
        )
    for name, value in zip(names, values, strict=True):
        if not np.isfinite(value):
            raise ObservationError(f"the state of {name} is {value}; want a finite number: check the sensor.")
    return values


def normalised_state(state: np.ndarray, manifest: PolicyManifest) -> np.ndarray:
    """What the network reads of a state [n], float32 [n].

    :raises ObservationError: a number is so far from what the policy knows that it is none any more.
    """
    with np.errstate(all="ignore"):
        values = manifest.state.normalization.normalize(state)
    for name, value, found in zip(manifest.state.names, values, state, strict=True):
        if not np.isfinite(value):
            raise ObservationError(
                f"the state of {name} is {found:.6g}, beyond any number that the policy can read; check the sensor."
            )
    return values


def check_images(images: Mapping[str, np.ndarray], manifest: PolicyManifest) -> list[tuple[CameraSlot, np.ndarray]]:
    """Pictures in the policy's order.

    :raises ObservationError: a camera is missing or unknown, or a picture is no uint8 [H,W,3].
    """
    found = []
    for slot in manifest.present_cameras(list(images)):
        image = images[slot.name if slot.name in images else slot.key]
        if manifest.driving is not None:
            found += [(slot, frame) for frame in check_frames(image, slot.name, manifest.driving.frames)]
            continue
        fits = isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
        if not fits or 0 in image.shape:
            shape = getattr(image, "shape", type(image).__name__)
            raise ObservationError(
                f"the picture of camera {slot.name!r} is {getattr(image, 'dtype', '')} of shape {shape}; want uint8 "
                "RGB [height, width, 3]."
            )
        if is_line(*image.shape[:2]):
            raise ObservationError(
                f"the picture of camera {slot.name!r} has {image.shape[1]} by {image.shape[0]} pixels; want no side "
                f"more than {LARGEST_RATIO} times the other: crop it."
            )
        found.append((slot, image))
    return found

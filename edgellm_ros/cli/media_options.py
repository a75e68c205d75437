"""The options of a command that bring images and videos into a prompt."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..errors import RequestError
from ..json_values import is_file, is_positive

MOST_FRAMES = 768
MOST_BYTES = 256 * 2**20  # of an image file
LONGEST_VIDEO = 1_000_000  # frames that are looked through; nine hours at 30 Hz
MOST_VIDEO_PIXELS = 1 << 29  # of the frames that are kept; 1.6 GB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--image", action="append", default=[], metavar="FILE", help="JPEG or PNG before the first prompt; repeatable"
    )
    parser.add_argument(
        "--video", action="append", default=[], metavar="FILE", help="frames of a video before it; repeatable"
    )
    parser.add_argument(
        "--video-frames", type=int, default=8, metavar="N", help="of each video, evenly spaced (default: %(default)s)"
    )
    parser.add_argument(
        "--pruner-ratio",
        type=float,
        metavar="R",
        help="leave out this share of each image's tokens, those most like others; above 0, below 1",
    )


def pruner_from(arguments: argparse.Namespace) -> Any:
    """The pruner's settings; None where the option is not given.

    :raises RequestError: the ratio is out of range.
    """
    from ..vision.pruner import VisualPrunerConfig

    if arguments.pruner_ratio is None:
        return None
    try:
        return VisualPrunerConfig(enabled=True, reduction_ratio=arguments.pruner_ratio)
    except RequestError:
        raise RequestError(
            f"--pruner-ratio is {arguments.pruner_ratio:g}; want a number above 0 and below 1."
        ) from None


def pruning_report(response: Any) -> dict[str, Any]:
    """What became of visual tokens, for the JSON report; empty where there were none and none were to be left out."""
    from ..vision.pruner import PruningOutcome

    report = response.pruning[0] if response.pruning else None
    if report is None or (not report.before and report.outcome is PruningOutcome.OFF):
        return {}
    return {"visual_pruning": {"outcome": report.outcome.value, "before": report.before, "after": report.after}}


def first_turn(arguments: argparse.Namespace, vision: Any) -> list[Any]:
    """The images and videos of the options, as parts of a message; ``vision`` is the runtime's, or None.

    A family that takes no videos gets the frames as images.

    :raises RequestError: a file cannot be read, or is no image or video.
    """
    parts: list[Any] = [_image(Path(name)) for name in arguments.image]
    for name in arguments.video:
        video = _video(Path(name), arguments.video_frames)
        parts += [video] if vision is None or vision.video_mark else list(video.frames)
    return parts


def media_report(prepared: Any) -> dict[str, Any]:
    """How many tokens each image and video took, for the JSON report; empty without any."""
    media = prepared.media[0] if prepared.media else None
    if media is None or not media.items:
        return {}
    counts = [
        {"kind": placed.item.kind, "tokens": len(placed.places), "grid": placed.item.grid} for placed in media.items
    ]
    return {"media": counts, "image_tokens": sum(media.token_counts)}


def _image(path: Path) -> Any:
    from ..vision.decode_compressed import decode_compressed

    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise RequestError(f"--image {path} cannot be read ({error.strerror}); check the path.") from None
    if len(content) > MOST_BYTES:
        raise RequestError(f"--image {path} has more than {MOST_BYTES} bytes; want a JPEG or PNG file.")
    try:
        return decode_compressed(path.suffix.lstrip("."), content)
    except RequestError as error:
        raise RequestError(f"--image {path}: {error}", error.code) from None


def _video(path: Path, count: int) -> Any:
    from ..vision.opencv import opencv
    from ..vision.processor import Video

    if not 1 <= count <= MOST_FRAMES:
        raise RequestError(f"--video-frames is {count}; want a whole number from 1 to {MOST_FRAMES}.")
    opencv()
    if not is_file(path):
        raise RequestError(f"--video {path} is no file; check the path.")
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # the sentence below is all that there is to say
    frames, total, rate = _sampled(path, count, None)
    if len(frames) != min(count, total):  # a header that says another number than there are
        frames, total, rate = _sampled(path, count, total)
    if not frames:
        raise RequestError(f"--video {path} has no frame that OpenCV reads; give another file.")
    times = [place / rate for place in _picked(len(frames), total)]
    return Video(frames, seconds_per_frame=total / rate / len(frames), times=times)


def _picked(count: int, total: int) -> list[int]:
    """``count`` of ``total`` frames, evenly spaced from the first to the last."""
    return [round(index * (total - 1) / max(count - 1, 1)) for index in range(count)]


def _sampled(path: Path, count: int, total: int | None) -> tuple[list[Any], int, float]:
    """``count`` frames of ``total`` (None: as many as the header says), how many there are of these, and their rate.

    :raises RequestError: frames too large, alone or together.
    """
    from ..vision.decode import MAX_PIXELS
    from ..vision.opencv import opencv

    cv2 = opencv()
    capture = cv2.VideoCapture(str(path))
    try:
        width, height = int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))
        if width * height > MAX_PIXELS:
            raise RequestError(
                f"--video {path} has frames of {width} by {height} pixels; want at most {MAX_PIXELS} in all."
            )
        if total is None:
            total = min(max(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0), LONGEST_VIDEO) or LONGEST_VIDEO
        count = min(count, total)
        if count * width * height > MOST_VIDEO_PIXELS:
            raise RequestError(
                f"{count} frames of {width} by {height} pixels of --video {path} are more than {MOST_VIDEO_PIXELS} "
                "pixels together; give fewer --video-frames, or a smaller video."
            )
        wanted = {*_picked(count, total)}
        frames, found = [], 0
        while found < total and capture.grab():
            if found in wanted:
                read, frame = capture.retrieve()
                if read:
                    frames.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
            found += 1
        rate = float(capture.get(cv2.CAP_PROP_FPS))
        return frames, found, rate if is_positive(rate) else 1.0
    finally:
        capture.release()

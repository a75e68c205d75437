"""Positions on three axes (time, row, column) for prompts with images and videos: Qwen2-VL, Qwen2.5-VL, Qwen3-VL.

Text advances all three axes together. An image or video that starts at s has (s + t, s + row, s + column) on its merged
grid, and the next token starts behind the largest position so far. So positions run behind the count of tokens, and
decoding continues at count + ``delta``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import RequestError

FARTHEST = (1 << 24) - 1  # position that a table of 32-bit numbers tells from its neighbours


@dataclass(frozen=True)
class MropePositions:
    """``positions`` int32 [3,n]; ``delta``: the next token's position on every axis is its index plus this."""

    positions: np.ndarray
    delta: int


@dataclass(frozen=True)
class MropeRule:
    """How one checkpoint counts.

    ``merge``: patches per token and side. ``tokens_per_second``: positions per second of video (Qwen2.5-VL); 0: one
    position per temporal patch. ``frames_apart``: the temporal patches of a video stand apart in the prompt, each
    behind its time, and count as one image each (Qwen3-VL).
    """

    image_token_id: int
    video_token_id: int | None = None
    merge: int = 2
    tokens_per_second: float = 0.0
    frames_apart: bool = False


def mrope_positions(
    token_ids: np.ndarray,
    rule: MropeRule,
    image_grids: np.ndarray | None = None,
    video_grids: np.ndarray | None = None,
    seconds_per_patch: Sequence[float] = (),
) -> MropePositions:
    """Positions of one prompt.

    ``token_ids`` [n] with every placeholder expanded; grids int64 [k,3] in the order in which the prompt has them;
    ``seconds_per_patch``: time that a temporal patch of each video spans, where the rule counts seconds.

    :raises RequestError: the prompt holds more or fewer image or video tokens than the grids make, or takes longer than
        positions reach.
    """
    length = len(token_ids)
    positions = np.empty((3, length), np.int32)
    images = _grids(image_grids, (), rule)
    videos = _videos(video_grids, seconds_per_patch, rule)
    next_position, index = 0, 0
    starts = [(int(start), "image", images) for start in np.flatnonzero(token_ids == rule.image_token_id)]
    if rule.video_token_id is not None:
        starts += [(int(start), "video", videos) for start in np.flatnonzero(token_ids == rule.video_token_id)]
    for start, kind, grids in sorted(starts, key=lambda entry: entry[0]):
        if start < index:
            continue  # within the image or video before
        text = start - index
        positions[:, index:start] = next_position + np.arange(text)
        next_position += text
        times, rows, columns, step = _next_grid(grids, kind)
        index = start + times * rows * columns
        if index > length or (token_ids[start:index] != token_ids[start]).any():
            raise RequestError(
                f"The prompt has fewer than {times * rows * columns} {kind} tokens from place {start} on, which a grid "
                f"of {times} by {rows} by {columns} needs; expand each mark by its placeholder."
            )
        axes = np.meshgrid(np.arange(times), np.arange(rows), np.arange(columns), indexing="ij")
        block = np.stack([(axes[0] * step).astype(np.int64), axes[1], axes[2]]).reshape(3, -1)
        positions[:, start:index] = next_position + block
        next_position += int(block.max()) + 1
    last = next_position + length - index
    if not last <= FARTHEST:
        raise RequestError(
            f"The positions of the prompt reach {last}; want at most {FARTHEST}: let less time pass between the frames "
            "of a video."
        )
    positions[:, index:] = next_position + np.arange(length - index)
    for kind, grids in (("image", images), ("video", videos)):
        left = sum(1 for _ in grids)
        if left:
            raise RequestError(f"{left} grids of the {kind}s have no tokens in the prompt; expand each mark.")
    return MropePositions(positions, last - length)


_Grid = tuple[int, int, int, float]  # temporal patches, merged rows and columns, positions per temporal patch


def _grids(grids: np.ndarray | None, steps: Sequence[float], rule: MropeRule) -> Iterator[_Grid]:
    for index, (times, rows, columns) in enumerate([] if grids is None else grids.tolist()):
        yield times, rows // rule.merge, columns // rule.merge, steps[index] if steps else 1.0


def _videos(grids: np.ndarray | None, seconds: Sequence[float], rule: MropeRule) -> Iterator[_Grid]:
    if grids is None:
        return iter(())
    if rule.frames_apart:
        grids = np.repeat(grids, grids[:, 0], axis=0)
        grids[:, 0] = 1
        return _grids(grids, (), rule)
    if not rule.tokens_per_second:
        return _grids(grids, (), rule)
    if len(seconds) != len(grids):
        raise RequestError(f"{len(grids)} videos came with {len(seconds)} times per patch; want one for each.")
    return _grids(grids, [rule.tokens_per_second * one for one in seconds], rule)


def _next_grid(grids: Iterator[_Grid], kind: str) -> _Grid:
    for grid in grids:
        return grid
    raise RequestError(f"The prompt has more {kind} tokens than its {kind}s make; give the grids of all {kind}s.")

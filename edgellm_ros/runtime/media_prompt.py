"""From the messages and ids of a prompt to what of it is more than ids: places of images, positions, blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..errors import RequestError
from ..vision.media import IMAGE, VIDEO, MediaItem, PlacedItem, PromptMedia
from ..vision.mrope import mrope_positions
from ..vision.runner import VisionRunner
from .cache_policy import CacheLookupPolicy, MediaSpan
from .media_marks import no_tower
from .request import Message, Request

TokenId = Callable[[str], int | None]


def place_media(request: Request, vision: VisionRunner | None) -> Request:
    """The request with every image and video of its messages processed and ready to stand in a prompt.

    :raises RequestError: one cannot be processed, or there is no tower for it.
    """
    if not any(message.has_media for message in request.messages):
        return request
    if vision is None:
        raise no_tower()
    return replace(request, messages=tuple(_placed(message, vision) for message in request.messages))


def _placed(message: Message, vision: VisionRunner) -> Message:
    parts = tuple(part if isinstance(part, str | MediaItem) else vision.place(part) for part in message.parts)
    return replace(message, parts=parts)


def prompt_media(
    messages: Sequence[Message], token_ids: Sequence[int], vision: VisionRunner | None, token_id: TokenId
) -> PromptMedia | None:
    """Where the media of a prompt lie in its ids; None where it has nothing beyond them.

    :raises RequestError: the ids hold more or fewer image tokens than the images make, or a number that is no id.
    """
    if vision is None:
        return None
    items = [item for message in messages for item in message.media]
    try:
        ids = np.asarray(token_ids, dtype=np.int64)
    except OverflowError:
        raise RequestError("the prompt holds an id of more than 63 bits; use ids of this engine's tokenizer.") from None
    places = _places(items, ids, token_id)
    placed = tuple(PlacedItem(item, place) for item, place in zip(items, places, strict=True))
    blocks = vision.blocks(places, len(ids))
    if not items:
        return PromptMedia(blocks=blocks) if blocks else None
    rule = vision.mrope_rule()
    if rule is None:
        return PromptMedia(placed, blocks=blocks)
    images, videos = ([item for item in items if item.kind == kind] for kind in (IMAGE, VIDEO))
    found = mrope_positions(
        ids,
        rule,
        np.array([item.grid for item in images], np.int64) if images else None,
        np.array([item.grid for item in videos], np.int64) if videos else None,
        [item.seconds_per_patch for item in videos],
    )
    return PromptMedia(placed, found.positions, found.delta, blocks)


def _places(items: Sequence[MediaItem], ids: np.ndarray, token_id: TokenId) -> list[np.ndarray]:
    """The index of each item's tokens, in order of the items."""
    left: dict[str, np.ndarray] = {}
    places = []
    for item in items:
        if item.token not in left:
            wanted = token_id(item.token)
            left[item.token] = np.flatnonzero(ids == wanted) if wanted is not None else np.empty(0, np.int64)
        found, left[item.token] = np.split(left[item.token], [item.token_count])
        if len(found) != item.token_count:
            raise RequestError(
                f"an image or video takes {item.token_count} tokens {item.token!r} and the prompt has {len(found)} "
                "left for it; expand each mark by its placeholder."
            )
        places.append(found.astype(np.int32))
    for token, rest in left.items():
        if len(rest):
            raise RequestError(
                f"the prompt has {len(rest)} tokens {token!r} more than its images and videos make; leave them out."
            )
    return places


def media_spans(media: PromptMedia | None) -> tuple[MediaSpan, ...]:
    """The same for prefix reuse: from the first to the last token of each item."""
    if media is None:
        return ()
    return tuple(MediaSpan(*placed.span, placed.digest) for placed in media.items)


def lookup_policy(media: PromptMedia | None) -> CacheLookupPolicy | None:
    """The only policy that a prompt allows; None where it allows all.

    Where text sees what follows it, equal beginnings of two prompts have unequal keys and values.
    """
    if media is None:
        return None
    covered = {(span.start, span.stop) for span in media_spans(media)}
    return CacheLookupPolicy.BYPASS if any(block not in covered for block in media.blocks) else None

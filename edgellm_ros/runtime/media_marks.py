"""Where images and videos stand in a prompt: found in what a chat template wrote, replaced by their placeholders.

A template that takes contents as lists of parts writes the family's own mark for each image; elsewhere the mark is put
where the caller put the image. Text of a user that looks like a mark is taken literally like any control token.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RefusalCode, RequestError
from ..vision.media import IMAGE, MediaItem
from .request import Message

_LISTS = re.compile(r"""\[\s*['"]type['"]\s*\]|\.type\b|\.get\(\s*['"]type['"]""")  # a template that looks into parts


@dataclass(frozen=True)
class MediaFormat:
    """The marks of a family; ``video_mark`` is None where it takes no videos.

    ``text_start``: in a prompt without a template images come first, then this, the text, and a new line (PaliGemma);
    empty: such a prompt is as it is given.
    """

    image_mark: str
    video_mark: str | None = None
    text_start: str = ""


def no_tower() -> RequestError:
    """What is said where an image meets a model that sees none."""
    return RequestError(
        "the prompt holds an image or a video, and this engine has no image tower; build that of a vision-language "
        "model.",
        RefusalCode.UNSUPPORTED,
    )


class MediaMarks:
    """The media of one conversation while it is rendered; ``template`` is its source, None where there is none.

    ``hide`` gives the private name of a text that a user wrote and that is to be taken literally.
    """

    def __init__(
        self,
        media_format: MediaFormat | None,
        messages: Sequence[Message],
        template: str | None,
        hide: Callable[[str], str],
    ) -> None:
        self._hide = hide
        self._format = media_format
        self._items = [item for message in messages for item in message.media]
        if media_format is None and any(message.has_media for message in messages):
            raise no_tower()
        self._as_lists = media_format is not None and template is not None and _LISTS.search(template) is not None
        self._behind = "" if template is None else "\n"  # as models with templates of plain text were trained
        self._private = f"zq{secrets.token_hex(12)}" if self._items else ""

    def content(self, message: Message, mark: Callable[[str, bool], str]) -> Any:
        """What a template gets as the content of a message: text, or a list of parts."""
        own = message.role == "assistant"
        marked = self._format

        def text(part: str) -> str:
            """A mark that is no control token would pass for the template's own."""
            shown = mark(part, own)
            for found in (marked.image_mark, marked.video_mark) if marked is not None else ():
                if found and found in shown:
                    shown = self._hide(found).join(shown.split(found))
            return shown

        if self._as_lists:
            parts = message.parts or ((message.content,) if message.content else ())
            return [
                {"type": "text", "text": text(part)} if isinstance(part, str) else {"type": part.kind}
                for part in parts
                if isinstance(part, str | MediaItem)
            ]
        if not message.media:
            return text(message.content)
        return "".join(
            text(part) if isinstance(part, str) else f"{self._private}{part.kind}z{self._behind}"
            for part in message.parts
            if isinstance(part, str | MediaItem)
        )

    def plain(self, text: str) -> str | None:
        """A prompt without a template in the form of a family that has one; None where it has none."""
        if self._format is None or not self._format.text_start:
            return None
        mark = f"{self._private}{IMAGE}z"
        count = text.count(mark) if self._private else 0
        return f"{mark * count}{self._format.text_start}{text.replace(mark, '') if count else text}\n"

    def expand(self, rendered: str) -> str:
        """The text with a placeholder for each mark.

        :raises RequestError: it has more or fewer marks than there are images and videos, or in another order.
        """
        if self._format is None or not self._items:
            return rendered
        marks = {IMAGE: self._format.image_mark, "video": self._format.video_mark or ""}
        for kind, text in marks.items():
            rendered = rendered.replace(f"{self._private}{kind}z", text)
        kinds = sorted((kind for kind in marks if marks[kind]), key=lambda kind: -len(marks[kind]))
        pattern = re.compile("|".join(f"(?P<{kind}>{re.escape(marks[kind])})" for kind in kinds))
        found = [match.lastgroup for match in pattern.finditer(rendered)]
        if found != [item.kind for item in self._items]:
            raise RequestError(
                f"the prompt as the template wrote it has the marks {found}, and {[item.kind for item in self._items]} "
                f"are given; leave texts such as {marks[IMAGE]!r} out of the messages, or check the chat template."
            )
        items = iter(self._items)
        return pattern.sub(lambda match: next(items).placeholder, rendered)

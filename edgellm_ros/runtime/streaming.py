"""Tokens on their way to a consumer: the channel, and bytes turned into text that is always valid.

Two buffers stand one after the other. The first holds the bytes of a character that is not complete yet, the second
holds text that could still become a stop string. Both are flushed, in that order, with the terminal chunk, so the
joined text of all chunks is the text of the response.
"""

from __future__ import annotations

import codecs
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import RefusalCode, RequestError
from ..json_values import shown
from .request import AnswerPart, FinishReason, TokenLogprob, ToolCall
from .request_checks import WHOLE_NUMBER

REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class StreamChunk:
    """A piece of one sequence's answer.

    ``text`` is valid UTF-8 without NUL. ``token_ids`` are the ids behind it (special tokens included), ``logprobs``
    has one entry per id when they were asked for. ``index`` counts the chunks of the channel from 0.
    ``prompt_token_count`` is the length of the whole prompt. ``part`` says what the text is: no chunk holds text of two
    parts; ``tool_calls`` are whole. Exactly one chunk has ``finished``, and it is the last.
    """

    token_ids: tuple[int, ...]
    text: str
    index: int
    finished: bool = False
    finish_reason: FinishReason = FinishReason.NOT_FINISHED
    prompt_token_count: int = 0
    logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
    part: AnswerPart = AnswerPart.ANSWER
    tool_calls: tuple[ToolCall, ...] = ()


class StreamChannel:
    """What one sequence's chunks travel through: one producer side, one consumer, one request, never used again.

    All methods may be called from any thread; the lock covers the queue and the flags. The thread that drives the
    runtime attaches and pushes, the consumer pops, anyone cancels.

    ``interval``: at least so many new tokens per chunk (the last one excepted). ``skip_special_tokens`` leaves
    control tokens out of ``text``; ids always carry them.
    """

    def __init__(self, interval: int = 1, skip_special_tokens: bool = True) -> None:
        self.skip_special_tokens = skip_special_tokens
        self.set_stream_interval(interval)
        self._condition = threading.Condition()
        self._queue: deque[StreamChunk] = deque()
        self._next_index = 0
        self._attached = False
        self._cancelled = False
        self._reason = FinishReason.NOT_FINISHED

    @property
    def interval(self) -> int:
        """Tokens that a chunk waits for."""
        return self._interval

    def set_stream_interval(self, interval: int) -> None:
        """Tokens that a chunk waits for; values below 1 mean 1.

        :raises RequestError: it is no whole number.
        """
        if not WHOLE_NUMBER.holds(interval):
            raise RequestError(f"the interval of a stream is {shown(interval)}; want {WHOLE_NUMBER.words}.")
        self._interval = max(1, interval)

    @property
    def attached(self) -> bool:
        """True once a request has used the channel; never False again."""
        return self._attached

    @property
    def cancelled(self) -> bool:
        """True once ``cancel`` was called."""
        return self._cancelled

    @property
    def finished(self) -> bool:
        """True once the terminal chunk is in the queue (or was taken from it)."""
        return self._reason is not FinishReason.NOT_FINISHED

    @property
    def reason(self) -> FinishReason:
        """Why the sequence ended; NOT_FINISHED until it has."""
        return self._reason

    def attach(self) -> None:
        """Claim the channel for a request.

        :raises RequestError: it belongs to a request already, or is finished.
        """
        with self._condition:
            self._check_usable()
            self._attached = True

    def check_usable(self) -> None:
        """:raises RequestError: the channel belongs to a request already, or is finished."""
        with self._condition:
            self._check_usable()

    def _check_usable(self) -> None:
        if self._attached or self.finished:
            state = "finished" if self.finished else "attached to a request"
            raise RequestError(
                f"a stream channel is already {state}; use a new channel for each request.", RefusalCode.BAD_CHANNEL
            )

    def cancel(self) -> None:
        """Ask that the sequence ends before its next step; calling it again changes nothing."""
        with self._condition:
            self._cancelled = True
            self._condition.notify_all()

    def push(
        self,
        token_ids: Sequence[int],
        text: str,
        prompt_token_count: int = 0,
        logprobs: Sequence[Sequence[TokenLogprob]] = (),
        reason: FinishReason = FinishReason.NOT_FINISHED,
        part: AnswerPart = AnswerPart.ANSWER,
        tool_calls: Sequence[ToolCall] = (),
    ) -> FinishReason:
        """Queue a chunk; one with a ``reason`` is the terminal one. After the terminal chunk nothing is queued.

        A cancellation that came before a natural end wins over it, so the reason that was recorded is returned.
        """
        with self._condition:
            if self.finished:
                return self._reason
            if self._cancelled and reason in _NATURAL_ENDS:
                reason = FinishReason.CANCELLED
            chunk = StreamChunk(
                tuple(token_ids),
                text,
                self._next_index,
                reason is not FinishReason.NOT_FINISHED,
                reason,
                prompt_token_count,
                tuple(tuple(candidates) for candidates in logprobs),
                part,
                tuple(tool_calls),
            )
            self._queue.append(chunk)
            self._next_index += 1
            self._reason = reason
            self._condition.notify_all()
            return reason

    def finish(self, reason: FinishReason, prompt_token_count: int = 0) -> FinishReason:
        """End the channel with an empty terminal chunk unless it has ended; the first reason stays and is returned."""
        return self.push((), "", prompt_token_count, (), reason)

    def try_pop(self) -> StreamChunk | None:
        """The next chunk if there is one."""
        with self._condition:
            return self._queue.popleft() if self._queue else None

    def wait_pop(self, timeout: float | None = None) -> StreamChunk | None:
        """The next chunk; waits up to ``timeout`` seconds (None: as long as one can still come).

        None after the timeout, when the terminal chunk was taken, and when the channel was cancelled before any
        request used it. A cancelled request still delivers its terminal chunk.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            while not self._queue:
                if self.finished or (self._cancelled and not self._attached):
                    return None
                remaining = None if end is None else end - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return None
                self._condition.wait(remaining)
            return self._queue.popleft()

    def __iter__(self) -> Iterator[StreamChunk]:
        """Chunks as they come, up to and including the terminal one."""
        while (chunk := self.wait_pop()) is not None:
            yield chunk


_NATURAL_ENDS = (FinishReason.END_ID, FinishReason.LENGTH, FinishReason.STOP_WORDS)


class TextStream:
    """Bytes of tokens in, text out: valid at every point, never a part of a stop string.

    The earliest position of any stop string ends the text; what follows it is dropped. Only text that can still
    become a stop string is held back.
    """

    def __init__(self, stop_strings: Sequence[str] = (), strip_leading_space: bool = False) -> None:
        self._stops = tuple(stop_strings)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._strip_leading_space = strip_leading_space
        self._ended = False
        self.stopped = False  # a stop string was found

    def feed(self, data: bytes) -> str:
        """The text that may be shown once these bytes have arrived."""
        if self._ended or not data:
            return ""
        return self._advance(self._clean(self._decoder.decode(data)))

    def finish(self) -> str:
        """The rest: held-back text, and one replacement character if the last character is incomplete."""
        if self._ended:
            return ""
        text = self._held + self._clean(self._decoder.decode(b"", True))
        self._held = ""
        self._ended = True
        return text

    def _clean(self, text: str) -> str:
        if self._strip_leading_space and text:
            self._strip_leading_space = False
            text = text.removeprefix(" ")
        # A NUL is valid UTF-8 but ends the string for every consumer written in C, ROS messages among them.
        return text.replace("\0", REPLACEMENT) if "\0" in text else text

    def _advance(self, text: str) -> str:
        if not self._stops:
            return text
        buffer = self._held + text
        found = [position for position in map(buffer.find, self._stops) if position >= 0]
        if found:
            self.stopped = True
            self._ended = True
            self._held = ""
            return buffer[: min(found)]
        keep = max(overlap(buffer, stop) for stop in self._stops)
        cut = len(buffer) - keep
        self._held = buffer[cut:]
        return buffer[:cut]


def overlap(text: str, pattern: str) -> int:
    """Length of the longest end of ``text`` that starts ``pattern`` without completing it."""
    for length in range(min(len(text), len(pattern) - 1), 0, -1):
        if text.endswith(pattern[:length]):
            return length
    return 0

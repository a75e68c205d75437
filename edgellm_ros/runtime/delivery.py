"""What the tokens of a sequence say, and what its consumer has been sent of it."""

from __future__ import annotations

from .boundary import SlotSeed
from .request import FinishReason, TokenLogprob
from .streaming import StreamChannel, TextStream
from .tokenizer import Tokenizer

_NOT_FINISHED = FinishReason.NOT_FINISHED


class Delivery:
    """Text and chunks of one sequence, from its first token to the terminal chunk, which comes exactly once.

    Text is read while it runs only where someone waits for it: a channel, or stop strings.
    """

    def __init__(self, seed: SlotSeed, tokenizer: Tokenizer) -> None:
        self._seed = seed
        self._tokenizer = tokenizer
        self.channel: StreamChannel | None = None
        self._text: TextStream | None = self._new_text() if seed.stop_strings else None
        self._parts: list[str] = []
        # A channel with another rule for special tokens reads the same bytes through a text pass of its own.
        self._channel_text: TextStream | None = None
        self._unsent_text = ""
        self._unsent_ids: list[int] = []
        self._unsent_logprobs: list[tuple[TokenLogprob, ...]] = []
        self._ended = False

    def _new_text(self) -> TextStream:
        return TextStream(self._seed.stop_strings, self._tokenizer.strips_leading_space)

    @property
    def text(self) -> str | None:
        """The answer so far, None where nobody waits for it."""
        return "".join(self._parts) if self._text is not None else None

    def attach(self) -> None:
        """Claim the stream channel; from here on a terminal chunk is owed.

        :raises RequestError: the channel is in use or finished.
        """
        channel = self._seed.stream_channel
        if channel is None:
            return
        channel.attach()
        self.channel = channel
        if self._text is None:
            self._text = self._new_text()
        if channel.skip_special_tokens != self._seed.skip_special_tokens:
            self._channel_text = self._new_text()

    def take(self, token_id: int, logprobs: tuple[TokenLogprob, ...]) -> bool:
        """Read one more token; True when the text ends here, at a stop string."""
        stream = self._text
        if stream is None:
            return False
        tokenizer = self._tokenizer
        text = stream.feed(tokenizer.token_bytes(token_id, self._seed.skip_special_tokens))
        if text:
            self._parts.append(text)
        channel = self.channel
        if channel is not None:
            if self._channel_text is not None:
                text = self._channel_text.feed(tokenizer.token_bytes(token_id, channel.skip_special_tokens))
            self._unsent_text += text
            self._unsent_ids.append(token_id)
            if self._seed.num_logprobs:
                self._unsent_logprobs.append(logprobs)
        return stream.stopped

    def emit(self) -> None:
        """Push a chunk where one is due: there is text, and the interval has passed."""
        channel = self.channel
        if channel is not None and self._unsent_text and len(self._unsent_ids) >= channel.interval:
            self._push(channel, _NOT_FINISHED)

    def finish(self, reason: FinishReason) -> FinishReason:
        """Push all the rest with the terminal chunk; the reason that was recorded. A second call does nothing."""
        if self._ended:
            return reason
        self._ended = True
        rest = ""
        if self._text is not None:
            rest = self._text.finish()
            self._parts.append(rest)
        if self.channel is None:
            return reason
        self._unsent_text += rest if self._channel_text is None else self._channel_text.finish()
        return self._push(self.channel, reason)

    def _push(self, channel: StreamChannel, reason: FinishReason) -> FinishReason:
        reason = channel.push(
            self._unsent_ids, self._unsent_text, len(self._seed.prompt_ids), self._unsent_logprobs, reason
        )
        self._unsent_ids, self._unsent_logprobs, self._unsent_text = [], [], ""
        return reason

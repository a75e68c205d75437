"""What the tokens of a sequence say, and what its consumer has been sent of it."""

from __future__ import annotations

from .answer_text import AnswerReader, AnswerRules, Piece, split_pieces
from .boundary import SlotSeed
from .request import AnswerPart, FinishReason, TokenLogprob, ToolCall
from .streaming import StreamChannel
from .tokenizer import Tokenizer

_NOT_FINISHED = FinishReason.NOT_FINISHED


class Delivery:
    """Text and chunks of one sequence, from its first token to the terminal chunk, which comes exactly once.

    Text is read while it runs only where someone waits for it: a channel, or stop strings.
    """

    def __init__(self, seed: SlotSeed, tokenizer: Tokenizer, rules: AnswerRules) -> None:
        self._seed = seed
        self._tokenizer = tokenizer
        self._rules = rules
        self.channel: StreamChannel | None = None
        self._reader: AnswerReader | None = self._new_reader(seed.skip_special_tokens) if seed.stop_strings else None
        self._pieces: list[Piece] = []
        # A channel with another rule for special tokens reads the same tokens by itself.
        self._channel_reader: AnswerReader | None = None
        self._unsent_part = AnswerPart.ANSWER
        self._unsent_text = ""
        self._unsent_calls: list[ToolCall] = []
        self._unsent_ids: list[int] = []
        self._unsent_logprobs: list[tuple[TokenLogprob, ...]] = []
        self._ended = False

    def _new_reader(self, skip_special_tokens: bool) -> AnswerReader:
        return AnswerReader(self._rules, self._tokenizer, skip_special_tokens, self._seed.stop_strings)

    def read(self) -> tuple[str | None, str, tuple[ToolCall, ...]]:
        """Answer, reasoning and calls so far; the answer is None where nobody waits for it."""
        return split_pieces(self._pieces) if self._reader is not None else (None, "", ())

    def attach(self) -> None:
        """Claim the stream channel; from here on a terminal chunk is owed.

        :raises RequestError: the channel is in use or finished.
        """
        channel = self._seed.stream_channel
        if channel is None:
            return
        channel.attach()
        self.channel = channel
        if self._reader is None:
            self._reader = self._new_reader(self._seed.skip_special_tokens)
        if channel.skip_special_tokens != self._seed.skip_special_tokens:
            self._channel_reader = self._new_reader(channel.skip_special_tokens)

    def take(self, token_id: int, logprobs: tuple[TokenLogprob, ...]) -> bool:
        """Read one more token; True when the text ends here, at a stop string."""
        reader = self._reader
        if reader is None:
            return False
        pieces = reader.feed(token_id)
        self._pieces += pieces
        channel = self.channel
        if channel is not None:
            self._keep(channel, pieces if self._channel_reader is None else self._channel_reader.feed(token_id))
            self._unsent_ids.append(token_id)
            if self._seed.num_logprobs:
                self._unsent_logprobs.append(logprobs)
        return reader.stopped

    def _keep(self, channel: StreamChannel, pieces: list[Piece]) -> None:
        """Hold pieces back for the next chunk; one of another part than what is held sends that on its way."""
        for piece in pieces:
            if piece.part is not self._unsent_part:
                if self._unsent_text or self._unsent_calls:
                    self._push(channel, _NOT_FINISHED)
                self._unsent_part = piece.part
            self._unsent_text += piece.text
            if piece.tool_call is not None:
                self._unsent_calls.append(piece.tool_call)

    def emit(self) -> None:
        """Push a chunk where one is due: there is something to say, and the interval has passed."""
        channel = self.channel
        waiting = self._unsent_text or self._unsent_calls
        if channel is not None and waiting and len(self._unsent_ids) >= channel.interval:
            self._push(channel, _NOT_FINISHED)

    def finish(self, reason: FinishReason) -> FinishReason:
        """Push all the rest with the terminal chunk; the reason that was recorded. A second call does nothing."""
        if self._ended:
            return reason
        self._ended = True
        rest = self._reader.finish() if self._reader is not None else []
        self._pieces += rest
        if self.channel is None:
            return reason
        self._keep(self.channel, rest if self._channel_reader is None else self._channel_reader.finish())
        return self._push(self.channel, reason)

    def _push(self, channel: StreamChannel, reason: FinishReason) -> FinishReason:
        reason = channel.push(
            self._unsent_ids, self._unsent_text, len(self._seed.prompt_ids), self._unsent_logprobs, reason,
            self._unsent_part, self._unsent_calls,
        )  # fmt: skip
        self._unsent_ids, self._unsent_logprobs, self._unsent_text, self._unsent_calls = [], [], "", []
        return reason

"""Ended sequences as a caller sees them."""

from __future__ import annotations

from collections.abc import Sequence as Items

from .boundary import BatchResult
from .request import FinishReason, LLMGenerationResponse
from .streaming import TextStream
from .tokenizer import Tokenizer


def append_result(
    response: LLMGenerationResponse, result: BatchResult, tokenizer: Tokenizer, stop_strings: Items[str] = ()
) -> None:
    """Add one sequence to a response; its text is read now where it was not while it ran."""
    text, reason = result.text, result.finish_reason
    if text is None:
        stream = TextStream(stop_strings, tokenizer.strips_leading_space)
        parts = [stream.feed(tokenizer.token_bytes(token, result.skip_special_tokens)) for token in result.output_ids]
        text = "".join([*parts, stream.finish()])
        if stream.stopped and reason in (FinishReason.END_ID, FinishReason.LENGTH):
            reason = FinishReason.STOP_WORDS
    response.output_ids.append(result.output_ids)
    response.output_texts.append(text)
    response.logprobs.append([list(candidates) for candidates in result.logprobs])
    response.finish_reasons.append(reason)
    response.input_token_counts.append(len(result.raw_input_ids))
    response.reused_token_counts.append(result.reused_length)
    response.times.append(result.times)
    response.messages.append(result.refusal.message if result.refusal else "")

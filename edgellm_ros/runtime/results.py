"""Ended sequences as a caller sees them."""

from __future__ import annotations

from collections.abc import Sequence as Items

from .answer_text import AnswerReader, split_pieces
from .boundary import BatchResult
from .request import FinishReason, LLMGenerationResponse
from .tokenizer import Tokenizer


def append_result(
    response: LLMGenerationResponse, result: BatchResult, tokenizer: Tokenizer, stop_strings: Items[str] = ()
) -> None:
    """Add one sequence to a response; its text is read now where it was not while it ran."""
    text, reasoning, calls, reason = result.text, result.reasoning, result.tool_calls, result.finish_reason
    if text is None:
        reader = AnswerReader(result.answer_rules, tokenizer, result.skip_special_tokens, stop_strings)
        read = [piece for token_id in result.output_ids for piece in reader.feed(token_id)]
        text, reasoning, calls = split_pieces([*read, *reader.finish()])
        if reader.stopped and reason in (FinishReason.END_ID, FinishReason.LENGTH):
            reason = FinishReason.STOP_WORDS
    response.output_ids.append(result.output_ids)
    response.output_texts.append(text)
    response.reasoning_texts.append(reasoning)
    response.tool_calls.append(list(calls))
    response.logprobs.append([list(candidates) for candidates in result.logprobs])
    response.finish_reasons.append(reason)
    response.input_token_counts.append(len(result.raw_input_ids))
    response.reused_token_counts.append(result.reused_length)
    response.pruning.append(result.pruning)
    response.times.append(result.times)
    response.messages.append(result.refusal.message if result.refusal else "")

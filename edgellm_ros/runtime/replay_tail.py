"""What a chat template tells about reuse: how much of a prompt the next turn repeats, where the system turn ends."""

from __future__ import annotations

from typing import Any

from ..errors import RequestError
from .request import LLMGenerationRequest
from .tokenizer import EncodedPrompt, Tokenizer

# An answer that says nothing and whose reasoning is a text that no conversation holds.
_PROBE = {"role": "assistant", "content": "", "reasoning_content": "zqreplaytailprobez"}


def template_options(request: LLMGenerationRequest) -> dict[str, Any]:
    """What a request says to ``encode_conversation`` whenever its conversation, or a part of it, is written.

    What it leaves to the template the template does not see.
    """
    options: dict[str, Any] = {"reasoning_effort": request.reasoning_effort} if request.reasoning_effort else {}
    if not request.parallel_tool_calls:
        options["parallel_tool_calls"] = False
    return {
        "enable_thinking": request.enable_thinking,
        "special_tokens": request.special_tokens,
        "tools": request.tools,
        "options": options,
    }


def derive_replay_tail(tokenizer: Tokenizer, request: LLMGenerationRequest, index: int, prompt: EncodedPrompt) -> int:
    """How many of a prompt's last tokens may read differently once an answer to it is part of the history.

    One more than the tokens that the conversation with an answer does not begin with. 0 where that cannot be found out:
    without a template, without the head of an answer in the prompt, or where the template refuses such an answer.
    """
    if not (request.apply_chat_template and request.add_generation_prompt):
        return 0
    try:
        history = tokenizer.encode_conversation(
            request.requests[index].messages,
            add_generation_prompt=False,
            **template_options(request),
            committed_turn=_PROBE,
        )
    except RequestError:
        return 0
    common = 0
    for one, other in zip(prompt.token_ids, history.token_ids, strict=False):
        if one != other:
            break
        common += 1
    return len(prompt.token_ids) - common + 1 if common else 0


def system_text(tokenizer: Tokenizer, request: LLMGenerationRequest, index: int, prompt: EncodedPrompt) -> str:
    """The system turn as the prompt begins with it; empty where the template does not set it apart."""
    system = [message for message in request.requests[index].messages[:1] if message.role == "system"]
    if not system:
        return ""
    try:
        text = tokenizer.encode_conversation(
            system,
            apply_chat_template=request.apply_chat_template,
            add_generation_prompt=False,
            **template_options(request),
        ).text
    except RequestError:
        return ""
    return text if prompt.text.startswith(text) else ""

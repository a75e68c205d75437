"""Write tiny_llama/: a random Llama of odd shape as transformers saves it, and what it answers.

    PYTHONPATH=. python test/reference/make_tiny_llama.py      (needs torch, transformers)

The shape is one that no published model has: head size unrelated to hidden size / heads, three query heads to one
key head, an untied head, a prime vocabulary and an intermediate size that no block of 32 divides. Weights are bf16 in
several shards. ``reference.json`` holds float32 logits for the configuration as saved and for other rotary scalings
laid over the same weights.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from reference_files import HERE, write
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 263
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "rms_norm_eps": 2e-6,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "bos_token_id": None,
    "eos_token_id": 258,
    "pad_token_id": 256,
}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 64},
}
PROMPTS = ([72, 101, 108, 108, 111, 44, 32, 119], [77], list(range(3, 250, 5)), [257, 117, 10, 104, 105, 258, 10])
TOKENS = 24
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Ids 0..255 are the bytes; three control tokens follow; the last ids stay unused, as in many checkpoints."""
    alphabet = {}
    for byte in range(256):
        alphabet[byte_character(byte)] = byte
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    control = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in control])
    return tokenizer


def byte_character(byte: int) -> str:
    """GPT-2's printable stand-in for a byte."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    if byte in printable:
        return chr(byte)
    return chr(256 + [value for value in range(256) if value not in printable].index(byte))


def answers(model: LlamaForCausalLM) -> list[dict[str, Any]]:
    """Greedy ids of each prompt, its smallest top-2 gap, and the logits after the prompt."""
    rows = []
    for prompt in PROMPTS:
        ids, gaps, first = list(prompt), [], []
        for _ in range(TOKENS):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
            best = torch.topk(logits, 2).values
            gaps.append(float(best[0] - best[1]))
            first = first or [round(value, 5) for value in logits.tolist()]
            ids.append(int(logits.argmax()))
        rows.append(
            {
                "input_ids": list(prompt),
                "output_ids": ids[len(prompt) :],
                "smallest_top2_gap": round(min(gaps), 6),
                "first_logits": first,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "tiny_llama")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.output, ignore_errors=True)
    arguments.output.mkdir(parents=True)
    torch.manual_seed(29)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Wide enough that attention is sharp and every layer, scale and rotation shows in the logits.
            weight.copy_(1 + 0.3 * torch.randn_like(weight) if "norm" in name else 0.22 * torch.randn_like(weight))
    model.to(torch.bfloat16).save_pretrained(arguments.output, max_shard_size="64KB")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(arguments.output)

    variants = []
    saved = json.loads((arguments.output / "config.json").read_text(encoding="utf-8"))
    for name, rope in ROPES.items():
        config = LlamaConfig(**{**saved, "rope_parameters": rope})
        variant = LlamaForCausalLM.from_pretrained(arguments.output, config=config, dtype=torch.float32).eval()
        with torch.inference_mode():
            rows = answers(variant)
        variants.append({"name": name, "rope_parameters": rope, "answers": rows})
        print(name, [row["smallest_top2_gap"] for row in rows], rows[0]["output_ids"][:8])
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    write(arguments.output / "reference.json", {"made_with": versions, "tokens": TOKENS, "variants": variants})


if __name__ == "__main__":
    main()

"""Small tokenizers of the usual kinds, trained on a few sentences, and chat templates of the usual shapes."""

from __future__ import annotations

import json

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = [
    "The robot lifts the red cube and puts it on the shelf.",
    "Der Roboter hebt den roten Würfel auf.  Two  spaces\tand a tab\n\nnewlines",
    "Le robot prend le cube rouge, système d'exploitation",
    "世界 こんにちは 삼겹살 ďábelské é e\u0301x",
    'system user assistant im_start im_end <b> [INST] | json {"a": 1}',
]

CHATML_TOKENS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def byte_level(control=(), markers=(), **flags) -> str:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if flags.pop("nfc", False):
        tokenizer.normalizer = normalizers.NFKC()
    tokenizer.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False),
    )
    tokenizer.add_special_tokens([AddedToken(text, **{"normalized": False, **flags}) for text in control])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in markers])
    return tokenizer.to_str()


def sentencepiece(control=("<unk>", "<s>", "</s>"), *, scheme: str = "first", legacy: bool = False, extra=()) -> str:
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if legacy:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=600, special_tokens=[*control, *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
        ),
    )
    strip = [] if scheme == "never" and not legacy else [decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    content = json.loads(tokenizer.to_str())
    # Byte tokens are vocabulary, not added tokens, in models' files.
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in extra])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer.to_str()


def unigram(extra=("<start_of_turn>", "<end_of_turn>")) -> str:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    tokenizer.train_from_iterator(
        SENTENCES * 4,
        trainers.UnigramTrainer(
            vocab_size=150, special_tokens=["<unk>", "<s>", "</s>", *extra], unk_token="<unk>", show_progress=False
        ),
    )
    return tokenizer.to_str()


CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
THINKING = (
    "{%- for message in messages %}{%- set content = message.content %}"
    "{%- if message.role == 'assistant' and '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
INSTRUCTION = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'user' %}{{ '[INST] ' + message.content | trim + ' [/INST]' }}"
    "{% elif message.role == 'assistant' %}{{ ' ' + message.content + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)
TURNS = (
    "{{ bos_token }}{% generation %}{% for message in messages %}{% if message.content == 'skip me' %}{% continue %}"
    "{% endif %}<start_of_turn>{{ message.role | replace('assistant', 'model') }}\n{{ message.content | trim }}"
    "<end_of_turn>\n{% endfor %}{% endgeneration %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{{ message.content | tojson }}{{ '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
HEADER_TOKENS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]

# name -> (definition, template, names of bos and eos)
CASES = {
    "chatml": (byte_level(CHATML_TOKENS), CHATML, {"eos_token": "<|im_end|>"}),
    "thinking": (byte_level(CHATML_TOKENS, ["<think>", "</think>"]), THINKING, {"eos_token": "<|im_end|>"}),
    "normalised": (byte_level(CHATML_TOKENS, nfc=True, normalized=True), CHATML, {"eos_token": "<|im_end|>"}),
    "trailing_space": (byte_level(CHATML_TOKENS, rstrip=True), CHATML, {"eos_token": "<|im_end|>"}),
    "headers": (byte_level(HEADER_TOKENS), HEADERS, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}),
    "instruction": (sentencepiece(), INSTRUCTION, {"bos_token": "<s>", "eos_token": "</s>"}),
    "instruction_legacy": (
        sentencepiece(legacy=True), INSTRUCTION, {"bos_token": "<s>", "eos_token": {"content": "</s>"}},
    ),
    "turns": (
        sentencepiece(scheme="never", extra=["<start_of_turn>", "<end_of_turn>"]), TURNS, {"bos_token": "<s>"},
    ),
    "unigram_turns": (unigram(), TURNS, {"bos_token": "<s>"}),
}  # fmt: skip

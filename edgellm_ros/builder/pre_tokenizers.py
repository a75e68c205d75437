"""How byte-level tokenizers cut a text before they merge, by the name that llama.cpp gives each way.

The names are those of ``tokenizer.ggml.pre``. A way is a row of patterns, each of which splits the pieces that the one
before it left. The patterns are those that the models' own ``tokenizer.json`` files have.
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_THREE_DIGITS = r"\p{N}{1,3}"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_PUNCTUATION_BUT_GRAVE = r"[\p{P}\$\+<=>\^~\|]+"


def _words(digits: str, marks: str = "") -> str:
    """Contractions, words with one sign before them, ``digits``, signs with line ends behind them."""
    return (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}{marks}]+|{digits}| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|"
        + _SPACES
    )


def _cased_words(digits: str, endings: str) -> str:
    """Words cut where small letters end; ``endings`` may follow a word."""
    upper, lower = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}[{upper}]*[{lower}]+{endings}|{before}[{upper}]+[{lower}]*{endings}|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
    )


_LLAMA3, _QWEN2 = _words(_THREE_DIGITS), _words(_DIGIT)
_DEEPSEEK3 = (
    _THREE_DIGITS,
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _SPACES,
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}]+", _DIGIT)


@dataclass(frozen=True)
class PreTokenizer:
    """``patterns`` in order; ``ignore_merges``: a piece that is a token is taken whole, whatever the merges say.

    ``add_bos`` is what holds where a file does not say whether a text begins with a token of its own.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_BY_WAY: dict[PreTokenizer, tuple[str, ...]] = {
    PreTokenizer((_PUNCTUATION_BUT_GRAVE, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): ("default",),
    PreTokenizer((_GPT2,)): (
        "gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "modern-bert", "mpt", "olmo", "jais", "trillion", "exaone4",
        "granite-docling",
    ),
    PreTokenizer((_DIGIT, _GPT2)): (
        "starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2",
    ),
    PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True): (
        "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    ),
    PreTokenizer((_LLAMA3,), ignore_merges=True): ("glm4", "glm5"),
    PreTokenizer((_LLAMA3,)): ("dbrx", "smaug-bpe", "chatglm-bpe"),
    PreTokenizer((_QWEN2,)): (
        "qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2",
    ),
    PreTokenizer((_words(_DIGIT, r"\p{M}"),)): ("qwen35",),
    PreTokenizer((_cased_words(_DIGIT, ""),), ignore_merges=True, add_bos=True): ("tekken",),
    PreTokenizer((_cased_words(_THREE_DIGITS, _CONTRACTIONS + "?"),)): ("gpt-4o", "llama4", "kanana2"),
    PreTokenizer(_DEEPSEEK3): ("deepseek-v3", "hunyuan-dense"),
    PreTokenizer(_DEEPSEEK_CODER): ("deepseek-coder",),
    PreTokenizer((_PUNCTUATION, _GPT2, "[0-9][0-9][0-9]")): ("falcon",),
}  # fmt: skip

PRE_TOKENIZERS = {name: way for way, names in _BY_WAY.items() for name in names}

"""What a soak asks for: each kind makes a random request. Whatever else the runtime learns becomes one more row."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runtime_helpers import item, request

from edgellm_ros.runtime.cache_policy import CacheCommitPolicy, CacheLookupPolicy
from edgellm_ros.runtime.guide_grammar import Guide
from edgellm_ros.runtime.request import LLMGenerationRequest, Message, Request, SamplingParameters

WORDS = (
    "pick",
    "place",
    "the",
    "red",
    "cube",
    "on",
    "table",
    "left",
    "right",
    "arm",
    "home",
    "see",
    "what",
    "is",
    "open",
)


@dataclass(frozen=True)
class Asked:
    """One request: fields of its sequence and of the batch; made anew for every submission."""

    kind: str
    sequence: dict[str, Any] = field(default_factory=dict)
    batch: dict[str, Any] = field(default_factory=dict)
    text: str = "hi"
    system: str = ""

    def make(self) -> LLMGenerationRequest:
        if not self.system:
            return request(item(self.text, **self.sequence), **self.batch)
        turns = (Message("system", self.system), Message("user", self.text))
        return request(Request(turns, **self.sequence), **self.batch)


def some_text(generator: random.Random, most: int = 12) -> str:
    return " ".join(generator.choices(WORDS, k=generator.randrange(1, most)))


def length(generator: random.Random) -> int:
    return generator.choice((1, 2, 5, 12, 30))


def greedy(generator: random.Random) -> Asked:
    return Asked("greedy", {"max_generate_length": length(generator)}, text=some_text(generator))


def drawn(generator: random.Random) -> Asked:
    sampling = SamplingParameters(
        temperature=generator.uniform(0.5, 2), top_k=generator.choice((0, 20)), top_p=generator.choice((0.9, 1.0)),
        repetition_penalty=generator.choice((1.0, 1.2)), presence_penalty=generator.choice((0.0, 0.4)),
    )  # fmt: skip
    own = {"sampling": sampling, "sampling_seed": generator.randrange(1 << 40), "max_generate_length": 20}
    return Asked("drawn", own, text=some_text(generator))


def stopped(generator: random.Random) -> Asked:
    stops = tuple(generator.sample(["e", "th", "a ", "st", " o", "zz"], 2))
    return Asked("stopped", {"stop_strings": stops, "max_generate_length": 40}, text=some_text(generator))


def biased(generator: random.Random) -> Asked:
    bias = {generator.randrange(97, 123): generator.choice((-100.0, 4.0)) for _ in range(3)}
    return Asked("biased", {"logit_bias": bias, "max_generate_length": 15}, text=some_text(generator))


def explained(generator: random.Random) -> Asked:
    return Asked("explained", {"max_generate_length": 8}, {"num_logprobs": generator.randrange(1, 6)})


def long_prompt(generator: random.Random) -> Asked:
    return Asked("long_prompt", {"max_generate_length": 6}, text=some_text(generator, 60))


def shared_system(generator: random.Random) -> Asked:
    """Many begin alike: what the context cache is for."""
    system = generator.choice(
        ("You move a robot's arm with care. " * 4, "You look at a table and say what is there. " * 3)
    )
    return Asked("shared_system", {"max_generate_length": 10}, text=some_text(generator, 4), system=system)


def bypassing(generator: random.Random) -> Asked:
    batch = {
        "context_cache_lookup_policy": CacheLookupPolicy.BYPASS,
        "context_cache_commit_policy": CacheCommitPolicy.PREFILL_STATE_ONLY,
    }
    return Asked("bypassing", {"max_generate_length": 7}, batch, some_text(generator), "You move a robot's arm. " * 4)


def guided(generator: random.Random) -> Asked:
    schema = {"type": "object", "properties": {"to": {"enum": ["left", "right"]}, "mm": {"type": "integer"}},
              "required": ["to", "mm"], "additionalProperties": False}  # fmt: skip
    guide = generator.choice(
        (Guide.choice("open", "close", "hold still"), Guide.json_schema(schema), Guide("regex", "[a-c]{2,9} [0-9]{3}"))
    )
    sampling = SamplingParameters(temperature=1.2)
    own = {"guided_decoding": guide, "sampling": sampling, "sampling_seed": generator.randrange(1 << 20),
           "max_generate_length": generator.choice((8, 60))}  # fmt: skip
    return Asked("guided", own, text=some_text(generator))


def thinking(generator: random.Random) -> Asked:
    return Asked("thinking", {"max_generate_length": 12, "ignore_eos": True}, {"enable_thinking": True})


def with_special_tokens(generator: random.Random) -> Asked:
    return Asked("with_special_tokens", {"max_generate_length": 40}, {"skip_special_tokens": False})


def adapted(generator: random.Random) -> Asked:
    """With one of the adapters that the runtime was given, or none; each sequence its own."""
    own = {
        "lora_weights_name": generator.choice(ADAPTERS),
        "sampling": generator.choice((None, SamplingParameters(temperature=0.9, top_k=40))),
        "sampling_seed": generator.randrange(1 << 20),
        "max_generate_length": generator.choice((3, 8, 14)),
        "ignore_eos": True,
    }
    return Asked("adapted", own, text=some_text(generator, 5))


ADAPTERS = ("", "grasp", "speak", "watch")

Kinds = tuple[Callable[[random.Random], Asked], ...]

ON_ANY_ENGINE: Kinds = (adapted, greedy, drawn, adapted, stopped, explained, adapted, long_prompt, shared_system)
KINDS: Kinds = (
    greedy, drawn, stopped, biased, explained, long_prompt, shared_system, bypassing, thinking, with_special_tokens,
    *((guided,) if importlib.util.find_spec("llguidance") else ()),
)  # fmt: skip

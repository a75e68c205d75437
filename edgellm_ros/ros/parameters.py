"""A frozen copy of all parameters: what one request, or one configuration, is run with."""

from __future__ import annotations

import dataclasses
import functools
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from ..runtime.guide_grammar import Guide, GuideKind
from ..runtime.request import SamplingParameters, SpecialTokenPolicy
from .parameter_schema import ParameterEffect, Value, schema

if TYPE_CHECKING:
    from ..vision.pruner import VisualPrunerConfig

_Group = TypeVar("_Group")


@dataclass(frozen=True)
class EngineSettings:
    """``engine.*``: read when the node is configured. Times in s, memory in MB."""

    directory: str
    backend: str
    threads: int
    warmup: bool
    memory_reserve_mb: int
    step_timeout: float


@dataclass(frozen=True)
class CacheSettings:
    """``cache.*``: read when the node is configured. Memory in MB."""

    enabled: bool
    budget_mb: int


@dataclass(frozen=True)
class GenerationSettings:
    """``generation.*``; timeout in s."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop: tuple[str, ...]
    system_prompt: str
    enable_thinking: bool
    timeout: float

    @property
    def sampling(self) -> SamplingParameters:
        """The same for the runtime."""
        return SamplingParameters(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
        )

    def draw_seed(self) -> int:
        """The seed to use: the parameter's, or a fresh one where that is -1."""
        return secrets.randbelow(1 << 31) if self.seed < 0 else self.seed


@dataclass(frozen=True)
class GuideSettings:
    """``guide.*``."""

    kind: str
    text: str

    @property
    def guide(self) -> Guide | None:
        """The same for the runtime; None where answers are free.

        :raises RequestError: kind and text do not go together.
        """
        return None if self.kind == "none" else Guide(GuideKind(self.kind), self.text)


@dataclass(frozen=True)
class PromptSettings:
    """``prompt.*``."""

    max_characters: int
    overflow: str
    special_tokens: str
    on_busy: str
    queue_size: int
    history_turns: int

    @property
    def special_token_policy(self) -> SpecialTokenPolicy:
        """What control tokens in a prompt mean."""
        return SpecialTokenPolicy(self.special_tokens)


@dataclass(frozen=True)
class ImageSettings:
    """``images.*``: transport and stamp source are read when the node is configured. Times in s."""

    transport: tuple[str, ...]
    stamp_source: str
    max_age: float
    sync_slop: float
    on_missing: str
    max_pixels: int


@dataclass(frozen=True)
class PrunerSettings:
    """``visual_pruner.*``."""

    enabled: bool
    algorithm: str
    reduction_ratio: float
    min_visual_tokens: int
    pivot_image_tokens: int
    pivot_text_tokens: int
    allow_with_actions: bool

    @property
    def config(self) -> VisualPrunerConfig:
        """The same for the runtime.

        :raises RequestError: values that do not go together.
        """
        from ..vision.pruner import VisualPrunerConfig

        values = dataclasses.asdict(self)
        del values["allow_with_actions"]
        return VisualPrunerConfig(**values)


@dataclass(frozen=True)
class ActionSettings:
    """``action.*``: joint names are read when the node is configured. Times in s, rate in Hz."""

    on_prompt: str
    noise_seed: int
    noise_mode: str
    denoise_steps: int
    joint_names: tuple[str, ...]
    rate: float
    pairing: str
    splice: str
    blend_steps: int
    execute_steps: int
    stamp: str
    fixed_delay: float


@dataclass(frozen=True)
class SafetySettings:
    """``safety.*``: limits hold one number for each dimension of an action, in its unit, or none. Times in s."""

    max_state_age: float
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    max_step: tuple[float, ...]
    on_fault: str


@dataclass(frozen=True)
class StreamSettings:
    """``stream.*``; interval in s."""

    min_interval: float


@dataclass(frozen=True)
class ReportSettings:
    """``report.*``."""

    include_text: bool


@dataclass(frozen=True)
class FakeSettings:
    """``fake.*``: the script of the fake backend; latency in s."""

    answer: str
    step_latency: float
    fault: str
    fault_step: int


@dataclass(frozen=True)
class Settings:
    """One value for every parameter."""

    autostart: bool
    cameras: tuple[str, ...]
    engine: EngineSettings
    cache: CacheSettings
    generation: GenerationSettings
    guide: GuideSettings
    prompt: PromptSettings
    action: ActionSettings
    safety: SafetySettings
    images: ImageSettings
    visual_pruner: PrunerSettings
    stream: StreamSettings
    report: ReportSettings
    fake: FakeSettings

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Settings:
        """A snapshot from values by dotted name; names that are absent take their default.

        :raises ValueError: an unknown name, or a value that its parameter refuses.
        """
        definitions = schema().by_name
        for name in values:
            if name not in definitions:
                raise ValueError(f"{name} is not a parameter of this node.")
        converted = {
            name: definition.convert(values[name]) if name in values else definition.default
            for name, definition in definitions.items()
        }
        return _build(cls, "", converted)

    def values(self) -> dict[str, Value]:
        """Value by dotted name; ``from_values`` gives an equal object back."""
        return dict(_flatten("", self))

    def changed(self) -> dict[str, Value]:
        """Values of a request that differ from the default, by dotted name: what its report repeats."""
        definitions = schema().by_name
        return {
            name: value
            for name, value in self.values().items()
            if definitions[name].effect is ParameterEffect.REQUEST and value != definitions[name].default
        }


@functools.cache
def _hints(group: Any) -> dict[str, Any]:
    return get_type_hints(group)


def _build(group: Callable[..., _Group], prefix: str, values: Mapping[str, Value]) -> _Group:
    arguments: dict[str, Any] = {}
    for name, kind in _hints(group).items():
        nested = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        arguments[name] = _build(kind, f"{prefix}{name}.", values) if nested else values[f"{prefix}{name}"]
    return group(**arguments)


def _flatten(prefix: str, group: Any) -> list[tuple[str, Value]]:
    found: list[tuple[str, Value]] = []
    for entry in dataclasses.fields(group):
        value = getattr(group, entry.name)
        if dataclasses.is_dataclass(value):
            found.extend(_flatten(f"{prefix}{entry.name}.", value))
        else:
            found.append((f"{prefix}{entry.name}", value))
    return found

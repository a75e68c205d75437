"""What a family is: the names of its architectures, and how its configuration becomes a ``DecoderConfig``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...engine_format import RopeConfig
from ...errors import CheckpointError


@dataclass(frozen=True)
class LayerPlan:
    """How one layer attends: ``rope`` names its rope kind (None: positions are not rotated into it), ``window`` is
    the number of keys that a query sees, itself included (0: all before it).
    """

    rope: str | None
    window: int = 0


@dataclass(frozen=True)
class DecoderConfig:
    """A decoder as data, read from a checkpoint and checked against itself."""

    family: str
    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    norm_epsilon: float
    rope: Mapping[str, RopeConfig]
    layers: tuple[LayerPlan, ...]
    max_position_embeddings: int
    tied: bool
    attention_scale: float
    attention_softcap: float = 0.0  # scores become cap * tanh(scores / cap); 0: they stay
    logit_softcap: float = 0.0
    activation: str = "silu"  # or gelu_tanh
    query_key_value_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    query_key_norm: bool = False
    sandwich_norms: bool = False  # what attention and MLP give is normalised too, before it is added
    norm_offset: float = 0.0  # norms multiply by offset + weight
    embedding_scale: float = 1.0
    blocks: bool = False  # tokens of an image, or of the prompt, see each other in both directions
    deepstack: int = 0  # planes of an image that are added behind as many of the first layers
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"config.json: num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}."
            )
        for key in ("bos_token_id", "pad_token_id"):
            token = getattr(self, key)
            if token is not None and not 0 <= token < self.vocab_size:
                raise CheckpointError(f"config.json: {key} is {token}; want an id below {self.vocab_size}.")

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def kv_layers(self) -> tuple[tuple[int, int], ...]:
        """(num_kv_heads, head_dim) of each layer."""
        return ((self.num_key_value_heads, self.head_dim),) * self.num_hidden_layers

    @property
    def window(self) -> int:
        """The window of the layers that have one; 0 where none has."""
        return max((layer.window for layer in self.layers), default=0)


@dataclass(frozen=True)
class Family:
    """A group of models with one way to read their configuration; the graph is that of ``families.decoder``.

    ``parse`` raises CheckpointError where a value is missing, out of range, or of a kind that is not built.
    """

    name: str
    architectures: tuple[str, ...]  # as ``architectures`` of config.json has them
    parse: Callable[[Mapping[str, Any]], DecoderConfig]

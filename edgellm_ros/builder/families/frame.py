"""What every family reads from its configuration in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...engine_format import RopeConfig
from ...errors import CheckpointError
from .base import DecoderConfig, LayerPlan
from .config_values import MOST_HEADS, MOST_LAYERS, WIDEST_HEAD, layer_list, require, switch, token_id, whole_number
from .rope_kinds import FULL, SLIDING

QUANTISATIONS = ("quantization_config", "quantization", "compression_config")


def _refuse_unknown_kinds(config: Mapping[str, Any]) -> None:
    """:raises CheckpointError: a key says that the weights or the layers are of a kind that is not built."""
    for key in QUANTISATIONS:
        value = config.get(key)
        if value is not None:
            method = value
            if isinstance(value, Mapping):
                method = value.get("quant_method", f"{value.get('bits', 'unknown')} bits")
            raise CheckpointError(
                f"config.json has a {key} (method {method!r}); want weights that are not quantised: fetch the "
                "checkpoint that this one was made from, and let the build quantise it."
            )
    require(config, "rope_interleaved", False, "the halves of a head are rotated, not its even and odd values")
    require(config, "use_bidirectional_attention", False, "a query sees only what stands before it")
    require(config, "use_mrope", False, "a text model has one position for each token")
    require(config, "draft_vocab_size", config.get("vocab_size"), "a draft head cannot answer without its base model")


class Frame:
    """Dimensions of a decoder; ``config`` holds the family's defaults where the file lacks a key.

    :raises CheckpointError: a value is missing, out of range, or says that the model is of a kind that is not built.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        _refuse_unknown_kinds(config)
        self.config = config
        self.hidden_size = whole_number(config, "hidden_size")
        self.heads = whole_number(config, "num_attention_heads", largest=MOST_HEADS)
        self.head_dim = whole_number(config, "head_dim", self.hidden_size // self.heads or None, largest=WIDEST_HEAD)
        self.layers = whole_number(config, "num_hidden_layers", largest=MOST_LAYERS)
        self.maximum = whole_number(config, "max_position_embeddings", 2048)

    def layer_types(self) -> list[str] | None:
        """The layer types that the file lists, or None."""
        return layer_list(self.config, "layer_types", self.layers, (FULL, SLIDING))

    def sliding_window(self) -> int:
        """Keys that a query of a sliding layer sees; 0 where the file has no window, or one that nothing outgrows."""
        if self.config.get("sliding_window") is None:
            return 0
        window = whole_number(self.config, "sliding_window")
        return window if window < self.maximum else 0

    def decoder(
        self,
        family: str,
        rope: Mapping[str, RopeConfig],
        layers: list[LayerPlan],
        *,
        norm_epsilon: float,
        **traits: Any,
    ) -> DecoderConfig:
        """The configuration whole; ``traits`` are what the family adds, ``rope`` may have kinds that no layer uses."""
        config = self.config
        used = {plan.rope for plan in layers}
        window = max((plan.window for plan in layers), default=0)
        extra: dict[str, Any] = dict(traits.pop("extra", {}))
        if window:
            extra["sliding_window"] = window
            extra["layer_types"] = [SLIDING if plan.window else FULL for plan in layers]
        return DecoderConfig(
            family=family,
            name=str(config.get("_name_or_path") or config.get("model_type") or family),
            vocab_size=whole_number(config, "vocab_size"),
            hidden_size=self.hidden_size,
            intermediate_size=whole_number(config, "intermediate_size"),
            num_attention_heads=self.heads,
            num_key_value_heads=whole_number(config, "num_key_value_heads", self.heads, largest=MOST_HEADS),
            head_dim=self.head_dim,
            norm_epsilon=norm_epsilon,
            rope={kind: value for kind, value in rope.items() if kind in used},
            layers=tuple(layers),
            max_position_embeddings=self.maximum,
            tied=switch(config, "tie_word_embeddings", False),
            attention_scale=traits.pop("attention_scale", self.head_dim**-0.5),
            bos_token_id=token_id(config, "bos_token_id"),
            pad_token_id=token_id(config, "pad_token_id"),
            extra=extra,
            **traits,
        )

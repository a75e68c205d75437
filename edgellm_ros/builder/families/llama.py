"""Llama and what shares its layers to the letter: SmolLM, SmolLM2, Llama 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import CheckpointError
from ..graph import AttentionShape, Graph, Value
from ..rope import resolve_rope
from ..weights import Weight, stack_rows
from .base import (
    MOST_HEADS,
    MOST_LAYERS,
    WIDEST_HEAD,
    DecoderConfig,
    real_number,
    rope_settings,
    switch,
    token_id,
    whole_number,
)

ROPE = "default"
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


class LlamaFamily:
    """See the module."""

    architectures: tuple[str, ...] = ("LlamaForCausalLM",)

    def parse(self, config: Mapping[str, Any]) -> DecoderConfig:
        """See ``Family``."""
        activation = config.get("hidden_act", "silu")
        if activation != "silu":
            raise CheckpointError(f"config.json: hidden_act is {activation!r}; want 'silu' for this architecture.")
        if config.get("partial_rotary_factor", 1.0) not in (1.0, None):
            raise CheckpointError(
                f"config.json: partial_rotary_factor is {config['partial_rotary_factor']!r}; want 1.0."
            )
        hidden_size = whole_number(config, "hidden_size")
        heads = whole_number(config, "num_attention_heads", largest=MOST_HEADS)
        head_dim = whole_number(config, "head_dim", hidden_size // heads or None, largest=WIDEST_HEAD)
        maximum = whole_number(config, "max_position_embeddings", 2048)
        base, scaling = rope_settings(config)
        return DecoderConfig(
            family="llama",
            name=str(config.get("_name_or_path") or config.get("model_type") or "llama"),
            vocab_size=whole_number(config, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=whole_number(config, "intermediate_size"),
            num_hidden_layers=whole_number(config, "num_hidden_layers", largest=MOST_LAYERS),
            num_attention_heads=heads,
            num_key_value_heads=whole_number(config, "num_key_value_heads", heads, largest=MOST_HEADS),
            head_dim=head_dim,
            norm_epsilon=real_number(config, "rms_norm_eps", 1e-6),
            rope={ROPE: resolve_rope(base, head_dim, maximum, scaling)},
            max_position_embeddings=maximum,
            tied=switch(config, "tie_word_embeddings", False),
            attention_bias=switch(config, "attention_bias", False),
            mlp_bias=switch(config, "mlp_bias", False),
            bos_token_id=token_id(config, "bos_token_id"),
            pad_token_id=token_id(config, "pad_token_id"),
        )

    def tensors(self, config: DecoderConfig) -> Mapping[str, tuple[int, ...]]:
        """See ``Family``."""
        hidden, inner = config.hidden_size, config.intermediate_size
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        matrices = {
            "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
        for layer in range(config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            for norm in ("input_layernorm", "post_attention_layernorm"):
                shapes[f"{prefix}{norm}.weight"] = (hidden,)
            for name, shape in matrices.items():
                shapes[f"{prefix}{name}.weight"] = shape
                if config.attention_bias if name.startswith("self_attn") else config.mlp_bias:
                    shapes[f"{prefix}{name}.bias"] = shape[:1]
        shapes["model.norm.weight"] = (hidden,)
        if not config.tied:
            shapes[HEAD] = (config.vocab_size, hidden)
        return shapes

    def ignores(self, config: DecoderConfig, name: str) -> bool:
        """See ``Family``: rotary buffers of old checkpoints, and the second name of a tied head."""
        return name.endswith("rotary_emb.inv_freq") or (config.tied and name == HEAD)

    def build(self, graph: Graph, config: DecoderConfig, weights: Mapping[str, Weight]) -> None:
        """See ``Family``."""
        tables = {kind: len(rope.inverse_frequency) for kind, rope in config.rope.items()}
        x = graph.lowering.declare_inputs(graph, config.hidden_size, tables)
        for layer in range(config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            normal = graph.rms_norm(x, weights[f"{prefix}input_layernorm.weight"], config.norm_epsilon)
            x = graph.add(x, self._attention(graph, config, weights, layer, normal))
            normal = graph.rms_norm(x, weights[f"{prefix}post_attention_layernorm.weight"], config.norm_epsilon)
            x = graph.add(x, self._mlp(graph, config, weights, prefix + "mlp.", normal))
        x = graph.gather_positions(x, Value("last_token_index"))
        x = graph.rms_norm(x, weights["model.norm.weight"], config.norm_epsilon)
        logits = graph.linear(x, weights[EMBEDDING if config.tied else HEAD])
        graph.output(logits, "logits", "float32", ["batch", "rows", config.vocab_size])

    def _attention(
        self, graph: Graph, config: DecoderConfig, weights: Mapping[str, Weight], layer: int, x: Value
    ) -> Value:
        shape = AttentionShape(
            config.num_attention_heads, config.num_key_value_heads, config.head_dim, config.head_dim**-0.5
        )
        prefix = f"model.layers.{layer}.self_attn."
        fused = _linear(graph, weights, x, *(f"{prefix}{name}_proj" for name in "qkv"))
        sizes = [heads * shape.head_dim for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
        query, key, value = graph.split(fused, sizes)
        query = graph.rope(query, ROPE, shape.heads, shape.head_dim)
        key = graph.rope(key, ROPE, shape.kv_heads, shape.head_dim)
        return _linear(graph, weights, graph.attention(query, key, value, layer, shape), f"{prefix}o_proj")

    def _mlp(self, graph: Graph, config: DecoderConfig, weights: Mapping[str, Weight], prefix: str, x: Value) -> Value:
        fused = _linear(graph, weights, x, f"{prefix}gate_proj", f"{prefix}up_proj")
        gate, up = graph.split(fused, [config.intermediate_size] * 2)
        return _linear(graph, weights, graph.mul(graph.silu(gate), up), f"{prefix}down_proj")


def _linear(graph: Graph, weights: Mapping[str, Weight], x: Value, *names: str) -> Value:
    """One product for several projections of the same input."""
    matrix = stack_rows([weights[f"{name}.weight"] for name in names])
    biases = [weights[f"{name}.bias"] for name in names if f"{name}.bias" in weights]
    return graph.linear(x, matrix, stack_rows(biases) if biases else None)

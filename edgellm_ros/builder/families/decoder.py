"""The decoder that every text family is: which tensors it has and which graph they make, told by a ``DecoderConfig``.

The attention scale is folded into the weights that make the queries (their norm where they have one, else the
projection), so that no engine has to scale anything as it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...adapter_format import AdapterTarget
from ..adapters import AdapterRoom
from ..graph import Graph
from ..graph_parts import AttentionShape, Value
from ..weights import Weight, scaled, shifted, stack_rows
from .base import DecoderConfig, LayerPlan

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"


def _norm_names(config: DecoderConfig) -> tuple[str, ...]:
    if config.sandwich_norms:
        return (
            "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
        )  # fmt: skip
    return ("input_layernorm", "post_attention_layernorm")


def decoder_tensors(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the graph needs, by its Hugging Face name, with its shape."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    projections = {
        "self_attn.q_proj": ((queries, hidden), config.query_key_value_bias),
        "self_attn.k_proj": ((keys, hidden), config.query_key_value_bias),
        "self_attn.v_proj": ((keys, hidden), config.query_key_value_bias),
        "self_attn.o_proj": ((hidden, queries), config.output_bias),
        "mlp.gate_proj": ((inner, hidden), config.mlp_bias),
        "mlp.up_proj": ((inner, hidden), config.mlp_bias),
        "mlp.down_proj": ((hidden, inner), config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        for norm in _norm_names(config):
            shapes[f"{prefix}{norm}.weight"] = (hidden,)
        if config.query_key_norm:
            for norm in ("q_norm", "k_norm"):
                shapes[f"{prefix}self_attn.{norm}.weight"] = (config.head_dim,)
        for name, (shape, bias) in projections.items():
            shapes[f"{prefix}{name}.weight"] = shape
            if bias:
                shapes[f"{prefix}{name}.bias"] = shape[:1]
    shapes[FINAL_NORM] = (hidden,)
    if not config.tied:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


def may_be_left_out(config: DecoderConfig, name: str) -> bool:
    """Whether a tensor that the graph does not need may be in the checkpoint all the same.

    Rotary buffers of old checkpoints, and the second name of a tied head.
    """
    return name.endswith("rotary_emb.inv_freq") or (config.tied and name == HEAD)


def build_decoder(
    graph: Graph,
    config: DecoderConfig,
    weights: Mapping[str, Weight],
    hidden_states: Collection[int] = (),
    adapters: AdapterRoom | None = None,
) -> None:
    """Write the graph; ``weights`` has every tensor of ``decoder_tensors``, and a head though it is tied, or not.

    What the layers of ``hidden_states`` (from 1 on) add up to becomes an output of its own.
    """
    _Decoder(graph, config, weights, adapters).build(hidden_states)


class _Decoder:
    def __init__(
        self, graph: Graph, config: DecoderConfig, weights: Mapping[str, Weight], adapters: AdapterRoom | None
    ) -> None:
        self.graph, self.config, self.weights, self.adapters = graph, config, weights, adapters

    def build(self, hidden_states: Collection[int]) -> None:
        graph, config = self.graph, self.config
        tables = {kind: len(rope.inverse_frequency) for kind, rope in config.rope.items()}
        x = graph.lowering.declare_inputs(graph, config.hidden_size, tables)
        for layer, plan in enumerate(config.layers):
            x = self._layer(x, f"model.layers.{layer}.", layer, plan)
            if layer < config.deepstack:
                plane = graph.input(f"deepstack_{layer}", "float32", ["batch", "sequence", config.hidden_size])
                x = graph.add(x, graph.as_element(plane.name))
            if layer + 1 in hidden_states:
                name = f"hidden_states_{layer + 1}"
                graph.output(x, name, "float32", ["batch", "sequence", config.hidden_size])
        x = graph.gather_positions(x, Value("last_token_index"))
        logits = graph.linear(self._norm(x, "model.norm"), self.weights[HEAD if HEAD in self.weights else EMBEDDING])
        if config.logit_softcap:
            logits = graph.softcap(logits, config.logit_softcap)
        graph.output(logits, "logits", "float32", ["batch", "rows", config.vocab_size])

    def _layer(self, x: Value, prefix: str, layer: int, plan: LayerPlan) -> Value:
        graph, norms = self.graph, [prefix + name for name in _norm_names(self.config)]
        if not self.config.sandwich_norms:
            x = graph.add(x, self._attention(self._norm(x, norms[0]), prefix + "self_attn.", layer, plan))
            return graph.add(x, self._mlp(self._norm(x, norms[1]), prefix + "mlp."))
        y = self._attention(self._norm(x, norms[0]), prefix + "self_attn.", layer, plan)
        x = graph.add(x, self._norm(y, norms[1]))
        y = self._mlp(self._norm(x, norms[2]), prefix + "mlp.")
        return graph.add(x, self._norm(y, norms[3]))

    def _norm(self, x: Value, name: str) -> Value:
        return self.graph.rms_norm(x, self._norm_weight(name), self.config.norm_epsilon)

    def _norm_weight(self, name: str) -> Weight:
        return shifted(self.weights[f"{name}.weight"], self.config.norm_offset)

    def _linear(self, x: Value, *names: str, factors: Mapping[str, float] | None = None) -> Value:
        """One product for several projections of the same input; ``factors`` scale some of them."""
        factors = factors or {}
        matrices = [scaled(self.weights[f"{name}.weight"], factors.get(name, 1.0)) for name in names]
        biases = [
            scaled(self.weights[f"{name}.bias"], factors.get(name, 1.0))
            for name in names
            if f"{name}.bias" in self.weights
        ]
        y = self.graph.linear(x, stack_rows(matrices), stack_rows(biases) if biases else None)
        if self.adapters is None:
            return y
        targets = [AdapterTarget(name, self.weights[f"{name}.weight"].rows, factors.get(name, 1.0)) for name in names]
        return self.adapters.add(self.graph, x, y, matrices[0].shape[1], targets)

    def _attention(self, x: Value, prefix: str, layer: int, plan: LayerPlan) -> Value:
        graph, config = self.graph, self.config
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        names = [f"{prefix}{name}_proj" for name in "qkv"]
        factors = {} if config.query_key_norm else {names[0]: config.attention_scale}
        fused = self._linear(x, *names, factors=factors)
        query, key, value = graph.split(fused, [count * size for count in (heads, kv_heads, kv_heads)])
        if config.query_key_norm:
            weight = scaled(self._norm_weight(f"{prefix}q_norm"), config.attention_scale)
            query = graph.head_norm(query, weight, config.norm_epsilon, heads)
            key = graph.head_norm(key, self._norm_weight(f"{prefix}k_norm"), config.norm_epsilon, kv_heads)
        shape = AttentionShape(heads, kv_heads, size, plan.rope, plan.window, config.attention_softcap)
        return self._linear(graph.attention(query, key, value, layer, shape), f"{prefix}o_proj")

    def _mlp(self, x: Value, prefix: str) -> Value:
        graph = self.graph
        fused = self._linear(x, f"{prefix}gate_proj", f"{prefix}up_proj")
        gate, up = graph.split(fused, [self.config.intermediate_size] * 2)
        gate = graph.silu(gate) if self.config.activation == "silu" else graph.gelu_tanh(gate)
        return self._linear(graph.mul(gate, up), f"{prefix}down_proj")

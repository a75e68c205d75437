"""Every text family's forward pass from what its configuration says, in float64 and without a cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

GEMMA = ("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM")
FOUR_NORMS = ("Gemma2ForCausalLM", "Gemma3ForCausalLM")
NORMALISED_HEADS = ("Qwen3ForCausalLM", "Gemma3ForCausalLM")


def softcap(x: np.ndarray, cap: float | None) -> np.ndarray:
    return x if not cap else cap * np.tanh(x / cap)


@dataclass
class ReferenceDecoder:
    """``logits(ids)`` of every position; configurations are in the spelling of transformers 4."""

    config: dict
    tensors: dict[str, np.ndarray]

    @property
    def architecture(self) -> str:
        return self.config["architectures"][0]

    def window(self, layer: int) -> int | None:
        """Keys that a query of the layer sees; None: all before it."""
        config, window = self.config, self.config.get("sliding_window")
        if self.architecture == "Gemma2ForCausalLM":
            return window if layer % 2 == 0 else None
        if self.architecture == "Gemma3ForCausalLM":
            return window if (layer + 1) % config["sliding_window_pattern"] else None
        if self.architecture in ("Qwen2ForCausalLM", "Qwen3ForCausalLM") and config.get("use_sliding_window"):
            return window if layer >= config["max_window_layers"] else None
        if self.architecture == "SmolLM3ForCausalLM" and config.get("use_sliding_window"):
            return None if config["no_rope_layers"][layer] else window
        return None

    def frequencies(self, layer: int) -> np.ndarray | None:
        """Angle of each pair of a head for one position; None: the layer does not rotate."""
        config = self.config
        if "no_rope_layers" in config and not config["no_rope_layers"][layer]:
            return None
        base, scaling = config["rope_theta"], config.get("rope_scaling") or {}
        if self.architecture == "Gemma3ForCausalLM" and self.window(layer) is not None:
            base, scaling = config["rope_local_base_freq"], {}
        frequencies = base ** (-np.arange(0, config["head_dim"], 2) / config["head_dim"])
        if scaling.get("rope_type") == "linear":
            return frequencies / scaling["factor"]
        if scaling.get("rope_type") == "llama3":
            waves = scaling["original_max_position_embeddings"] * frequencies / (2 * np.pi)
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            share = np.clip((waves - low) / (high - low), 0, 1)
            return share * frequencies + (1 - share) * frequencies / scaling["factor"]
        return frequencies

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        y = x @ self.tensors[name + ".weight"].T
        return y + self.tensors[name + ".bias"] if name + ".bias" in self.tensors else y

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        weight = self.tensors[name + ".weight"] + (1 if self.architecture in GEMMA else 0)
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.config["rms_norm_eps"]) * weight

    def _rotate(self, x: np.ndarray, frequencies: np.ndarray | None) -> np.ndarray:
        """x [S,heads,head_dim]"""
        if frequencies is None:
            return x
        turn = np.exp(1j * np.arange(len(x))[:, None, None] * frequencies)
        half = x.shape[-1] // 2
        rotated = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([rotated.real, rotated.imag], axis=-1)

    def _attention(self, x: np.ndarray, layer: int) -> np.ndarray:
        config, prefix = self.config, f"model.layers.{layer}.self_attn."
        count, size = len(x), config["head_dim"]
        query, key, value = (self._linear(x, f"{prefix}{name}_proj").reshape(count, -1, size) for name in "qkv")
        if self.architecture in NORMALISED_HEADS:
            query, key = self._norm(query, prefix + "q_norm"), self._norm(key, prefix + "k_norm")
        query, key = (self._rotate(part, self.frequencies(layer)) for part in (query, key))
        scale = config.get("query_pre_attn_scalar", size) ** -0.5
        distance = np.arange(count)[:, None] - np.arange(count)
        seen = distance >= 0
        if self.window(layer) is not None:
            seen &= distance < self.window(layer)
        out = np.empty((count, query.shape[1], size))
        for head in range(query.shape[1]):
            group = head * key.shape[1] // query.shape[1]
            scores = softcap(query[:, head] @ key[:, group].T * scale, config.get("attn_logit_softcapping"))
            weights = np.exp(np.where(seen, scores, -np.inf) - scores.max(axis=-1, keepdims=True))
            out[:, head] = weights / weights.sum(axis=-1, keepdims=True) @ value[:, group]
        return self._linear(out.reshape(count, -1), prefix + "o_proj")

    def _mlp(self, x: np.ndarray, prefix: str) -> np.ndarray:
        gate = self._linear(x, prefix + "gate_proj")
        if self.architecture in GEMMA:
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self._linear(gate * self._linear(x, prefix + "up_proj"), prefix + "down_proj")

    def hidden_states(self, ids: list[int]) -> list[np.ndarray]:
        """float64 [len(ids), D] before the first layer and after every one."""
        x = self.tensors["model.embed_tokens.weight"][np.asarray(ids)]
        if self.architecture in GEMMA:
            x = x * np.sqrt(self.config["hidden_size"])
        states = [x]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            mixed = self._attention(self._norm(x, prefix + "input_layernorm"), layer)
            if self.architecture in FOUR_NORMS:
                x = x + self._norm(mixed, prefix + "post_attention_layernorm")
                inner = self._mlp(self._norm(x, prefix + "pre_feedforward_layernorm"), prefix + "mlp.")
                x = x + self._norm(inner, prefix + "post_feedforward_layernorm")
            else:
                x = x + mixed
                x = x + self._mlp(self._norm(x, prefix + "post_attention_layernorm"), prefix + "mlp.")
            states.append(x)
        return states

    def logits(self, ids: list[int]) -> np.ndarray:
        """float64 [len(ids), V]."""
        x = self.hidden_states(ids)[-1]
        head = "model.embed_tokens" if self.config["tie_word_embeddings"] else "lm_head"
        logits = self._norm(x, "model.norm") @ self.tensors[head + ".weight"].T
        return softcap(logits, self.config.get("final_logit_softcapping"))

"""SmolVLA in torch, small enough to train in minutes, with lerobot's tensor names and lerobot's arithmetic.

One set of weights is read in two ways. Acting follows lerobot's SmolVLA: pictures, words and joint state form a prefix
whose keys and values an action expert reads while it denoises a chunk. Answering follows transformers' SmolVLM: the
same pictures inside a chat, causal attention, and the language model's head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from training.tabletop.sizes import Sizes
from training.tabletop.vision import Connector, VisionTower, attend


def rope_tables(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B,L,1,head_dim/2] of positions [B,L] with base 10000, in float32."""
    half = head_dim // 2
    frequency = 10_000.0 ** (-torch.arange(half, dtype=torch.float32, device=positions.device) / half)
    angle = (positions[..., None].float() * frequency).unsqueeze(2)
    return angle.cos(), angle.sin()


def rope(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x [B,L,H,D] by half-split pairs, in float32."""
    cosine, sine = tables
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, 1e-5)


class Attention(nn.Module):
    """Projections of a Llama layer; ``source`` is the width that keys and values are made from."""

    def __init__(self, width: int, source: int, s: Sizes) -> None:
        super().__init__()
        self.head_dim = s.head_dim
        self.q_proj = nn.Linear(width, s.heads * s.head_dim, bias=False)
        self.k_proj = nn.Linear(source, s.kv_heads * s.head_dim, bias=False)
        self.v_proj = nn.Linear(source, s.kv_heads * s.head_dim, bias=False)
        self.o_proj = nn.Linear(s.heads * s.head_dim, width, bias=False)

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim)


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, width: int, inner: int, source: int, s: Sizes) -> None:
        super().__init__()
        self.self_attn = Attention(width, source, s)
        self.mlp = Mlp(width, inner)
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(width), RmsNorm(width)

    def finish(self, x: Tensor, attention: Tensor) -> Tensor:
        x = x + self.self_attn.o_proj(attention)
        return x + self.mlp(self.post_attention_layernorm(x))


class TextModel(nn.Module):
    """Llama; gives the normed output and each layer's rotated keys and plain values."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocabulary, s.width)
        self.layers = nn.ModuleList(Layer(s.width, s.mlp, s.width, s) for _ in range(s.layers))
        self.norm = RmsNorm(s.width)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        cache = []
        tables = rope_tables(positions, self.layers[0].self_attn.head_dim)
        for layer in self.layers:
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            query = rope(attention.heads(attention.q_proj(normed)), tables)
            key = rope(attention.heads(attention.k_proj(normed)), tables)
            value = attention.heads(attention.v_proj(normed))
            cache.append((key, value))
            x = layer.finish(x, attend(query, key, value, mask, causal=mask is None))
        return self.norm(x), cache


class Expert(nn.Module):
    """The action expert: even layers see prefix and earlier actions, odd layers read the prefix's cache alone."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        source = s.kv_heads * s.head_dim
        self.layers = nn.ModuleList(
            Layer(s.expert_width, s.expert_mlp, s.expert_width if index % 2 == 0 else source, s)
            for index in range(s.layers)
        )
        self.norm = RmsNorm(s.expert_width)

    def forward(
        self, x: Tensor, cache: list[tuple[Tensor, Tensor]], positions: Tensor, own: Tensor, seen: Tensor
    ) -> Tensor:
        """X [B,L,E]; positions [B,L] from the prefix's length on; own: mask [1,L,L]; seen: prefix tokens bool [B,P]."""
        head_dim = self.layers[0].self_attn.head_dim
        tables, local = rope_tables(positions, head_dim), rope_tables(positions - positions[:, :1], head_dim)
        prefix = seen[:, None, None, :].expand(-1, 1, x.shape[1], -1)
        both = torch.cat([prefix, own[None].expand(x.shape[0], -1, -1, -1)], dim=-1)
        for index, layer in enumerate(self.layers):
            attention = layer.self_attn
            normed = layer.input_layernorm(x)
            query = attention.heads(attention.q_proj(normed))
            key, value = cache[index]
            if index % 2 == 0:
                key = torch.cat([key, rope(attention.heads(attention.k_proj(normed)), tables)], dim=1)
                value = torch.cat([value, attention.heads(attention.v_proj(normed))], dim=1)
                out = attend(rope(query, tables), key, value, both)
            else:
                key = attention.heads(attention.k_proj(key.flatten(2)))
                value = attention.heads(attention.v_proj(value.flatten(2)))
                out = attend(rope(query, local), key, value, prefix)
            x = layer.finish(x, out)
        return self.norm(x)


class SmolVla(nn.Module):
    """The whole policy; ``state_dict()`` has lerobot's names."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.sizes = s
        vlm = nn.Module()
        vlm.model = nn.Module()
        vlm.model.vision_model, vlm.model.connector, vlm.model.text_model = VisionTower(s), Connector(s), TextModel(s)
        vlm.lm_head = nn.Linear(s.width, s.vocabulary, bias=False)
        self.model = nn.Module()
        self.model.vlm_with_expert = nn.Module()
        self.model.vlm_with_expert.vlm = vlm
        self.model.vlm_with_expert.lm_expert = Expert(s)
        self.model.state_proj = nn.Linear(s.state, s.width)
        self.model.action_in_proj = nn.Linear(s.action, s.expert_width)
        self.model.action_out_proj = nn.Linear(s.expert_width, s.action)
        self.model.action_time_mlp_in = nn.Linear(2 * s.expert_width, s.expert_width)
        self.model.action_time_mlp_out = nn.Linear(s.expert_width, s.expert_width)
        self._initialise()

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                fan_in = parameter[0].numel()
                scale = 1.0 / math.sqrt(fan_in)
                if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight", "fc2.weight")):
                    scale /= math.sqrt(2.0 * self.sizes.layers)
                if "embed_tokens" in name or "position_embedding" in name or "modality_projection" in name:
                    scale = 0.08 if "modality" not in name else 0.08 / math.sqrt(fan_in)
                nn.init.trunc_normal_(parameter, std=scale, a=-3 * scale, b=3 * scale)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    @property
    def text(self) -> TextModel:
        return self.model.vlm_with_expert.vlm.model.text_model

    def patches(self, pixels: Tensor) -> Tensor:
        """Patches [B,C,n,vision_width] of pictures [B,C,3,image,image] in -1..1."""
        batch, cameras = pixels.shape[:2]
        tower = self.model.vlm_with_expert.vlm.model.vision_model
        return tower(pixels.flatten(0, 1)).unflatten(0, (batch, cameras))

    def image_tokens(self, patches: Tensor) -> Tensor:
        """Tokens [B,C*image_tokens,width] of patches, not yet scaled."""
        tokens = self.model.vlm_with_expert.vlm.model.connector(patches.flatten(0, 1))
        return tokens.unflatten(0, patches.shape[:2]).flatten(1, 2)

    def prefix(
        self, images: Tensor, task: Tensor, task_mask: Tensor, state: Tensor
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]], Tensor]:
        """Normed outputs, cache and mask [B,P] of the prefix: image tokens, task ids [B,T] with mask, state [B,S]."""
        scale = math.sqrt(self.sizes.width)
        words = self.text.embed_tokens(task)
        # The residual stream stays in float32 under autocast, or places would be rounded to whole pixels.
        parts = [images.float() * scale, words.float() * scale, self.model.state_proj(state)[:, None].float()]
        x = torch.cat(parts, dim=1)
        always = torch.ones(len(task), images.shape[1], dtype=torch.bool, device=task.device)
        seen = torch.cat([always, task_mask, always[:, :1]], dim=1)
        mask = (seen[:, None, :] & seen[:, :, None]).unsqueeze(1).clone()
        mask[:, :, :-1, -1] = False  # nothing but the state token itself sees the state
        mask = mask | torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)  # padded rows need one key
        positions = (seen.cumsum(1) - 1).clamp_min(0)
        out, cache = self.text(x, positions, mask)
        return out, cache, seen

    def velocity(self, cache: list[tuple[Tensor, Tensor]], seen: Tensor, x: Tensor, time: Tensor) -> Tensor:
        """Velocity of K noisy chunks x [B,K,H,A] at times [B,K] for one prefix each; chunks don't see each other."""
        _, draws, horizon, _ = x.shape
        width = self.sizes.expert_width
        fraction = torch.linspace(0.0, 1.0, width // 2, device=x.device, dtype=torch.float64)
        period = self.sizes.min_period * (self.sizes.max_period / self.sizes.min_period) ** fraction
        angle = (2.0 * math.pi / period) * time[..., None].double()
        clock = torch.cat([angle.sin(), angle.cos()], dim=-1)[:, :, None].expand(-1, -1, horizon, -1)
        rows = self.model.action_in_proj(x)
        rows = self.model.action_time_mlp_in(torch.cat([rows, clock.to(rows.dtype)], dim=-1))
        rows = self.model.action_time_mlp_out(functional.silu(rows)).flatten(1, 2).float()
        step = torch.arange(horizon, device=x.device).repeat(draws)
        chunk = torch.arange(draws, device=x.device).repeat_interleave(horizon)
        own = (chunk[:, None] == chunk[None]) & (step[None] <= step[:, None])
        positions = seen.sum(1, keepdim=True) + step[None]
        out = self.model.vlm_with_expert.lm_expert(rows, cache, positions, own[None], seen)
        return self.model.action_out_proj(out.float()).unflatten(1, (draws, horizon))

    def act(self, pixels: Tensor, task: Tensor, task_mask: Tensor, state: Tensor, noise: Tensor, steps: int) -> Tensor:
        """Normalised action chunk [B,H,A] from noise [B,H,A] by ``steps`` Euler steps from time 1 to 0."""
        _, cache, seen = self.prefix(self.image_tokens(self.patches(pixels)), task, task_mask, state)
        x = noise[:, None]
        for index in range(steps):
            time = torch.full((len(x), 1), 1.0 - index / steps, device=x.device)
            x = x - self.velocity(cache, seen, x, time).float() / steps
        return x[:, 0]

    def logits(self, images: Tensor, ids: Tensor, image_id: int) -> Tensor:
        """Next-token logits [B,L,V] of dialogues ids [B,L] whose image marks are replaced by image tokens in order."""
        x = self.text.embed_tokens(ids).float()
        marked = ids == image_id
        # Not masked_scatter, whose gradient waits for the device.
        place = (marked.cumsum(1) - 1).clamp(0, images.shape[1] - 1)[..., None].expand_as(x)
        x = torch.where(marked[..., None], images.float().gather(1, place), x)
        positions = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
        out, _ = self.text(x, positions, None)
        return self.model.vlm_with_expert.vlm.lm_head(out)

"""SmolVLA in torch, small enough to train in minutes, with lerobot's tensor names and lerobot's arithmetic.

One set of weights is read in two ways. Acting follows lerobot's SmolVLA: pictures, words and joint state form a prefix
whose keys and values an action expert reads while it denoises a chunk. Answering follows transformers' SmolVLM: the
same pictures inside a chat, causal attention, and the language model's head.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Dimensions of the model; they end up in ``config.json`` and ``vlm/config.json``."""

    vocabulary: int = 512
    width: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 640
    vision_width: int = 256
    vision_layers: int = 6
    vision_heads: int = 4
    vision_mlp: int = 768
    image: int = 128
    patch: int = 16
    shuffle: int = 2
    expert_multiplier: float = 0.75
    horizon: int = 16
    state: int = 4
    action: int = 4
    cameras: int = 2
    min_period: float = 4e-3
    max_period: float = 4.0

    @property
    def expert_width(self) -> int:
        """Width of the action expert."""
        return int(self.width * self.expert_multiplier)

    @property
    def expert_mlp(self) -> int:
        """Inner width of the expert's MLP by lerobot's rule: two thirds of four widths, up to a multiple of 256."""
        wanted = 4 * int(2 * self.expert_width / 3)
        return 256 * ((wanted + 255) // 256)

    @property
    def image_tokens(self) -> int:
        """Tokens of one picture after the pixel shuffle."""
        return (self.image // self.patch // self.shuffle) ** 2

    def as_dict(self) -> dict[str, float | int]:
        """All fields by name."""
        return asdict(self)


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


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    """Grouped-query attention over [B,L,H,D] tensors; mask is bool, True where a query sees a key. Gives [B,L,H*D]."""
    groups = query.shape[2] // key.shape[2]
    key, value = key.repeat_interleave(groups, dim=2), value.repeat_interleave(groups, dim=2)
    out = functional.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask, is_causal=causal
    )
    return out.transpose(1, 2).flatten(2)


class VisionEmbeddings(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, s.vision_width, s.patch, s.patch)
        self.position_embedding = nn.Embedding((s.image // s.patch) ** 2, s.vision_width)

    def forward(self, pixels: Tensor) -> Tensor:
        # The same as the convolution, as one matrix product.
        weight, size = self.patch_embedding.weight, self.patch_embedding.kernel_size[0]
        rows, columns = pixels.shape[2] // size, pixels.shape[3] // size
        patches = pixels.unflatten(3, (columns, size)).unflatten(2, (rows, size)).permute(0, 2, 4, 1, 3, 5)
        embedded = functional.linear(patches.flatten(3).flatten(1, 2), weight.flatten(1), self.patch_embedding.bias)
        return embedded + self.position_embedding.weight


class VisionAttention(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.heads = s.vision_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(s.vision_width, s.vision_width) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = self.q_proj(x).view(shape), self.k_proj(x).view(shape), self.v_proj(x).view(shape)
        return self.out_proj(attend(q, k, v, None))


class VisionMlp(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(s.vision_width, s.vision_mlp), nn.Linear(s.vision_mlp, s.vision_width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))


class VisionLayer(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(s.vision_width, eps=1e-6)
        self.self_attn = VisionAttention(s)
        self.layer_norm2 = nn.LayerNorm(s.vision_width, eps=1e-6)
        self.mlp = VisionMlp(s)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class VisionTower(nn.Module):
    """SigLIP's encoder; pixels [B,3,image,image] in -1..1 to patches [B,n,vision_width]."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embeddings = VisionEmbeddings(s)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(VisionLayer(s) for _ in range(s.vision_layers))
        self.post_layernorm = nn.LayerNorm(s.vision_width, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.embeddings(pixels)
        for layer in self.encoder.layers:
            x = layer(x)
        return self.post_layernorm(x)


class Connector(nn.Module):
    """Pixel shuffle and one projection: patches [B,n,vision_width] to tokens [B,n/shuffle^2,width]."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.shuffle = s.shuffle
        self.modality_projection = nn.Module()
        self.modality_projection.proj = nn.Linear(s.vision_width * s.shuffle**2, s.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        side, factor = math.isqrt(count), self.shuffle
        x = x.view(batch, side // factor, factor, side // factor, factor, width).transpose(2, 3)
        return self.modality_projection.proj(x.reshape(batch, count // factor**2, width * factor**2))


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
        fraction = torch.linspace(0.0, 1.0, width // 2, device=x.device, dtype=torch.float32)
        period = self.sizes.min_period * (self.sizes.max_period / self.sizes.min_period) ** fraction
        angle = (2.0 * math.pi / period) * time[..., None].float()
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
        x = x.masked_scatter((ids == image_id)[..., None].expand_as(x), images.float())
        positions = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
        out, _ = self.text(x, positions, None)
        return self.model.vlm_with_expert.vlm.lm_head(out)

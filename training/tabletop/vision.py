"""SigLIP's encoder and the pixel-shuffle connector, and the attention that all parts of the model share."""

from __future__ import annotations

import math

import torch.nn.functional as functional
from torch import Tensor, nn

from training.tabletop.sizes import Sizes


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

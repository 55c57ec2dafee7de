"""Small transformers with random weights, each written the way its family is: ViT, GPT-2, Llama, BERT, Conformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH = 12, 4, 2, 13, 6


class VisionAttention(nn.Module):
    """One projection for queries, keys and values, seen as (batch, tokens, 3, heads, places)."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = HEADS, WIDTH // HEADS
        self.scale = self.head_dim**-0.5
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attn_drop, self.proj_drop = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = self.attn_drop((q * self.scale @ k.transpose(-2, -1)).softmax(dim=-1))
        return self.proj_drop(self.proj((weights @ v).transpose(1, 2).reshape(batch, length, -1)))


class VisionBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2 = nn.LayerNorm(WIDTH), VisionAttention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 20), nn.GELU(), nn.Dropout(0.1), nn.Linear(20, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vision(nn.Module):
    """Patches, a class token, stored positions, blocks, a head on the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.pos_embed = nn.Parameter(torch.randn(1, 5, WIDTH))
        self.blocks = nn.Sequential(*(VisionBlock() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


class CausalAttention(nn.Module):
    """A fused projection split by a stored number, a stored triangle as the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.head_dim, self.split_size = HEADS, WIDTH // HEADS, WIDTH
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("bias", torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().view(1, 1, LENGTH, LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, self.n_head, self.head_dim).transpose(1, 2)
            for part in self.c_attn(x).split(self.split_size, dim=2)
        )
        scores = q @ k.transpose(-1, -2) / self.head_dim**0.5
        scores = scores.masked_fill(~self.bias[:, :, :length, :length], torch.finfo(scores.dtype).min)
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, self.split_size))


class CausalBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), CausalAttention(), nn.LayerNorm(WIDTH)
        self.c_fc, self.c_proj = nn.Linear(WIDTH, 20), nn.Linear(20, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """As GPT-2: token and position embeddings, pre-norm blocks, the output tied to the token embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(CausalBlock() for _ in range(LAYERS))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class GroupedAttention(nn.Module):
    """Eight heads of queries, four of keys and values, rotary positions, no biases."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_key_value_heads, self.head_dim = 2 * HEADS, HEADS, 4
        self.q_proj = nn.Linear(WIDTH, 8 * HEADS, bias=False)
        self.k_proj, self.v_proj = nn.Linear(WIDTH, 4 * HEADS, bias=False), nn.Linear(WIDTH, 4 * HEADS, bias=False)
        self.o_proj = nn.Linear(8 * HEADS, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.num_key_value_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.num_key_value_heads, self.head_dim).transpose(1, 2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        times = self.num_heads // self.num_key_value_heads
        k, v = (one.repeat_interleave(times, dim=1) for one in (k, v))
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(x.transpose(1, 2).reshape(batch, length, -1))


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.self_attn, self.norm = RootMeanSquare(WIDTH), GroupedAttention(), RootMeanSquare(WIDTH)
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 20, bias=False), nn.Linear(WIDTH, 20, bias=False)
        self.down_proj = nn.Linear(20, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_norm(x), cos, sin)
        y = self.norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))


class Llama(nn.Module):
    """Rotary positions, grouped queries, SwiGLU, RMS norms."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(LlamaBlock() for _ in range(LAYERS))
        self.norm, self.lm_head = RootMeanSquare(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        angles = torch.arange(ids.shape[1])[:, None] / 10 ** (torch.arange(0, 4, 2) / 4)
        angles = torch.cat([angles, angles], -1)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.lm_head(self.norm(x))


class BertAttention(nn.Module):
    """Separate projections, a padding mask that is added, the sum with the input normalised afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.num_attention_heads, self.attention_head_size, self.all_head_size = HEADS, WIDTH // HEADS, WIDTH
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.dense, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def by_heads(self, x: Tensor) -> Tensor:
        return x.view(*x.size()[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.by_heads(part(x)) for part in (self.query, self.key, self.value))
        weights = (q @ k.transpose(-1, -2) / self.attention_head_size**0.5 + mask).softmax(-1)
        y = (weights @ v).permute(0, 2, 1, 3).contiguous()
        return self.norm(x + self.dense(y.view(*y.size()[:-2], self.all_head_size)))


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = BertAttention(), nn.LayerNorm(WIDTH)
        self.intermediate, self.output = nn.Linear(WIDTH, 20), nn.Linear(20, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, mask)
        return self.norm(x + self.output(F.gelu(self.intermediate(x))))


class Bert(nn.Module):
    """Post-norm layers, word, position and type embeddings, a pooler, a mask of what is no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.types = (nn.Embedding(n, WIDTH) for n in (VOCABULARY, LENGTH, 2))
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = nn.ModuleList(BertLayer() for _ in range(LAYERS))
        self.pooler, self.classifier = nn.Linear(WIDTH, 10), nn.Linear(10, 3)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1])) + self.types(torch.zeros_like(ids))
        x, mask = self.norm(x), (1.0 - attention_mask[:, None, None, :]) * -1e4
        for layer in self.layer:
            x = layer(x, mask)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class RelativeAttention(nn.Module):
    """As Transformer-XL: scores of contents plus scores of distances, which a view of padded rows shifts into place."""

    def __init__(self) -> None:
        super().__init__()
        self.h, self.d_k = HEADS, WIDTH // HEADS
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.linear_pos, self.linear_out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.pos_bias_u, self.pos_bias_v = (nn.Parameter(torch.randn(self.h, self.d_k)) for _ in range(2))

    def shifted(self, scores: Tensor) -> Tensor:
        batch, heads, length, distances = scores.shape
        padded = torch.cat([torch.zeros(batch, heads, length, 1), scores], dim=-1)
        return padded.view(batch, heads, distances + 1, length)[:, :, 1:].view_as(scores)[..., :length]

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.linear_q(x).view(batch, length, self.h, self.d_k)
        k = self.linear_k(x).view(batch, length, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(batch, length, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(positions).view(1, -1, self.h, self.d_k).transpose(1, 2)
        contents = (q + self.pos_bias_u).transpose(1, 2) @ k.transpose(-2, -1)
        distances = self.shifted((q + self.pos_bias_v).transpose(1, 2) @ p.transpose(-2, -1))
        weights = ((contents + distances) / self.d_k**0.5).softmax(-1)
        return self.linear_out((weights @ v).transpose(1, 2).contiguous().view(batch, length, self.h * self.d_k))


class ConvolutionModule(nn.Module):
    """Pointwise and gated, depthwise over time, normalised, pointwise."""

    def __init__(self) -> None:
        super().__init__()
        self.pointwise1, self.pointwise2 = nn.Conv1d(WIDTH, 2 * 10, 1), nn.Conv1d(10, WIDTH, 1)
        self.depthwise, self.norm = nn.Conv1d(10, 10, 3, padding=1, groups=10), nn.BatchNorm1d(10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.glu(self.pointwise1(x.transpose(1, 2)), dim=1)
        return self.pointwise2(F.silu(self.norm(self.depthwise(x)))).transpose(1, 2)


class ConformerBlock(nn.Module):
    """Half a feed-forward, attention, convolution, the other half, each from a norm into the stream; a last norm."""

    def __init__(self) -> None:
        super().__init__()
        self.ff1, self.ff2 = (
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 20), nn.SiLU(), nn.Dropout(0.1), nn.Linear(20, WIDTH))
            for _ in range(2)
        )
        self.norm_mha, self.norm_conv, self.norm_final = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.self_attn, self.conv = RelativeAttention(), ConvolutionModule()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        x = x + 0.5 * self.ff1(x)
        x = x + self.self_attn(self.norm_mha(x), positions)
        x = x + self.conv(self.norm_conv(x))
        return self.norm_final(x + 0.5 * self.ff2(x))


class Conformer(nn.Module):
    """Frames of a spectrogram, two convolutions that halve them, blocks, an output for every frame left."""

    def __init__(self) -> None:
        super().__init__()
        self.sub = nn.Sequential(nn.Conv2d(1, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 2, 1), nn.ReLU())
        self.embed = nn.Linear(6 * 2, WIDTH)
        self.blocks = nn.ModuleList(ConformerBlock() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(self.sub(x.unsqueeze(1)).transpose(1, 2).flatten(2))
        away = torch.arange(x.shape[1] - 1, -x.shape[1], -1, dtype=x.dtype)
        angles = away[:, None] / 10 ** (torch.arange(WIDTH // 2) / WIDTH)
        positions = torch.cat([angles.sin(), angles.cos()], dim=-1).unsqueeze(0)
        for block in self.blocks:
            x = block(x, positions)
        return self.head(x)


FRAMES = torch.randn(2, 18, 8, generator=torch.Generator().manual_seed(3))
IDS = torch.tensor([[1, 4, 10, 3, 2], [0, 4, 2, 12, 7]])
PADDING = torch.tensor([[1.0, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))

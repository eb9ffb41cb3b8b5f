"""The parts of a Llama 2 model: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.

Touvron et al. 2023, "Llama 2", section 2.2; rotary positions as in Su et al. 2021, "RoFormer", section 3.4.2, pairing
column i with column i + head_dim / 2 as Hugging Face's implementation does. Products that share an input are one:
queries, keys and values in `qkv` (in this order), gate and up in `gate_up`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from runners.models.attention import Past, causal
from testbed.cluster import ModelSpec

ROPE_BASE = 10000.0
NORM_EPS = 1e-5


class Embedding(nn.Module):
    """Tokens [n, s] int64 -> [n, s, d_model]."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.token = nn.Embedding(spec.vocabulary, spec.d_model)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.token(tokens)


def rotate(x: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Rotary positions on x [n, heads, s, head_dim], whose first token stands at position `start`."""
    half = x.shape[-1] // 2
    frequencies = ROPE_BASE ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(start, start + x.shape[2], device=x.device, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)  # [s, half]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Block(nn.Module):
    """[n, s, d_model] -> [n, s, d_model]."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        d = spec.d_model
        self.heads, self.key_heads, self.head_dim = spec.heads, spec.key_heads, spec.head_dim
        self.norm1 = nn.RMSNorm(d, eps=NORM_EPS)
        self.qkv = nn.Linear(d, spec.qkv_width, bias=False)
        self.projection = nn.Linear(d, d, bias=False)
        self.norm2 = nn.RMSNorm(d, eps=NORM_EPS)
        self.gate_up = nn.Linear(d, 2 * spec.d_ff, bias=False)
        self.down = nn.Linear(spec.d_ff, d, bias=False)

    def attention(self, x: torch.Tensor, past: Past | None = None) -> torch.Tensor:
        n, s, d = x.shape
        parts = self.qkv(x).split([h * self.head_dim for h in (self.heads, self.key_heads, self.key_heads)], dim=-1)
        q, k, v = (part.view(n, s, -1, self.head_dim).transpose(1, 2) for part in parts)
        start = 0 if past is None else past.length
        q, k = rotate(q, start), rotate(k, start)
        if past is not None:
            k, v = past.extended(k, v)
        if self.key_heads < self.heads:
            k, v = (t.repeat_interleave(self.heads // self.key_heads, dim=1) for t in (k, v))
        return self.projection(causal(q, k, v).transpose(1, 2).reshape(n, s, d))

    def attend(self, x: torch.Tensor, past: Past | None = None) -> torch.Tensor:
        """The block's first half; `past`: x is a piece of a sequence, and these tokens come before it."""
        return x + self.attention(self.norm1(x), past)

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """The block's second half."""
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.feed(self.attend(x))


class Head(nn.Module):
    """[n, s, d_model] -> logits [n, s, vocabulary]."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.norm = nn.RMSNorm(spec.d_model, eps=NORM_EPS)
        self.logits = nn.Linear(spec.d_model, spec.vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.norm(x))

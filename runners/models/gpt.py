"""Decoder-only transformers whose layers are addressed one by one.

Layer 0 is the embedding, layers 1 … L are the blocks, layer L+1 is the final norm with the output
projection. Each layer has its own seeded generator, so the weights are the same whether the model is built
whole or stage by stage, on whichever device. The output projection is untied, which keeps every parameter in one
stage.

The classes here are those of the families gpt (pre-norm blocks, learned positions, GELU: GPT-2, Radford et al. 2019;
GPT-3 in its larger sizes) and opt (the same with ReLU and positions counted from 2: Zhang et al. 2022). Those of
llama are in runners/models/llama.py. All answer to the names norm1, qkv, projection, norm2, down; and up, or gate_up.
"""

from __future__ import annotations

import hashlib
import math

import torch
import torch.nn.functional as F
from torch import nn

from runners.models import llama
from runners.models.attention import Past, causal
from testbed.cluster import ModelSpec
from testbed.cluster.specs import OPT_POSITION_OFFSET

INIT_STD = 0.02  # GPT-2; projections into the residual stream are scaled by 1 / sqrt(2 L) as there


class Embedding(nn.Module):
    """Tokens [n, s] int64 -> [n, s, d_model]."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.token = nn.Embedding(spec.vocabulary, spec.d_model)
        self.position = nn.Embedding(spec.position_rows, spec.d_model)
        self.first = OPT_POSITION_OFFSET if spec.family == "opt" else 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(self.first, self.first + tokens.shape[1], device=tokens.device)
        return self.token(tokens) + self.position(positions)


class Block(nn.Module):
    """[n, s, d_model] -> [n, s, d_model]: causal self-attention, then the feed-forward part."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        d = spec.d_model
        self.heads = spec.heads
        self.activation = F.relu if spec.family == "opt" else F.gelu
        self.norm1 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.projection = nn.Linear(d, d)
        self.norm2 = nn.LayerNorm(d)
        self.up = nn.Linear(d, spec.d_ff)
        self.down = nn.Linear(spec.d_ff, d)

    def attention(self, x: torch.Tensor, past: Past | None = None) -> torch.Tensor:
        n, s, d = x.shape
        q, k, v = self.qkv(x).view(n, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = past.extended(k, v)
        return self.projection(causal(q, k, v).transpose(1, 2).reshape(n, s, d))

    def attend(self, x: torch.Tensor, past: Past | None = None) -> torch.Tensor:
        """The block's first half; `past`: x is a piece of a sequence, and these tokens come before it."""
        return x + self.attention(self.norm1(x), past)

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """The block's second half."""
        return x + self.down(self.activation(self.up(self.norm2(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.feed(self.attend(x))


class Head(nn.Module):
    """[n, s, d_model] -> logits [n, s, vocabulary]."""

    def __init__(self, spec: ModelSpec):
        super().__init__()
        self.norm = nn.LayerNorm(spec.d_model)
        self.logits = nn.Linear(spec.d_model, spec.vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(self.norm(x))


def layer_count(spec: ModelSpec) -> int:
    """Layers that can be placed one by one: the embedding, the blocks, the head."""
    return spec.layers + 2


def layer_name(spec: ModelSpec, index: int) -> str:
    if index == 0:
        return "embedding"
    return "head" if index == spec.layers + 1 else f"block {index - 1}"


def _shape_only(spec: ModelSpec, index: int) -> nn.Module:
    if not 0 <= index < layer_count(spec):
        raise IndexError(f"layer {index} of {layer_count(spec)}")
    with torch.device("meta"):  # no memory and no draw from the global generator
        kinds = (llama.Embedding, llama.Block, llama.Head) if spec.family == "llama" else (Embedding, Block, Head)
        return kinds[0 if index == 0 else 2 if index == spec.layers + 1 else 1](spec)


def parameter_count(spec: ModelSpec, index: int) -> int:
    """Parameters of one layer."""
    return sum(p.numel() for p in _shape_only(spec, index).parameters())


def build_layer(spec: ModelSpec, index: int, seed: int | None) -> nn.Module:
    """One layer on the default device; its weights depend on (seed, index) alone; unset for seed None."""
    layer = _shape_only(spec, index).to_empty(device=torch.get_default_device())
    if seed is None or next(layer.parameters()).is_meta:
        return layer
    digest = hashlib.sha256(f"{spec.family} layer {index} seed {seed}".encode()).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest[:7], "big"))
    residual = INIT_STD / math.sqrt(2 * max(spec.layers, 1))
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif "norm" in name:
                parameter.fill_(1.0)
            else:
                std = residual if name in ("projection.weight", "down.weight") else INIT_STD
                parameter.normal_(0.0, std, generator=generator)
    return layer


class GPT(nn.Module):
    """The whole model: tokens [n, s] -> logits [n, s, vocabulary]."""

    def __init__(self, spec: ModelSpec, seed: int):
        super().__init__()
        self.layers = nn.ModuleList(build_layer(spec, i, seed) for i in range(layer_count(spec)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = tokens
        for layer in self.layers:
            x = layer(x)
        return x


def loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy summed over all tokens; divide by the global batch's tokens for the mean loss."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")

"""Causal attention of tokens that come in pieces: a piece attends to itself and to the keys and values before it."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class Past:
    """Keys and values of the tokens before, [n, heads, tokens, head_dim]; None: there are none.

    `new` becomes the piece's own, of the same form, and `whole` those of all tokens so far.
    """

    __slots__ = ("keys", "new", "values", "whole")

    def __init__(self, keys: torch.Tensor | None = None, values: torch.Tensor | None = None):
        self.keys, self.values = keys, values
        self.new = self.whole = (keys, values)

    @property
    def length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def extended(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all tokens so far, the piece's among them."""
        self.new = self.whole = k, v
        if self.keys is not None:
            self.whole = torch.cat([self.keys, k], dim=2), torch.cat([self.values, v], dim=2)
        return self.whole


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q kᵀ / √head_dim) v, [n, heads, s, head_dim]; the queries are those of the last s of the keys' tokens."""
    s, keys = q.shape[2], k.shape[2]
    if s == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    seen = torch.ones(s, keys, dtype=torch.bool, device=q.device).tril(keys - s)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

"""Freivalds' test: whether C = A·B, in time O(mk + kn + mn) instead of O(mkn).

Freivalds 1977, "Probabilistic machines can use less running time". With a random vector r of ±1, C·r = A·(B·r) holds
for
the right C, and for a wrong one with probability at most 1/2; `rounds` independent vectors miss a wrong C with
probability at most 2^-rounds. That is for exact arithmetic: with floats a difference counts when it is beyond what
rounding can explain, so an error smaller than that passes.
"""

from __future__ import annotations

import torch

_UNIT = 2.0**-24  # of float32


def agrees(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, rounds: int, rounding: float = 0.0) -> bool:
    """Whether c may be a·b.

    Args:
        a, b, c: [..., m, k], [..., k, n], [..., m, n], float32.
        rounding: relative error that operands and result suffered on the wire, each number by itself.
    """
    n, k = b.shape[-1], b.shape[-2]
    signs = torch.randint(0, 2, (n, rounds), device=b.device).to(torch.float32) * 2 - 1
    difference = (c @ signs - a @ (b @ signs)).abs()
    # |a|·|b|·1 bounds every partial sum; n + k additions at one unit each, and the wire's rounding of a, b and c
    size = a.abs() @ b.abs().sum(dim=-1, keepdim=True)
    return bool((difference <= size * ((n + k) * _UNIT + 3 * rounding) + 1e-30).all())

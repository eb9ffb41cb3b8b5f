"""Tensors without data: in a simulation all that counts of a tensor is its shape and its type."""

from __future__ import annotations

from functools import lru_cache

import torch


def hollow(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A meta tensor, an object of its own: whoever accounts for memory knows tensors by their identity.

    Three times as quick as `torch.empty`, six times as a slice of a slice, of which a large run makes millions.
    """
    return example(shape, dtype).data  # unlike `detach` no view, for half the time and memory


@lru_cache(maxsize=1 << 16)
def example(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One and the same meta tensor of that shape: for what is only looked at, or sent, since a message has a copy."""
    return torch.empty(shape, dtype=dtype, device="meta")

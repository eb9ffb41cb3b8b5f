"""The matrix products of one training step of a transformer, in the order of their execution.

Each product Y = X·W of the forward pass has two in the backward pass: dX = dY·Wᵀ, named `….dX`, and dW = Xᵀ·dY,
`….dW`, of the left and of the right operand. Products that share an input are one: q, k and v; gate and up. Attention
is a batch of products, one a sample and key-value head: the query heads that share a key-value head are stacked
as rows (with as many key-value heads as heads, one each).
"""

from __future__ import annotations

from runners.planning.gemm import Gemm
from testbed.cluster import ModelSpec


def gemms(model: ModelSpec, batch: int, element_bytes: int = 4) -> list[Gemm]:
    """All products of a step over `batch` samples: forward from the first layer to the head, then back.

    Names: `layer0.qkv.forward` … `head.forward`, `head.dX`, `head.dW`, … `layer0.qkv.dW`. Within a layer: qkv, scores
    (q·kᵀ), values (softmax·v), projection, up (gate and up side by side where the model has a gate), down.
    """
    forward = [gemm for i in range(model.layers) for gemm in layer_gemms(model, f"layer{i}", batch, element_bytes)]
    forward.append(_gemm("head", batch * model.sequence, model.d_model, model.vocabulary, 1, element_bytes))
    return forward + [back for gemm in reversed(forward) for back in backward_gemms(gemm)]


def layer_gemms(model: ModelSpec, layer: str, batch: int, element_bytes: int) -> list[Gemm]:
    """The forward products of one block."""
    tokens, d, s = batch * model.sequence, model.d_model, model.sequence
    head = d // model.heads
    kv_heads = getattr(model, "kv_heads", None) or model.heads
    stacked = model.heads // kv_heads * s
    up = model.d_ff * (2 if getattr(model, "gated", False) else 1)
    attention = batch * kv_heads

    def gemm(part: str, m: int, k: int, n: int, products: int = 1) -> Gemm:
        return _gemm(f"{layer}.{part}", m, k, n, products, element_bytes)

    return [
        gemm("qkv", tokens, d, d + 2 * kv_heads * head),
        gemm("scores", stacked, head, s, attention),
        gemm("values", stacked, s, head, attention),
        gemm("projection", tokens, d, d),
        gemm("up", tokens, d, up),
        gemm("down", tokens, model.d_ff, d),
    ]


def _gemm(name: str, m: int, k: int, n: int, products: int, element_bytes: int) -> Gemm:
    return Gemm(f"{name}.forward", m, k, n, products, element_bytes, name if products == 1 else None)


def backward_gemms(gemm: Gemm) -> tuple[Gemm, Gemm]:
    """dX (m×n · n×k) and dW (k×m · m×n) of a forward product."""
    name = gemm.name.removesuffix(".forward")
    return (
        Gemm(f"{name}.dX", gemm.m, gemm.n, gemm.k, gemm.batch, gemm.element_bytes,
             None if gemm.weight is None else f"{gemm.weight}.T"),
        Gemm(f"{name}.dW", gemm.k, gemm.m, gemm.n, gemm.batch, gemm.element_bytes),
    )  # fmt: skip

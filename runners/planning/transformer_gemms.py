"""The matrix products of one training step of a transformer, in the order of their execution.

Each product Y = X·W of the forward pass has two in the backward pass: dX = dY·Wᵀ, named `….dX`, and dW = Xᵀ·dY,
`….dW`, of the left and of the right operand. Products that share an input are one: q, k and v; gate and up. Attention
is a batch of products, one a sample and query head; where query heads share a key-value head, each has a copy of it, as
in the models' code.
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
    forward.append(_linear("head", batch * model.sequence, model.d_model, model.vocabulary, element_bytes))
    return forward + [back for gemm in reversed(forward) for back in backward_gemms(gemm)]


def layer_gemms(model: ModelSpec, layer: str, batch: int, element_bytes: int) -> list[Gemm]:
    """The forward products of one block."""
    tokens, d, s, head = batch * model.sequence, model.d_model, model.sequence, model.head_dim
    products = batch * model.heads

    def linear(part: str, inputs: int, outputs: int) -> Gemm:
        return _linear(f"{layer}.{part}", tokens, inputs, outputs, element_bytes)

    return [
        linear("qkv", d, model.qkv_width),
        Gemm(f"{layer}.scores.forward", s, head, s, products, element_bytes),
        Gemm(f"{layer}.values.forward", s, s, head, products, element_bytes),
        linear("projection", d, d),
        linear("up", d, model.up_width),
        linear("down", model.d_ff, d),
    ]


def _linear(name: str, tokens: int, inputs: int, outputs: int, element_bytes: int) -> Gemm:
    return Gemm(f"{name}.forward", tokens, inputs, outputs, 1, element_bytes, name)


def backward_gemms(gemm: Gemm) -> tuple[Gemm, Gemm]:
    """dX (m×n · n×k) and dW (k×m · m×n) of a forward product."""
    name = gemm.name.removesuffix(".forward")
    return (
        Gemm(f"{name}.dX", gemm.m, gemm.n, gemm.k, gemm.batch, gemm.element_bytes,
             None if gemm.weight is None else f"{gemm.weight}.T"),
        Gemm(f"{name}.dW", gemm.k, gemm.m, gemm.n, gemm.batch, gemm.element_bytes),
    )  # fmt: skip

"""The one place that finds a model's matrix products: each layer, forward and backward, as one graph of operations.

A layer's forward pass and its gradients are traced together (`make_fx`), so the model stays ordinary PyTorch and
autograd
decides what the backward pass is. In the graph every matrix product is a node of its own, `mm`, `addmm`, `bmm` or
`baddbmm`:
those can be computed elsewhere. Attention is traced by its definition (softmax(q·kᵀ)·v), not by a fused kernel, which
would hide its two products.

Layers of one kind and shape have the same graph, so a model of eighty blocks costs three traces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

# make_fx would import these two late, which takes seconds: before workers are forked it costs nothing
import torch._dynamo.utils
import torch.fx.experimental.symbolic_shapes  # noqa: F401
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from runners.costs import FLOPS_PER_BYTE
from runners.models.gpt import build_layer, layer_count, loss_sum
from runners.planning.gemm import Gemm
from testbed.cluster import ModelSpec

# of parameters -> of products, as runners/planning/transformer_gemms.py has them
_NAMES = {"logits": "head", "gate_up": "up"}
_aten = torch.ops.aten
_MM, _ADDMM = _aten.mm.default, _aten.addmm.default
_BMM, _BADDBMM = _aten.bmm.default, _aten.baddbmm.default
PRODUCTS = {_MM, _ADDMM, _BMM, _BADDBMM}
# Views cost nothing; the rest of the graph is priced by the memory that it reads and writes.
_FREE = {
    _aten.view.default, _aten._unsafe_view.default, _aten.t.default, _aten.transpose.int, _aten.permute.default,
    _aten.expand.default, _aten.detach.default, _aten.unbind.int, _aten.split.Tensor, _aten.split_with_sizes.default,
    _aten.slice.Tensor, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.select.int, _aten.alias.default,
    _aten.reshape.default,
}  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """Where an operand's values lie: node `value`, read as it is or with its last two dimensions swapped."""

    value: int
    transposed: bool


@dataclass(frozen=True)
class Product:
    """A matrix product of the graph: node `node` = A·B (+ bias), see `gemm` for shapes.

    swapped: the graph asks for Cᵀ, since autograd computes dWᵀ = dYᵀ·X where the plan has dW = Xᵀ·dY.
    bias: node added to every row, or None. weight: whether B is a parameter (or its transpose), known before the step
    begins.
    critical: whether the layer's result (forward: its output, backward: its input's gradient) waits for it.
    """

    node: int
    gemm: Gemm
    a: Operand
    b: Operand
    swapped: bool
    bias: int | None
    weight: bool
    critical: bool


@dataclass(frozen=True)
class Step:
    """An operation that is not a matrix product. flops: the FLOPs that take as long as its memory traffic."""

    node: int
    run: Callable[[list[Any]], Any]
    flops: float


@dataclass
class LayerGraph:
    """A layer's joint graph. Nodes are numbered in an order in which they can be computed.

    inputs: nodes of the parameters, of x, of the targets (head) or None, of dy (not the head) or None.
    output: y, or the mean loss at the head. gradients: of the parameters, in order. input_gradient: of x; None where x
    has none (tokens).
    needs, users: per node, which it needs and who needs it. forward: the nodes that the output needs.
    held: how many users keep a value alive (outputs count as one).
    constants: steps that need nothing. uses: of each operand, how many products read it.
    values: an example of every node's value, of its shape, without data.
    """

    parameters: list[str]
    inputs: dict[str, Any]
    output: int
    gradients: list[int]
    input_gradient: int | None
    needs: list[tuple[int, ...]]
    users: list[tuple[int, ...]]
    forward: frozenset[int]
    held: list[int]
    steps: dict[int, Step]
    products: dict[int, Product]
    constants: tuple[int, ...]
    uses: dict[int, int]
    values: list[Any] = field(repr=False, default_factory=list)


def layer_graph(spec: ModelSpec, index: int, samples: int, tokens_in_batch: int) -> LayerGraph:
    """The graph of one layer for `samples` sequences, its loss (head) a mean over `tokens_in_batch` tokens.

    Product names lack the layer: `qkv.forward`; `full_name` adds it.
    """
    kind = 0 if index == 0 else 2 if index == layer_count(spec) - 1 else 1
    representative = {0: 0, 1: 1, 2: layer_count(spec) - 1}[kind]
    return _trace(spec, representative, samples, tokens_in_batch)


def full_name(spec: ModelSpec, index: int, name: str) -> str:
    """'layer3.qkv.forward' for layer index 4 (after the embedding); the head's products are unique as they are."""
    return name if index == layer_count(spec) - 1 else f"layer{index - 1}.{name}"


@lru_cache(maxsize=32)
def _trace(spec: ModelSpec, index: int, samples: int, tokens_in_batch: int) -> LayerGraph:
    first, last = index == 0, index == layer_count(spec) - 1
    with torch.device("meta"):
        layer = build_layer(spec, index, None)
        names = [name for name, _ in layer.named_parameters()]
        parameters = [p.detach() for p in layer.parameters()]
        tokens = torch.empty(samples, spec.sequence, dtype=torch.int64)
        hidden = torch.empty(samples, spec.sequence, spec.d_model)

        def joint(parameters, x, targets, dy):
            parameters = [p.detach().requires_grad_() for p in parameters]
            if not first:
                x = x.detach().requires_grad_()
            y = torch.func.functional_call(layer, dict(zip(names, parameters)), (x,))
            if last:
                y = loss_sum(y, targets) / tokens_in_batch
            wanted = parameters if first else [*parameters, x]
            return [y, *torch.autograd.grad(y, wanted, dy)]

        arguments = (
            parameters,
            tokens if first else hidden,
            tokens if last else None,
            None if last else torch.empty_like(hidden),
        )  # two tensors: the tracer knows inputs by identity
        with sdpa_kernel(SDPBackend.MATH):
            graph = make_fx(joint, tracing_mode="real")(*arguments).graph
    graph.eliminate_dead_code()
    return _Reader(graph, names, first, last).read()


class _Reader:
    """From an fx graph to a LayerGraph."""

    def __init__(self, graph: torch.fx.Graph, parameters: list[str], first: bool, last: bool):
        nodes = [n for n in graph.nodes if n.op != "output"]
        self.parameters, self.first, self.last = parameters, first, last
        self.number = {n: i for i, n in enumerate(nodes)}
        self.nodes = nodes
        (end,) = [n for n in graph.nodes if n.op == "output"]
        self.outputs = [self.number[n] for n in end.args[0]]
        self.needs = [tuple(dict.fromkeys(self.number[m] for m in n.all_input_nodes)) for n in nodes]

    def read(self) -> LayerGraph:
        nodes, needs = self.nodes, self.needs
        places = [i for i, n in enumerate(nodes) if n.op == "placeholder"]
        count = len(self.parameters)
        named = {str(nodes[i].target).rsplit("_", 1)[0]: i for i in places}  # those that are None have one too
        inputs = {"parameters": [i for i in places if str(nodes[i].target).startswith("parameters_")], "x": named["x"],
                  "targets": named["targets"] if self.last else None,
                  "dy": None if self.last else named["dy"]}  # fmt: skip
        output, gradients = self.outputs[0], self.outputs[1 : 1 + count]
        input_gradient = None if self.first else self.outputs[1 + count]
        forward = self._ancestors(output)
        critical = forward | (self._ancestors(input_gradient) if input_gradient is not None else frozenset())
        products = self._products(inputs["parameters"], gradients, forward, critical)
        for i, p in products.items():  # a product reads its operands where they lie, not their transpositions
            needs[i] = tuple(dict.fromkeys([p.a.value, p.b.value, *(() if p.bias is None else (p.bias,))]))
        needed = self._needed(needs)
        users: list[list[int]] = [[] for _ in nodes]
        for i in needed:
            for j in needs[i]:
                users[j].append(i)
        held = [len(u) for u in users]
        for i in set(self.outputs):
            held[i] += 1
        steps = {i: self._step(i) for i in needed if nodes[i].op != "placeholder" and i not in products}
        uses = Counter(o.value for p in products.values() for o in (p.a, p.b))
        return LayerGraph(
            self.parameters, inputs, output, gradients, input_gradient, needs, [tuple(u) for u in users], forward,
            held, steps, products, tuple(i for i in steps if not needs[i]), dict(uses),
            [_empty(n.meta.get("val")) for n in nodes],
        )  # fmt: skip

    def _ancestors(self, node: int) -> frozenset[int]:
        found, stack = set(), [node]
        while stack:
            i = stack.pop()
            if i not in found:
                found.add(i)
                stack += self.needs[i]
        return frozenset(found)

    def _needed(self, needs: list[tuple[int, ...]]) -> list[int]:
        """Nodes that the outputs need; transpositions that only products read are not among them any more."""
        found, stack = set(), list(self.outputs)
        while stack:
            i = stack.pop()
            if i not in found:
                found.add(i)
                stack += needs[i]
        return sorted(found)

    def _step(self, i: int) -> Step:
        node = self.nodes[i]
        place = {n: p for p, n in enumerate(dict.fromkeys(node.all_input_nodes))}
        kwargs = {k: v for k, v in node.kwargs.items() if k != "device"}  # where it was traced, not where it runs

        def run(values: list[Any], target=node.target, args=node.args) -> Any:
            def pick(n: torch.fx.Node) -> Any:
                return values[place[n]]

            return target(*torch.fx.map_arg(args, pick), **torch.fx.map_arg(kwargs, pick))

        free = node.target in _FREE or not isinstance(node.target, torch._ops.OpOverload)
        moved = 0 if free else _nbytes(node.meta.get("val")) + sum(_nbytes(n.meta.get("val")) for n in place)
        return Step(i, run, float(FLOPS_PER_BYTE * moved))

    def _origin(self, node: torch.fx.Node) -> Operand:
        """Through transpositions and detachments to where the values lie."""
        transposed = False
        while True:
            if node.target is _aten.t.default or (node.target is _aten.transpose.int and self._swaps_last(node)):
                transposed = not transposed
            elif node.target not in (_aten.detach.default, _aten.alias.default):
                return Operand(self.number[node], transposed)
            node = node.args[0]

    @staticmethod
    def _swaps_last(node: torch.fx.Node) -> bool:
        dims = node.meta["val"].dim()
        return {d % dims for d in node.args[1:3]} == {dims - 1, dims - 2}

    def _products(self, parameters, gradients, forward, critical) -> dict[int, Product]:
        names = {}
        for p, name in zip(parameters, self.parameters):
            part = name.removesuffix(".weight")
            names[p] = _NAMES.get(part, part)
        of_gradient = {}
        for p, g in zip(parameters, gradients):
            of_gradient[self._origin(self.nodes[g]).value] = names[p]
        attention: dict[int, str] = {}  # operands of the forward pass's batched products -> which one it is
        kinds = iter(("scores", "values"))
        counts: Counter[str] = Counter()
        products = {}
        for i, node in enumerate(self.nodes):
            if node.target not in PRODUCTS:
                continue
            with_bias = node.target in (_ADDMM, _BADDBMM)
            bias = self.number[node.args[0]] if with_bias else None
            a, b = (self._origin(n) for n in (node.args[1:3] if with_bias else node.args[:2]))
            val_a, val_b = (n.meta["val"] for n in (node.args[1:3] if with_bias else node.args[:2]))
            m, k, n = val_a.shape[-2], val_a.shape[-1], val_b.shape[-1]
            batch = val_a.shape[0] if val_a.dim() == 3 else 1
            swapped, weight = False, b.value in names
            if weight:
                name = f"{names[b.value]}.{'forward' if i in forward else 'dX'}"
            elif i in of_gradient:
                name, swapped = f"{of_gradient[i]}.dW", True
                m, n, a, b = n, m, Operand(b.value, not b.transposed), Operand(a.value, not a.transposed)
            elif i in forward:
                part = next(kinds, "product")
                name = f"{part}.forward"
                attention.update({a.value: f"{part}.dW", b.value: f"{part}.dX"})  # A is in dB = Aᵀ·dC, B in dA = dC·Bᵀ
            else:
                name = next((attention[v] for v in (a.value, b.value) if v in attention), "product.backward")
            counts[name] += 1
            if counts[name] > 1:
                name = f"{name}.{counts[name]}"
            owner = names.get(b.value) if weight else None
            gemm = Gemm(name, m, k, n, batch, 4, owner if owner is None or i in forward else f"{owner}.T")
            products[i] = Product(i, gemm, a, b, swapped, bias, weight, i in critical)
        return products


def _empty(value: Any) -> Any:
    """Plain meta tensors in place of the tracer's, whose every operation takes a fraction of a millisecond."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return type(value)(_empty(v) for v in value) if isinstance(value, (tuple, list)) else value


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(_nbytes(v) for v in value) if isinstance(value, (tuple, list)) else 0


def products(model: ModelSpec, batch: int) -> list[tuple[str, Gemm, int]]:
    """(name, product, how many of them a step has): of block 0, which stands for all, and of the head."""
    found = []
    last = layer_count(model) - 1
    for index, times in ((1, model.layers), (last, 1)):
        if index == last or model.layers:
            graph = layer_graph(model, index, batch, batch * model.sequence)
            found += [(full_name(model, index, p.gemm.name), p.gemm, times) for p in graph.products.values()]
    return found

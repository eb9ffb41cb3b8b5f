"""One member's part of a model under tensor parallelism, in halves of blocks between which members reduce.

Megatron-LM (Shoeybi et al. 2019, section 3): the first product of each half (queries, keys and values; up, and gate) is
cut by columns and the second by rows, so a half needs no communication inside. Forward, the halves' partial outputs
are summed over members; backward, the gradients of the halves' normed inputs. The output projection is cut by
words, and the cross-entropy is put together from each member's part (section 3, "parallel cross entropy").
Plain synchronous PyTorch; the executor calls it inside `Node.compute`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from runners.flat import FlatLayers
from runners.models import llama
from runners.models.gpt import build_layer, layer_count
from runners.state import StateId
from runners.tensor_parallel.pieces import COMMON, KINDS, Pieces, Slices
from testbed.cluster import ModelSpec, TrainingSpec


class Half(nn.Module):
    """Norm, then this member's part of attention or of the feed-forward part: [n, s, d] -> partial sum of that shape.

    `entering` and `leaving` hold its parts, a row a piece's column, so that a piece is one slice of each.
    """

    def __init__(self, norm: nn.Module, bias: torch.Tensor | None):
        super().__init__()
        self.norm = norm
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())  # added once, to the sum
        self._saved: tuple[torch.Tensor, ...] = ()

    def partial(self, h: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The partial sum; keeps what `backward` needs."""
        x = x.detach().requires_grad_()
        normed = self.norm(x)
        h = normed.detach().requires_grad_()
        out = self.partial(h)
        self._saved = x, normed, h, out
        return out.detach()

    def add(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """The block's residual stream after this half, from its input and the sum over members."""
        out = x + total
        return out if self.bias is None else out + self.bias.detach()

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        """This member's part of the gradient of the normed input, from that of the half's output."""
        x, normed, h, out = self._saved
        if self.bias is not None:
            self.bias.grad.add_(gradient.sum((0, 1)))
        if out.requires_grad:
            out.backward(gradient)
        self._saved = x, normed
        return torch.zeros_like(h) if h.grad is None else h.grad

    def backward_norm(self, gradient: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        """Gradient of the half's input: `gradient` of its output past it, and `total`, summed over members."""
        x, normed = self._saved
        self._saved = ()
        normed.backward(total)
        return gradient + x.grad


class Attention(Half):
    """Some groups of heads."""

    def __init__(self, spec: ModelSpec, block: nn.Module, first: int, end: int):
        super().__init__(block.norm1, block.projection.bias)
        self.groups, self.per_group, self.dim = end - first, spec.heads // spec.key_heads, spec.head_dim
        self.rotary = spec.family == "llama"
        d, width = spec.d_model, (self.per_group + 2) * self.dim
        served = self.per_group * self.dim

        def grouped(rows: torch.Tensor) -> torch.Tensor:
            """Rows of the fused product, in the order q, k, v, as [groups, q k v of a group, …]."""
            q, k, v = rows.detach().split([h * self.dim for h in (spec.heads, spec.key_heads, spec.key_heads)])
            parts = [t.reshape(spec.key_heads, -1, *rows.shape[1:]) for t in (q, k, v)]
            return torch.cat(parts, dim=1)[first:end].clone()

        self.entering = nn.Parameter(grouped(block.qkv.weight))  # [groups, width, d]
        self.entering_bias = nn.Parameter(grouped(block.qkv.bias)) if spec.biased else None
        rows = block.projection.weight.detach().T.reshape(spec.key_heads, served, d)
        self.leaving = nn.Parameter(rows[first:end].clone())  # [groups, served, d]
        self.width = width

    def partial(self, h: torch.Tensor) -> torch.Tensor:
        n, s, d = h.shape
        if not self.groups:
            return torch.zeros_like(h)
        bias = None if self.entering_bias is None else self.entering_bias.flatten()
        qkv = F.linear(h, self.entering.view(-1, d), bias).view(n, s, self.groups, self.per_group + 2, self.dim)
        q = qkv[:, :, :, : self.per_group].flatten(2, 3).transpose(1, 2)  # [n, heads, s, dim]
        k, v = qkv[:, :, :, -2].transpose(1, 2), qkv[:, :, :, -1].transpose(1, 2)
        if self.rotary:
            q, k = llama.rotate(q), llama.rotate(k)
        if self.per_group > 1:
            k, v = (t.repeat_interleave(self.per_group, dim=1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(n, s, -1) @ self.leaving.view(-1, d)


class FeedForward(Half):
    """Some columns of the feed-forward part."""

    def __init__(self, spec: ModelSpec, block: nn.Module, first: int, end: int):
        super().__init__(block.norm2, block.down.bias)
        self.columns, self.gated = end - first, spec.gated
        self.activation = F.silu if spec.gated else F.relu if spec.family == "opt" else F.gelu
        product = block.gate_up if spec.gated else block.up

        def by_column(rows: torch.Tensor) -> torch.Tensor:
            """[columns, gate and up, …]"""
            parts = rows.detach().view(-1, spec.d_ff, *rows.shape[1:])
            return parts.transpose(0, 1)[first:end].clone()

        self.entering = nn.Parameter(by_column(product.weight))  # [columns, 1 or 2, d]
        self.entering_bias = nn.Parameter(by_column(product.bias)) if spec.biased else None
        self.leaving = nn.Parameter(block.down.weight.detach().T[first:end].clone())  # [columns, d]

    def partial(self, h: torch.Tensor) -> torch.Tensor:
        if not self.columns:
            return torch.zeros_like(h)
        bias = None if self.entering_bias is None else self.entering_bias.flatten()
        y = F.linear(h, self.entering.view(-1, h.shape[-1]), bias)
        if self.gated:
            gate, up = y.view(*y.shape[:-1], self.columns, 2).unbind(-1)
            return (self.activation(gate) * up) @ self.leaving
        return self.activation(y) @ self.leaving


class Shard:
    """This member's slices of all layers, in the training state `state`.

    Args:
        states: unit -> flat state (`pack`); a unit that is absent starts from the seed.
    """

    def __init__(
        self, model: ModelSpec, training: TrainingSpec, pieces: Pieces, slices: Slices, state: StateId,
        states: Mapping[int, torch.Tensor],
    ):  # fmt: skip
        self.pieces, self.slices, self.state = pieces, slices, state
        self.later: Callable[[], None] | None = None
        self._tokens_in_batch = training.batch * model.sequence
        rows = {kind: pieces.rows(kind, getattr(slices, kind)) for kind in KINDS}
        self.embedding = build_layer(model, 0, training.seed)
        self.halves: list[Half] = []
        for i in range(1, layer_count(model) - 1):
            block = build_layer(model, i, training.seed)
            self.halves += [Attention(model, block, *rows["groups"]), FeedForward(model, block, *rows["columns"])]
        head = build_layer(model, layer_count(model) - 1, training.seed)
        self.norm, self.first_word = head.norm, rows["words"][0]
        self.logits = nn.Parameter(head.logits.weight.detach()[slice(*rows["words"])].clone())
        holder = nn.Module()
        holder.parts = nn.ModuleList([self.embedding, *self.halves, self.norm])
        holder.logits = self.logits
        self._flat = FlatLayers({0: holder}, training.optimizer, state.version)
        self._slots = self._units(holder)
        for unit, flat in states.items():
            self._unpack(unit, flat)
        self.update_flops = pieces.update_flops(slices)

    # -- forward ---------------------------------------------------------------------

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        self._embedded = self.embedding(tokens)
        return self._embedded.detach()

    def logits_max(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of this member's words from the last block's output; the largest of each token, flat."""
        self._x = x.detach().requires_grad_()
        self._normed = self.norm(self._x)
        self._h = self._normed.detach().requires_grad_()
        self._scores = self._h.detach() @ self.logits.detach().T  # [n, s, words]
        if not self._scores.shape[-1]:
            return torch.full(x.shape[:2], -torch.inf).flatten()
        return self._scores.amax(-1).flatten()

    def loss_parts(self, largest: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Each token's sum of exponentials over this member's words, then its target's logit if it is one; flat."""
        self._exp = (self._scores - largest.view(*targets.shape, 1)).exp()
        here = targets - self.first_word
        self._mine = (here >= 0) & (here < self._scores.shape[-1])
        self._here = here.clamp(0, max(self._scores.shape[-1] - 1, 0))
        if not self._scores.shape[-1]:
            return torch.zeros(2 * targets.numel())
        own = self._scores.gather(-1, self._here.unsqueeze(-1)).squeeze(-1) - largest.view(targets.shape)
        return torch.cat([self._exp.sum(-1).flatten(), torch.where(self._mine, own, 0.0).flatten()])

    def loss(self, parts: torch.Tensor) -> torch.Tensor:
        """These samples' share of the batch's mean loss, a scalar, from the sums of `loss_parts`."""
        self._total, target = parts.chunk(2)
        return (self._total.log() - target).sum() / self._tokens_in_batch

    # -- backward --------------------------------------------------------------------

    def backward_logits(self) -> torch.Tensor:
        """This member's part of the gradient of the normed output of the last block."""
        n, s, words = self._scores.shape
        p = self._exp / self._total.view(n, s, 1)
        if words:
            p.scatter_add_(-1, self._here.unsqueeze(-1), -self._mine.unsqueeze(-1).to(p.dtype))
        p /= self._tokens_in_batch
        self.logits.grad.add_(p.flatten(0, 1).T @ self._h.detach().flatten(0, 1))
        self._scores = self._exp = torch.empty(0)
        return p @ self.logits.detach()

    def backward_norm(self, total: torch.Tensor) -> torch.Tensor:
        """Gradient of the last block's output, from that of its norm summed over members."""
        self._normed.backward(total)
        return self._x.grad

    def backward_embedding(self, gradient: torch.Tensor) -> None:
        self._embedded.backward(gradient)

    # -- state -----------------------------------------------------------------------

    def finish(self) -> None:
        """Do what a micro-batch left for the next computation."""
        if self.later is not None:
            self.later()
        self.later = None

    def update(self, result: StateId) -> None:
        """Apply the optimizer to the gradients gathered since the last update; the state becomes `result`."""
        self.finish()
        self._flat.update()
        self.state = result

    def pack(self) -> dict[int, torch.Tensor]:
        """Unit -> flat state, copies: weights, first moments, second moments."""
        return {
            unit: torch.cat([part[a:z] for part in self._flat.parts for a, z in spans])
            for unit, spans in self._slots.items()
        }

    def _unpack(self, unit: int, flat: torch.Tensor) -> None:
        at = 0
        for part in self._flat.parts:
            for a, z in self._slots[unit]:
                part[a:z] = flat[at : at + z - a]
                at += z - a
        if at != flat.numel():
            raise ValueError(f"state of {flat.numel()} floats for unit {unit} of {at}")

    def _units(self, holder: nn.Module) -> dict[int, list[tuple[int, int]]]:
        """Unit -> its spans in the flat tensors."""
        kinds: dict[int, str] = {id(self.logits): "words"}
        for half in self.halves:
            kind = "groups" if isinstance(half, Attention) else "columns"
            for p in (half.entering, half.entering_bias, half.leaving):
                if p is not None:
                    kinds[id(p)] = kind
        slots: dict[int, list[tuple[int, int]]] = {unit: [] for unit in self.pieces.units_of(self.slices)}
        at = 0
        for p in holder.parameters():
            kind = kinds.get(id(p))
            if kind is None:
                slots[COMMON].append((at, at + p.numel()))
            elif p.shape[0]:
                width, (first, end) = p[0].numel(), getattr(self.slices, kind)
                base = self.pieces.bounds[kind][first]
                for number in range(first, end):
                    a, z = (self.pieces.bounds[kind][number + k] - base for k in (0, 1))
                    slots[self.pieces.unit(kind, number)].append((at + a * width, at + z * width))
            at += p.numel()
        return slots


class HollowHalf:
    """A half without data."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    __call__ = forward

    def add(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return x

    def backward(self, gradient: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(gradient)

    def backward_norm(self, gradient: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return gradient


class HollowShard:
    """A shard without data: the same calls and shapes, on torch's meta device, and no arithmetic."""

    def __init__(
        self, model: ModelSpec, training: TrainingSpec, pieces: Pieces, slices: Slices, state: StateId,
        states: Mapping[int, torch.Tensor],
    ):  # fmt: skip
        self.pieces, self.slices, self.state = pieces, slices, state
        self.later: Callable[[], None] | None = None
        self.halves = [HollowHalf() for _ in range(2 * model.layers)]
        self._width = model.d_model
        self.update_flops = pieces.update_flops(slices)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        self._shape = (*tokens.shape, self._width)
        return torch.empty(self._shape, device="meta")

    def logits_max(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.shape[0] * x.shape[1], device="meta")

    def loss_parts(self, largest: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.empty(2 * targets.numel(), device="meta")

    def loss(self, parts: torch.Tensor) -> torch.Tensor:
        return torch.empty((), device="meta")

    def backward_logits(self) -> torch.Tensor:
        return torch.empty(self._shape, device="meta")

    def backward_norm(self, total: torch.Tensor) -> torch.Tensor:
        return total

    def backward_embedding(self, gradient: torch.Tensor) -> None:
        pass

    def finish(self) -> None:
        pass

    def update(self, result: StateId) -> None:
        self.state = result

    def pack(self) -> dict[int, torch.Tensor]:
        units = self.pieces.units_of(self.slices)
        return {unit: torch.empty(3 * self.pieces.unit_parameters(unit), device="meta") for unit in units}


def make_shard(*args) -> Shard | HollowShard:
    """A Shard; a HollowShard where meta is the default device."""
    return (HollowShard if torch.get_default_device().type == "meta" else Shard)(*args)

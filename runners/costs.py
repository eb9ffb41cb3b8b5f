"""What a layer costs: FLOPs, parameters, bytes of state, of activations and of its output.

Counts are for float32 and for one sample (a sequence of s tokens) unless they say otherwise. With d =
d_model, f = d_ff, q = columns of queries, keys and values (3 d without grouped heads), u = f or with a gate 2 f,
V = vocabulary, forward FLOPs of a block are those of its matrix products,

    s (2 d q + 2 d² + 2 d u + 2 f d) + 4 s² d        (qkv, projection, feed-forward; scores and mixing)

as torch.utils.flop_counter counts them (a product of m×k by k×n is 2 m k n; the causal half of the
attention scores is counted though a fused kernel skips it; norms, GELU and softmax are not counted). The
backward pass of a matrix product is two of the same size, so it takes twice the forward FLOPs (Narayanan
et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", appendix).
"""

from __future__ import annotations

from dataclasses import dataclass

from runners.models.gpt import layer_count, layer_name
from testbed.cluster import ModelSpec

FLOAT = 4  # bytes
INDEX = 8  # bytes of an int64 token
BACKWARD = 2  # backward FLOPs / forward FLOPs
GRADIENT_BYTES = FLOAT
STATE_BYTES = 3 * FLOAT  # weight and AdamW's two moments: what a checkpoint holds, per parameter
# An update does some 14 operations a parameter, but its time is that of memory: w, m, v read and written, g
# read. It is priced at what a device could compute meanwhile (the roofline of Williams et al. 2009).
ADAMW_TRAFFIC_BYTES = 7 * FLOAT  # per parameter
FLOPS_PER_BYTE = 4  # a small computer's balance, assumed: say 60 GFLOP/s sustained beside 15 GB/s of memory


@dataclass(frozen=True)
class LayerCost:
    """One layer, per sample.

    parameters: count (not per sample). forward_flops, backward_flops: matrix products.
    activation_bytes: kept from the forward to the backward pass, its own input included, its output not.
    output_bytes: its output, as it crosses to the next layer in float32; 0 for the head.
    working_bytes: needed on top while this layer's backward runs.
    """

    name: str
    parameters: int
    forward_flops: float
    activation_bytes: int
    output_bytes: int
    working_bytes: int

    @property
    def backward_flops(self) -> float:
        return BACKWARD * self.forward_flops

    @property
    def state_bytes(self) -> int:
        """Weights and optimizer moments: what moves when the layer moves."""
        return STATE_BYTES * self.parameters

    @property
    def update_flops(self) -> float:
        """One AdamW step: the FLOPs that take as long as its memory traffic."""
        return ADAMW_TRAFFIC_BYTES * FLOPS_PER_BYTE * self.parameters


def layer_costs(spec: ModelSpec) -> tuple[LayerCost, ...]:
    """Costs of the embedding, the blocks and the head, in order."""
    d, f, s, v = spec.d_model, spec.d_ff, spec.sequence, spec.vocabulary
    q, u = spec.qkv_width, spec.up_width
    bias = 1 if spec.biased else 0
    norm = (1 + bias) * d  # parameters
    embedding = LayerCost(
        name=layer_name(spec, 0), parameters=(v + spec.position_rows) * d, forward_flops=0.0,
        activation_bytes=(2 if spec.position_rows else 1) * INDEX * s, output_bytes=FLOAT * s * d,
        working_bytes=FLOAT * s * d,
    )  # fmt: skip
    block = LayerCost(
        name="", parameters=d * (q + d) + d * (u + f) + bias * (q + u + 2 * d) + 2 * norm,
        forward_flops=float(s * 2 * d * (q + d + u + f) + 4 * s * s * d),
        activation_bytes=FLOAT * s * _kept_per_token(spec),
        output_bytes=FLOAT * s * d, working_bytes=FLOAT * s * 2 * max(u, q),
    )  # fmt: skip
    head = LayerCost(
        name=layer_name(spec, spec.layers + 1), parameters=norm + v * d, forward_flops=float(2 * s * d * v),
        activation_bytes=FLOAT * s * (_norm_kept(spec) + d + v) + INDEX * s,
        output_bytes=0, working_bytes=FLOAT * s * 2 * v,
    )  # fmt: skip
    blocks = [LayerCost(**{**block.__dict__, "name": layer_name(spec, i)}) for i in range(1, layer_count(spec) - 1)]
    return (embedding, *blocks, head)


def _norm_kept(spec: ModelSpec) -> int:
    """Floats per token that autograd keeps of a norm: its input with mean and deviation (LayerNorm), or its input,
    the root mean square and their quotient (RMSNorm)."""
    return spec.d_model + 2 if spec.biased else 2 * spec.d_model + 1


def _kept_per_token(spec: ModelSpec) -> int:
    """Floats per token that autograd keeps of a block, its input included and its output not."""
    d, f = spec.d_model, spec.d_ff
    kept = 2 * _norm_kept(spec) + spec.heads  # and a log-sum-exp of each head
    kept += 3 * d + f  # what products take: both norms' results, the mixed heads, the activation's result
    if spec.family != "llama":
        return kept + 3 * d + (f if spec.family == "gpt" else 0)  # q, k, v; GELU keeps its input, ReLU its result alone
    # q and k rotated, and v: where nothing is repeated for groups, v is a part of qkv and keeps it whole
    kept += 3 * d if spec.key_heads < spec.heads else 2 * d + spec.qkv_width
    return kept + d + 3 * f  # a copy of the mixed heads; gate and up, silu(gate)


def model_parameters(spec: ModelSpec) -> int:
    """As trained here: with a head of its own."""
    return sum(layer.parameters for layer in layer_costs(spec))


def published_parameters(spec: ModelSpec) -> int:
    """As published: a head that is tied to the embedding counts once."""
    return model_parameters(spec) - (spec.vocabulary * spec.d_model if spec.tied_head else 0)


def training_flops(spec: ModelSpec, samples: int) -> float:
    """FLOPs of one optimizer step over `samples` sequences, without recomputation."""
    layers = layer_costs(spec)
    return sum(samples * (c.forward_flops + c.backward_flops) + c.update_flops for c in layers)

"""Model and training settings, as runners read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FAMILIES = ("gpt", "opt", "llama")
OPT_POSITION_OFFSET = 2  # OPT's table of positions starts with two rows that are never used


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer, pre-norm. The default: GPT-2's blocks over a byte vocabulary.

    family: what the blocks are made of, see docs/models.md
        gpt: LayerNorm, learned positions, biases, GELU;
        opt: the same with ReLU, and OPT's table of positions;
        llama: RMSNorm, rotary positions, no biases, SwiGLU (gate and up of width d_ff, then down).
    kv_heads: of keys and values; each serves heads / kv_heads query heads. None: as many as heads.
    positions: rows of the table of learned positions (the model's context). None: sequence.
    tied_head: whether the published model uses the embedding as its output projection. Runners train a head of its
        own in any case, which keeps every parameter in one layer.
    """

    name: str = "gpt"
    layers: int = 4
    d_model: int = 128
    heads: int = 4
    d_ff: int = 512
    sequence: int = 64  # tokens a sample
    vocabulary: int = 256
    family: str = "gpt"
    kv_heads: int | None = None
    positions: int | None = None
    tied_head: bool = False

    @property
    def head_dim(self) -> int:
        return self.d_model // self.heads

    @property
    def key_heads(self) -> int:
        """Heads of keys, and as many of values."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def qkv_width(self) -> int:
        """Columns of the fused product that makes queries, keys and values, in this order."""
        return (self.heads + 2 * self.key_heads) * self.head_dim

    @property
    def gated(self) -> bool:
        """Whether the feed-forward part has a gate: its first product then has 2 d_ff columns, gate before up."""
        return self.family == "llama"

    @property
    def up_width(self) -> int:
        """Columns of the feed-forward part's first product, gate included."""
        return 2 * self.d_ff if self.gated else self.d_ff

    @property
    def biased(self) -> bool:
        """Whether linear layers (but for the head) and norms have biases."""
        return self.family != "llama"

    @property
    def position_rows(self) -> int:
        """Rows of the table of learned positions; 0 with rotary ones."""
        if self.family == "llama":
            return 0
        rows = self.sequence if self.positions is None else self.positions
        return rows + (OPT_POSITION_OFFSET if self.family == "opt" else 0)


@dataclass(frozen=True)
class OptimizerSpec:
    name: str = "adamw"
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    eps: float = 1e-8


@dataclass(frozen=True)
class TrainingSpec:
    """One training job. `batch` is the global batch in samples (sequences) and stays constant under churn."""

    runner: str = "pipeline"
    batch: int = 16
    micro_batches: int = 4
    steps: int = 20
    seed: int = 0
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    options: dict[str, Any] = field(default_factory=dict)  # the runner's own, e.g. schedule, recovery

"""Model and training settings, as runners read them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only transformer (GPT style, pre-norm, learned positions, byte vocabulary by default)."""

    name: str = "gpt"
    layers: int = 4
    d_model: int = 128
    heads: int = 4
    d_ff: int = 512
    sequence: int = 64  # tokens a sample
    vocabulary: int = 256


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

"""Training text that is on every machine: the sources of Python's own standard library, byte by byte.

A batch is a pure function of (seed, step), so every node makes the same one by itself and no text crosses
a link.
"""

from __future__ import annotations

import os
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from testbed.cluster import ModelSpec, TrainingSpec
from testbed.errors import InputError

CORPUS_BYTES = 2_000_000
BYTES = 256  # one token a byte


def sources(root: Path) -> list[Path]:
    """The library's own .py files below `root`, in an order that does not depend on the file system."""
    top = sorted(p for p in root.glob("*.py") if p.is_file())
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}
    packages = sorted(p for p in root.iterdir() if p.is_dir() and p.name not in skipped)
    inner = [
        f for package in packages for f in sorted(package.rglob("*.py"))
        if f.is_file() and not skipped.intersection(f.relative_to(root).parts)
    ]  # fmt: skip
    return top + inner


@lru_cache(maxsize=4)
def corpus(root: str | None = None, limit: int = CORPUS_BYTES) -> np.ndarray:
    """The first `limit` bytes of the sources, uint8.

    Raises:
        InputError: no source is to be found (some minimal installations ship byte code alone).
    """
    where = Path(root or sysconfig.get_path("stdlib") or os.path.dirname(os.__file__))
    parts: list[bytes] = []
    size = 0
    for path in sources(where) if where.is_dir() else ():
        parts.append(path.read_bytes())
        size += len(parts[-1])
        if size >= limit:
            break
    if size == 0:
        raise InputError(
            str(where), "no Python source found to train on; expected the standard library's .py files",
            hint="install the full standard library (Debian: libpython3-stdlib)",
        )  # fmt: skip
    return np.frombuffer(b"".join(parts)[:limit], dtype=np.uint8)


def micro_batch_sizes(batch: int, micro_batches: int) -> tuple[int, ...]:
    """Samples of each micro-batch: as even as can be, the larger ones first."""
    base, extra = divmod(batch, micro_batches)
    return tuple(base + (i < extra) for i in range(micro_batches))


@dataclass(frozen=True)
class Batches:
    """The batches of one training job."""

    model: ModelSpec
    training: TrainingSpec
    root: str | None = None  # of the sources; None: the running interpreter's

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and targets of a step, both int64 [batch, sequence], on the default device."""
        n, s = self.training.batch, self.model.sequence
        if torch.get_default_device().type == "meta":
            return torch.empty(n, s, dtype=torch.int64), torch.empty(n, s, dtype=torch.int64)
        text = corpus(self.root)
        if len(text) <= s:  # a tiny library: repeat it
            text = np.tile(text, s // len(text) + 2)
        generator = np.random.default_rng([self.training.seed % 2**63, step])
        starts = generator.integers(0, len(text) - s, size=n)
        rows = text[starts[:, None] + np.arange(s + 1)].astype(np.int64)
        return torch.as_tensor(rows[:, :-1].copy()), torch.as_tensor(rows[:, 1:].copy())

    def micro_batches(self, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The same batch cut into micro-batches, in order."""
        tokens, targets = self.batch(step)
        sizes = micro_batch_sizes(self.training.batch, self.training.micro_batches)
        return list(zip(tokens.split(sizes), targets.split(sizes)))

"""Shared checks for tests of the GEMM planner: random clusters, and what every set of blocks has to be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from runners.planning.gemm import STREAMED, Block, Gemm
from testbed.cluster import Cluster, Device, Link
from testbed.cluster.model import SERVER

chunk_counts = st.sampled_from([1, 1, 1, 4, STREAMED])


def uniform_cluster(
    devices: int,
    *,
    flops: float = 1e10,
    memory: int = 1 << 40,
    up: float = 1e7,
    down: float = 5e7,
    delay: float = 0.01,
    server: float = 1e12,
) -> Cluster:
    link = Link(up, down, delay, delay)
    return Cluster(
        Device(SERVER, 1e9, 1 << 40, Link(server, server)),
        tuple(Device(f"h{i}", flops, memory, link) for i in range(devices)),
    )


def mixed_cluster(
    rng: np.random.Generator,
    devices: int,
    *,
    spread: float = 1.0,
    memory: Sequence[int] = (1 << 40,),
    server: float = 1e15,
) -> Cluster:
    """Devices whose speeds and rates differ by up to 10^spread, uplinks 2 to 10 times slower than downlinks."""

    def device(i: int) -> Device:
        down = 1e7 * 10 ** rng.uniform(0, spread)
        link = Link(down / rng.uniform(2, 10), down, rng.uniform(0, 0.03), rng.uniform(0, 0.03))
        return Device(f"h{i}", 1e10 * 10 ** rng.uniform(0, spread), int(memory[i % len(memory)]), link)

    return Cluster(Device(SERVER, 1e9, 1 << 40, Link(server, server)), tuple(device(i) for i in range(devices)))


@st.composite
def clusters(draw, most: int = 16) -> Cluster:
    """Anything: one device or many, no memory, next to none or plenty, speeds and rates over orders of magnitude."""
    count = draw(st.one_of(st.integers(1, 3), st.integers(1, most)))
    spread = draw(st.sampled_from([0, 1, 4]))
    memories = st.sampled_from([0, 1, 40, 400, 5_000, 10**5, 10**7, 10**11])
    magnitude = st.floats(0, spread, allow_nan=False)
    server = 10 ** draw(st.floats(6, 11))

    def device(i: int) -> Device:
        link = Link(
            1e6 * 10 ** draw(magnitude), 1e7 * 10 ** draw(magnitude), draw(st.floats(0, 0.1)), draw(st.floats(0, 0.1))
        )
        return Device(f"h{i}", 1e8 * 10 ** draw(magnitude), draw(memories), link)

    return Cluster(
        Device(SERVER, 1e9, 1 << 40, Link(server, server, 0.001, 0.001)), tuple(device(i) for i in range(count))
    )


@st.composite
def products(draw) -> Gemm:
    side = draw(st.sampled_from([2, 6, 30]))
    return Gemm(
        "test",
        draw(st.integers(1, side)),
        draw(st.sampled_from([1, 7, 64, 3000])),
        draw(st.integers(1, side)),
        draw(st.sampled_from([1, 1, 2, 13])),
        draw(st.sampled_from([2, 4])),
    )


def coverage(gemm: Gemm, blocks: Sequence[Block]) -> np.ndarray:
    """How often each element of each product is computed; every block must lie within the product."""
    counts = np.zeros((gemm.batch, gemm.m, gemm.n), np.int16)
    for b in blocks:
        assert 0 <= b.row0 < b.row1 <= gemm.m
        assert 0 <= b.col0 < b.col1 <= gemm.n
        assert 0 <= b.batch0 < b.batch1 <= gemm.batch
        counts[b.batch0 : b.batch1, b.row0 : b.row1, b.col0 : b.col1] += 1
    return counts


def block_bytes(gemm: Gemm, b: Block) -> int:
    return gemm.element_bytes * b.products * (gemm.k * (b.rows + b.columns) + b.rows * b.columns)


def assert_memory_holds(cluster: Cluster, gemm: Gemm, blocks: Sequence[Block]) -> None:
    for b in blocks:
        if b.device != SERVER:
            assert block_bytes(gemm, b) <= cluster.device(b.device).memory_bytes, b

"""A matrix product on its way: its operands, the tasks that its blocks became, the result put together from them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import torch

from runners.cleave.hollow import example
from runners.cleave.verification import agrees
from runners.costs import FLOAT, FLOPS_PER_BYTE
from runners.planning.gemm import Block, GemmPlan

if TYPE_CHECKING:
    from runners.cleave.capture import Product

Region = tuple[int, int, int, int, int, int]  # half-open: batch, rows, columns, as the value is stored


class View:
    """An operand: a tensor as stored ([rows, columns] or [batch, rows, columns]), read transposed or not.

    key: names its values; the same for all products of a step that read them. uses: how many products do.
    """

    __slots__ = ("columns", "flat", "hollow", "key", "rows", "tensor", "transposed", "turned", "uses")

    def __init__(self, key: Hashable, tensor: torch.Tensor, transposed: bool, uses: int):
        self.key, self.tensor, self.transposed, self.uses = key, tensor, transposed, uses
        self.turned = int(transposed)
        shape = tuple(tensor.shape)
        self.flat = len(shape) == 2
        self.hollow = tensor.is_meta
        self.rows, self.columns = shape[-2:]  # as stored

    @property
    def matrix(self) -> torch.Tensor:
        return self.tensor.mT if self.transposed else self.tensor

    def region(self, batch0: int, batch1: int, rows: tuple[int, int] | None, columns: tuple[int, int] | None) -> Region:
        """Where rows and columns of the operand lie in the stored tensor; None: all of them."""
        if self.transposed:
            rows, columns = columns, rows
        r0, r1 = rows or (0, self.rows)
        c0, c1 = columns or (0, self.columns)
        return batch0, batch1, r0, r1, c0, c1

    def cut(self, region: Region) -> torch.Tensor:
        b0, b1, r0, r1, c0, c1 = region
        if self.hollow:
            return example((r1 - r0, c1 - c0) if self.flat else (b1 - b0, r1 - r0, c1 - c0), self.tensor.dtype)
        return self.tensor[r0:r1, c0:c1] if self.flat else self.tensor[b0:b1, r0:r1, c0:c1]

    def whole(self, region: Region) -> bool:
        """Whether the region has all rows and columns of its products."""
        return region[2:] == (0, self.rows, 0, self.columns)

    @property
    def layout(self) -> tuple[int, int, bool, bool]:
        """All that regions depend on."""
        return self.rows, self.columns, self.flat, self.transposed


def count(region: Region) -> int:
    """Elements in it."""
    b0, b1, r0, r1, c0, c1 = region
    return (b1 - b0) * (r1 - r0) * (c1 - c0)


class Extent:
    """What a block needs of A and B, and what it gives. Layers repeat, so it is made once for each piece of a plan."""

    __slots__ = ("a", "a_elements", "b", "b_elements", "elements", "flops", "shape")

    def __init__(self, block: Block, a: View, b: View, k: int):
        self.a = a.region(block.batch0, block.batch1, (block.row0, block.row1), None)
        self.b = b.region(block.batch0, block.batch1, None, (block.col0, block.col1))
        rows, columns, products = block.rows, block.columns, block.products
        self.a_elements, self.b_elements = count(self.a), count(self.b)
        self.shape = (rows, columns) if a.flat else (products, rows, columns)  # of its result
        self.elements = products * rows * columns
        self.flops = 2.0 * self.elements * k


class Task:
    """One block on one device. `parent`: the task that it replaces in part; `children`: those that replace it."""

    __slots__ = (
        "block", "children", "deadline_s", "device", "done", "down_bytes", "down_from_s", "expected_s", "extent",
        "flops", "generation", "id", "job", "parent", "resident_bytes", "sent_s", "tries", "up_bytes",
    )  # fmt: skip

    def __init__(self, job: Job, block: Block, parent: Task | None = None, extent: Extent | None = None):
        self.id, self.job, self.block, self.device, self.parent = 0, job, block, block.device, parent
        self.children: Sequence[Task] = ()
        self.done = False
        self.tries = parent.tries if parent is not None else 0
        self.generation = 0
        self.sent_s = self.down_from_s = self.expected_s = 0.0
        self.deadline_s = math.inf
        self.down_bytes = self.up_bytes = 0
        if extent is None:
            extent = Extent(block, job.a, job.b, job.product.gemm.k)
        self.extent, self.flops = extent, extent.flops
        # at the device, as the planner counts it
        self.resident_bytes = job.resident_bytes * (extent.a_elements + extent.b_elements + extent.elements)

    @property
    def satisfied(self) -> bool:
        """Whether its result is there, or that of a task that it stems from."""
        task = self
        while not task.done:
            task = task.parent
            if task is None:
                return False
        return True


class Job:
    """A product C = A·B in the making.

    Args:
        name: of the product, e.g. 'layer3.qkv.dX'.
        bias: added to every row of C, or None.
        priority: lower goes first.
        finished: gets the job when all of C has arrived.
    """

    def __init__(self, name: str, product: Product, a: View, b: View, bias: torch.Tensor | None, priority: int,
                 finished: asyncio.Queue[Job]):  # fmt: skip
        self.name, self.product, self.a, self.b, self.bias = name, product, a, b, bias
        self.priority, self.finished = priority, finished
        self.plan: GemmPlan | None = None
        self.open = 0  # tasks of the plan that are not done
        self.parts: list[tuple[Task, torch.Tensor]] = []
        self.bad: list[tuple[Task, str]] = []
        self.result: torch.Tensor | None = None
        self.resident_bytes = FLOAT  # that an element takes in a device's memory
        self.check_rounds = 0
        self.rounding = 0.0
        self.assembly_flops = float(FLOPS_PER_BYTE * 2 * FLOAT * product.gemm.batch * product.gemm.m * product.gemm.n)

    def complete(self, task: Task) -> bool:
        """Mark a task done; True when that completes the product."""
        task.done = True
        while task.parent is not None:
            task = task.parent
            if task.done or not all(child.done for child in task.children):
                return False
            task.done = True
        self.open -= 1
        return self.open == 0

    def assemble(self) -> bool:
        """C from its parts; False when some are wrong: they are in `bad` then, and not done any more."""
        for task, part in self.parts:
            why = self._fault(task, part)
            if why is not None:
                self.bad.append((task, why))
        if self.bad:
            wrong = {task for task, _ in self.bad}
            self.parts = [(task, part) for task, part in self.parts if task not in wrong]
            return False
        g = self.product.gemm
        shape = (g.m, g.n) if self.a.flat else (g.batch, g.m, g.n)
        c = torch.empty(shape, dtype=torch.float32)
        for task, part in self.parts:
            b = task.block
            if self.a.flat:
                c[b.row0 : b.row1, b.col0 : b.col1] = part
            else:
                c[b.batch0 : b.batch1, b.row0 : b.row1, b.col0 : b.col1] = part
        if self.product.swapped:
            c = c.mT
        self.result = c if self.bias is None else c.add_(self.bias)
        self.parts = []
        return True

    def _fault(self, task: Task, part: torch.Tensor) -> str | None:
        if not torch.isfinite(part.sum()) and not torch.isfinite(part).all():
            # a second device says the same: training itself has diverged
            return None if task.tries else "values that are not finite"
        if self.check_rounds:
            left, right = self.a.cut(task.extent.a), self.b.cut(task.extent.b)
            left = left.mT if self.a.transposed else left
            right = right.mT if self.b.transposed else right
            if not agrees(left, right, part.view(*left.shape[:-1], right.shape[-1]), self.check_rounds, self.rounding):
                return "a product that fails Freivalds' test"
        return None

"""Runs a layer's graph: what is ready is computed at the server, products go out, and each result lets others go on.

Between two products the server's part is one `Node.compute`, whatever the number of operations. Products whose operands
are ready leave together, so that dX and dW, or anything else that the graph leaves independent, are computed at the
same
time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from runners.cleave.capture import LayerGraph, Operand, Product
from runners.cleave.job import Job, View
from runners.cleave.products import CRITICAL, LATER, Products
from testbed.runtime import Node

_uids = itertools.count(1)


class LayerRun:
    """One layer in one step.

    Args:
        names: product's node -> its full name.
        parameters: in the graph's order.
    """

    def __init__(self, graph: LayerGraph, names: Mapping[int, str], parameters: list[torch.Tensor], node: Node,
                 products: Products):  # fmt: skip
        self._graph, self._names, self._node, self._products = graph, names, node, products
        self._uid = next(_uids)
        self._hollow = parameters[0].is_meta  # no data: shapes are all there is
        self._values: list[Any] = [None] * len(graph.needs)
        self._missing = [len(needs) for needs in graph.needs]
        self._held = list(graph.held)
        self._backward = False
        self._ready = [i for i in graph.constants if i in graph.forward]
        self._early = [i for i in graph.constants if i not in graph.forward]  # of the backward pass, before it begins
        self._given: dict[int, Any] = dict(zip(graph.inputs["parameters"], parameters))
        self._weights = dict(self._given)

    def upcoming(self, *, backward: bool) -> list[tuple[str, Product, View]]:
        """Products with a weight as right operand, in order: (name, product, the weight)."""
        graph = self._graph
        return [
            (self._names[i], p, self._view(p.b, self._weights[p.b.value]))
            for i, p in graph.products.items() if p.weight and (i not in graph.forward) == backward
        ]  # fmt: skip

    async def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The layer's output, or the mean loss."""
        inputs = self._graph.inputs
        self._given[inputs["x"]] = x
        if targets is not None:
            self._given[inputs["targets"]] = targets
        await self._drive(None)
        return self._values[self._graph.output]

    async def backward(self, dy: torch.Tensor | None, reached: asyncio.Future) -> list[torch.Tensor]:
        """Gradients of the parameters. `reached` gets the input's gradient (or None) as soon as it is known."""
        self._backward = True
        self._ready, self._early = self._early, []
        if dy is not None:
            self._given[self._graph.inputs["dy"]] = dy
        if self._graph.input_gradient is None:
            reached.set_result(None)
        await self._drive(reached)
        return [self._values[g] for g in self._graph.gradients]

    # -- inside ------------------------------------------------------------------------

    def _view(self, operand: Operand, value: torch.Tensor) -> View:
        return View((self._uid, operand.value), value, operand.transposed, self._graph.uses[operand.value])

    async def _drive(self, reached: asyncio.Future | None) -> None:
        values, goal = self._values, self._graph.input_gradient
        done: asyncio.Queue[Job] = asyncio.Queue()
        given, self._given = self._given, {}
        for i, value in given.items():
            values[i] = value
        new: Iterable[int] = given
        finished: list[Job] = []
        outstanding = 0
        while True:
            order, sent = self._walk(new)
            if order or finished:
                await self._segment(finished, order)
            for i in sent:
                self._submit(i, done)
            outstanding += len(sent)
            if reached is not None and not reached.done() and values[goal] is not None:
                reached.set_result(values[goal])
            if not outstanding:
                return
            finished = [await done.get()]
            while not done.empty():
                finished.append(done.get_nowait())
            outstanding -= len(finished)
            new = [job.product.node for job in finished]

    def _walk(self, new: Iterable[int]) -> tuple[list[int], list[int]]:
        """What follows once `new` are there: (nodes to compute at the server, in order; products to send)."""
        graph, missing = self._graph, self._missing
        heap, self._ready = sorted(self._ready), []
        order: list[int] = []
        sent: list[int] = []

        def available(i: int) -> None:
            for user in graph.users[i]:
                missing[user] -= 1
                if missing[user] == 0:
                    if self._backward or user in graph.forward:
                        heapq.heappush(heap, user)
                    else:
                        self._early.append(user)

        for i in new:
            available(i)
        while heap:
            i = heapq.heappop(heap)
            product = graph.products.get(i)
            if product is None or self._products.is_local(product.gemm):
                order.append(i)
                available(i)
            else:
                sent.append(i)
        return order, sent

    async def _segment(self, finished: list[Job], order: list[int]) -> None:
        """Put finished products together and compute what follows, all in one piece of the server's time."""
        graph = self._graph
        flops = sum(job.assembly_flops for job in finished)
        label = "elementwise"
        for i in order:
            step = graph.steps.get(i)
            if step is not None:
                flops += step.flops
            else:
                flops += graph.products[i].gemm.flops
                label = self._names[i]
        todo = list(finished)
        while True:
            bad = await self._node.compute(self._work, todo, order, flops=flops, label=label)
            if not bad:
                return
            todo = await self._products.redo(bad)
            flops = sum(job.assembly_flops for job in todo)

    def _work(self, jobs: list[Job], order: list[int]) -> list[Job]:
        """In the compute thread. Jobs with wrong results; the rest is done only when there are none."""
        if self._hollow:
            for job in jobs:
                job.parts = []  # they refer to the job: a cycle
            for i in [job.product.node for job in jobs] + order:
                self._values[i] = self._graph.values[i]
            return []
        bad = [job for job in jobs if not job.assemble()]
        if bad:
            for job in jobs:
                if job not in bad:
                    self._take(job)
            return bad
        for job in jobs:
            self._take(job)
        with torch.no_grad():
            for i in order:
                self._run(i)
        return []

    def _take(self, job: Job) -> None:
        i = job.product.node
        self._values[i] = job.result
        self._release(i)

    def _run(self, i: int) -> None:
        graph, values = self._graph, self._values
        step = graph.steps.get(i)
        if step is not None:
            values[i] = step.run([values[j] for j in graph.needs[i]])
        else:
            product = graph.products[i]
            a, b = (self._view(o, values[o.value]).matrix for o in (product.a, product.b))
            c = a @ b
            if product.swapped:
                c = c.mT
            values[i] = c if product.bias is None else c.add_(values[product.bias])
        self._release(i)

    def _release(self, i: int) -> None:
        """Forget values that no one needs any more."""
        values, held = self._values, self._held
        for j in self._graph.needs[i]:
            held[j] -= 1
            if held[j] == 0:
                values[j] = None

    def _submit(self, i: int, done: asyncio.Queue[Job]) -> None:
        product, values = self._graph.products[i], self._values
        # views between a value and the product were computed at the server, but what is sent is the value itself
        a, b = (self._view(o, values[o.value]) for o in (product.a, product.b))
        self._products.submit(Job(
            self._names[i], product, a, b, None if product.bias is None else values[product.bias],
            CRITICAL if product.critical else LATER, done,
        ))  # fmt: skip

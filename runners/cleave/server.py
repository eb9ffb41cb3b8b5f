"""The server's part: parameters, optimizer state and activations live here, and all is done that is no product."""

from __future__ import annotations

import asyncio

import torch

from runners.cleave.capture import LayerGraph, full_name, layer_graph
from runners.cleave.dataflow import LayerRun
from runners.cleave.options import CleaveOptions
from runners.cleave.products import Products
from runners.costs import layer_costs
from runners.data import Batches
from runners.flat import FlatLayers
from runners.models.gpt import build_layer, layer_count
from testbed.cluster import TrainingSpec
from testbed.runtime import Node, Plan

SET_UP_S = 0.5  # tracing and building, before the first step


class _Layer:
    """A layer with its graph and its optimizer; without data (simulation) there is nothing to optimize."""

    def __init__(self, plan: Plan, index: int, graph: LayerGraph):
        model, training = plan.model, plan.training
        module = build_layer(model, index, training.seed)
        self.graph = graph
        self.names = {i: full_name(model, index, p.gemm.name) for i, p in graph.products.items()}
        self.update_flops = layer_costs(model)[index].update_flops
        self._modules = list(module.parameters())
        hollow = self._modules[0].is_meta
        self._flat = None if hollow else FlatLayers({index: module}, training.optimizer)
        self.parameters = [p.detach() for p in self._modules]

    def update(self, gradients: list[torch.Tensor]) -> None:
        if self._flat is None:
            return
        for parameter, gradient in zip(self._modules, gradients):
            parameter.grad.copy_(gradient)
        self._flat.update()


class Server:
    """One training job, seen from the server."""

    def __init__(self, node: Node, plan: Plan, options: CleaveOptions):
        self._node, self._plan, self._options = node, plan, options
        self._training: TrainingSpec = plan.training
        self._batches = Batches(plan.model, plan.training)

    async def run(self, steps: int | None = None) -> None:
        """Train; returns when the last step is complete."""
        node = self._node
        self._layers = await node.compute(self._build, flops=SET_UP_S * node.device.flops, label="set up")
        self._products = Products(node, self._plan.cluster, self._options)
        self._products.start()
        try:
            training = asyncio.ensure_future(self._train(self._training.steps if steps is None else steps))
            await asyncio.wait([training, self._products.failed], return_when=asyncio.FIRST_COMPLETED)
            if not training.done():
                training.cancel()
                await asyncio.wait([training])
                self._products.failed.result()
            training.result()
        finally:
            await self._products.stop()

    def _build(self) -> list[_Layer]:
        model, samples = self._plan.model, self._training.batch
        tokens = samples * model.sequence
        return [
            _Layer(self._plan, i, layer_graph(model, i, samples, tokens)) for i in range(layer_count(model))
        ]  # fmt: skip

    async def _train(self, steps: int) -> None:
        for step in range(steps):
            await self._step(step)

    async def _step(self, step: int) -> None:
        node, products = self._node, self._products
        start = node.now()
        runs = [LayerRun(layer.graph, layer.names, layer.parameters, node, products) for layer in self._layers]
        forward = [p for run in runs for p in run.upcoming(backward=False)]
        backward = [p for run in reversed(runs) for p in run.upcoming(backward=True)]
        products.begin_step(step, forward + backward)
        x, targets = self._batches.batch(step)
        for run in runs[:-1]:
            x = await run.forward(x)
        loss = await runs[-1].forward(x, targets)
        value: list[float | None] = []
        updates = []
        gradient = None
        for run, layer in zip(reversed(runs), reversed(self._layers)):
            reached = asyncio.get_running_loop().create_future()
            update = asyncio.create_task(self._backward(run, layer, gradient, reached, loss, value))
            updates.append(update)
            await asyncio.wait([reached, update], return_when=asyncio.FIRST_COMPLETED)
            if not reached.done():
                update.result()
            gradient = reached.result()
        await asyncio.gather(*updates)
        self._report(step, start, value[0])

    async def _backward(self, run: LayerRun, layer: _Layer, dy: torch.Tensor | None, reached: asyncio.Future,
                        loss: torch.Tensor, value: list[float | None]) -> None:  # fmt: skip
        gradients = await run.backward(dy, reached)

        def update() -> None:
            layer.update(gradients)
            if layer is self._layers[-1]:
                value.append(None if loss.is_meta else float(loss))

        await self._node.compute(update, flops=layer.update_flops, label="update")

    def _report(self, step: int, start: float, loss: float | None) -> None:
        products, traffic = self._products, self._products.traffic
        self._node.record(
            "step", step=step, loss=loss, start=start, end=self._node.now(), samples=self._training.batch, attempt=1,
            devices=products.participants(),
        )  # fmt: skip
        self._node.record(
            "traffic", step=step, server_out=sum(traffic.down_bytes.values()),
            server_in=sum(traffic.up_bytes.values()), saved=traffic.saved_bytes, duplicates=traffic.duplicates,
            messages=traffic.messages, down=dict(traffic.down_bytes), up=dict(traffic.up_bytes),
        )  # fmt: skip

"""Executes a schedule's instructions on one stage, for the length of one epoch."""

from __future__ import annotations

import torch

from runners.data import Batches, micro_batch_sizes
from runners.elastic import protocol as p
from runners.elastic.strategy import Member, Steps
from runners.pipeline.options import PipelineOptions
from runners.pipeline.stage import Stage
from runners.schedules import SCHEDULES, Op
from runners.state import StateId
from testbed.runtime import PeerLost


class PipelineSteps(Steps):
    """Steps of one stage."""

    def __init__(self, member: Member, options: PipelineOptions):
        super().__init__(member)
        epoch, here = self.epoch, self.here
        model, training = member.plan.model, member.plan.training
        self.training, self.options = training, options
        self.batches = Batches(model, training)
        self.sizes = micro_batch_sizes(training.batch, training.micro_batches)
        self.before = epoch.stages[here - 1][0] if here > 0 else None
        self.after = epoch.stages[here + 1][0] if here < len(epoch.stages) - 1 else None
        self.program = SCHEDULES[options.schedule](here, len(epoch.stages), training.micro_batches, options.recompute)
        self._text: tuple[int, list] | None = None  # of the step under way

    async def step(self, step: int) -> dict[int, torch.Tensor] | None:
        """One optimizer step; a copy of the state that it made, if that is to go to the server.

        Raises:
            PeerLost: a neighbour is gone, or messages of it are.
        """
        node, stage, epoch = self.node, self.memory.stage, self.epoch
        began = node.now()
        mark = stage.is_first and self._checkpoint_due(step + 1)
        losses: list[torch.Tensor] = []
        x = gradient = out = copy = None
        for instruction in self.program:
            m = instruction.micro_batch
            where = {"step": step, "micro_batch": m}
            match instruction.op:
                case Op.RECV_ACTIVATION:
                    (x,), meta = await self._receive(self.before, p.activation_tag(epoch.number), where)
                    mark = meta["checkpoint"]
                case Op.FORWARD:
                    flops, label = self.sizes[m] * stage.forward_flops, f"forward {m}"
                    out = await node.compute(self._forward, stage, step, m, x, flops=flops, label=label)
                    if stage.is_last:
                        losses.append(out)
                case Op.SEND_ACTIVATION:
                    tag = p.activation_tag(epoch.number)
                    self.outbox.post(self.after, tag, [out], checkpoint=mark, **where)
                case Op.RECV_GRADIENT:
                    (gradient,), _ = await self._receive(self.after, p.gradient_tag(epoch.number), where)
                case Op.RECOMPUTE:
                    flops = self.sizes[m] * stage.forward_flops
                    await node.compute(stage.recompute, m, flops=flops, label=f"recompute {m}")
                case Op.BACKWARD:
                    flops = self.sizes[m] * stage.backward_flops
                    args = stage, m, gradient
                    out = await node.compute(self._backward, *args, flops=flops, label=f"backward {m}")
                case Op.SEND_GRADIENT:
                    self.outbox.post(self.before, p.gradient_tag(epoch.number), [out], **where)
                case Op.UPDATE:
                    copy = await self._update(StateId(step + 1, epoch.number), mark)
        note = {"step": step, "epoch": epoch.number, "stage": self.here, "began": began, "ended": node.now()}
        if stage.is_last:
            note["loss"] = _total(losses)
        self.memory.notes[stage.state] = note
        self.report(p.DONE, **note)
        return copy

    async def _receive(self, source: str, tag: str, where: dict[str, int]):
        """Tensors and meta of the next message; if it is a later one, the sender was cut off for a while."""
        message = await self.node.recv(source, tag)
        if any(message.meta[key] != value for key, value in where.items()):
            self.report(p.STUCK, epoch=self.epoch.number, peer=source, what=tag, missing=where)
            raise PeerLost(source, f"{tag}: {where} is missing")
        return message.tensors, message.meta

    def _forward(self, stage: Stage, step: int, m: int, x: torch.Tensor | None) -> torch.Tensor:
        """Runs inside `compute`, the making of the batch too: it is no work of its own."""
        if not (stage.is_first or stage.is_last):
            return stage.forward(m, x)
        if self._text is None or self._text[0] != step:
            self._text = step, self.batches.micro_batches(step)
        tokens, targets = self._text[1][m]
        return stage.forward(m, tokens if stage.is_first else x, targets if stage.is_last else None)

    def _backward(self, stage: Stage, m: int, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Runs inside `compute`; before the step's last one, so before the update, it copies the state."""
        span = range(stage.first, stage.end)
        if self.options.local_copies and m == self.training.micro_batches - 1:
            # every stage has got to this state, or this step would not end: what is older is of no use
            self.memory.forget({stage.state, self.epoch.complete, self.epoch.uploading}, span)
            if not self.memory.store.has(stage.state, span):
                self.memory.store.put(stage.state, stage.pack())
        return stage.backward(m, gradient)

    def _checkpoint_due(self, version: int) -> bool:
        every = self.options.checkpoint_every
        due = every and version % every == 0 and version < self.training.steps
        return bool(due and self.epoch.uploading is None and version > self.epoch.complete.version)

    async def _update(self, result: StateId, mark: bool) -> dict[int, torch.Tensor] | None:
        """Apply the optimizer; a copy of the new state if the step is marked for a checkpoint."""
        copy = await self.memory.update(self.node, result, mark)
        if copy is not None:
            self.epoch.uploading = result
            if self.options.local_copies:
                self.memory.store.put(result, copy)
        return copy


def _total(losses: list[torch.Tensor]) -> float | None:
    """The step's mean loss; None for tensors without data (simulation)."""
    return None if losses[0].is_meta else float(sum(loss.double() for loss in losses))

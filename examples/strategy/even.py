"""Every device has the whole model and an even share of each batch; gradients are summed over all devices."""

from dataclasses import dataclass

import torch

from runners.collectives import Collective, chunk_floats
from runners.costs import layer_costs
from runners.data_parallel.passes import Passes
from runners.data_parallel.replica import make_replica
from runners.elastic.lockstep import LockstepSteps
from runners.elastic.protocol import reduce_tag
from runners.elastic.runner import ElasticRunner
from runners.elastic.strategy import Strategy
from testbed.runtime import Plan


class Options:
    recovery, checkpoint_every, local_copies = "replan", 5, False


@dataclass(frozen=True)
class Assignment:
    spans: tuple[tuple[str, int, int], ...]  # device, its samples [first, end)
    layers: range
    step_time_s: float

    @property
    def devices(self):
        return tuple(span[0] for span in self.spans)

    @property
    def layers_by_device(self):
        return dict.fromkeys(self.devices, self.layers)


class Planner:
    def __init__(self, plan):
        self.batch, self.layers = plan.training.batch, layer_costs(plan.model)

    def candidates(self, cluster, current=()):
        devices = cluster.devices[: self.batch]
        if not devices:
            return []
        cuts = [self.batch * i // len(devices) for i in range(len(devices) + 1)]
        spans = tuple((d.name, *cut) for d, cut in zip(devices, zip(cuts, cuts[1:])))
        flops = sum(c.forward_flops + c.backward_flops for c in self.layers)
        nbytes = 2 * sum(4 * c.parameters for c in self.layers)
        step_s = max((end - first) * flops / d.flops for d, (_, first, end) in zip(devices, spans))
        step_s += 8 * nbytes / min(d.link.uplink_bps for d in devices) if len(devices) > 1 else 0
        return [Assignment(spans, range(len(self.layers)), step_s)]


class EvenSteps(LockstepSteps):
    def __init__(self, member, buckets):
        super().__init__(member)
        chunk, tag = chunk_floats(member.plan.cluster, member.names), reduce_tag(self.epoch.number, 0)
        self.total = Collective(self.node, self.outbox, member.names, tag, chunk)
        self.passes = Passes(member.plan.model, member.plan.training, buckets)

    async def reduce(self, step):
        (_, first, end), mine = self.epoch.stages[self.here], []
        await self.passes.run(self.node, self.memory.stage, step, first, end, 0, lambda *found: mine.append(found))
        (_, gradient, loss), *_ = mine
        total = await self.total.all_reduce(torch.cat([gradient, loss.reshape(1)]))
        self.memory.stage.reduced = {0: total[:-1]}
        return total[-1]

    def uploads(self):
        return set(range(self.here, self.memory.stage.layers, len(self.epoch.stages)))


class EvenStrategy(Strategy):
    options = Options()

    def __init__(self, plan):
        self.plan, self.planner = plan, Planner(plan)
        self.units = len(self.planner.layers)
        (self.first_choice,) = self.planner.candidates(plan.cluster)

    def build(self, member, states):
        model, training = self.plan.model, self.plan.training
        return make_replica(model, training, [(0, self.units)], member.epoch.state, states, optimizer=True)

    def steps(self, member):
        return EvenSteps(member, [(0, self.units)])


class EvenRunner(ElasticRunner):
    correctness, strategy = "E0", EvenStrategy

    def plan(self, cluster, model, training):
        plan = Plan("even", model, training, cluster)
        plan.predicted["step_time_s"] = EvenStrategy(plan).first_choice.step_time_s
        return plan

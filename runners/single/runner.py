"""One device trains the whole model; the server keeps the record. No network traffic but a report a step."""

from __future__ import annotations

from dataclasses import asdict, replace

from runners.data import Batches
from runners.models.gpt import layer_count
from runners.pipeline.planner import check_job
from runners.pipeline.stage import make_stage
from runners.single.options import parse_options
from runners.single.planner import Way, best_way
from runners.state import SEED_STATE, StateId
from testbed.cluster import Cluster, ModelSpec, TrainingSpec
from testbed.cluster.model import SERVER
from testbed.errors import InputError
from testbed.runtime import ANY, Node, Plan
from testbed.units import duration, size

DONE = "done"


class SingleRunner:
    """Trains on the device where a step is predicted to be quickest; the others stand by. A device that is lost
    starts over from the seed when it is back."""

    correctness = "E0"
    check_options = staticmethod(parse_options)

    def plan(self, cluster: Cluster, model: ModelSpec, training: TrainingSpec) -> Plan:
        """Choose device, micro-batches, recomputation and what the host keeps.

        Raises:
            InputError: bad settings, or no device has the memory, with bytes.
        """
        options = parse_options(training.options)
        check_job(model, training)
        if not cluster.devices:
            raise InputError("cluster", "no devices; expected at least one")
        ways, problem = [], None
        for device in cluster.devices:
            try:
                ways.append(best_way(device, model, training, options))
            except InputError as error:
                problem = error
        if not ways:
            raise problem
        way = min(ways, key=lambda w: w.step_time_s)
        kept = {"none": "nothing", "optimizer": "the optimizer's state", "weights": "weights and optimizer's state"}
        return Plan(
            runner="single", model=model, training=training, cluster=cluster, data={"way": asdict(way)},
            predicted={"step_time_s": way.step_time_s, "samples_per_s": training.batch / way.step_time_s},
            notes=[f"{way.device} trains all {layer_count(model)} layers in {way.micro_batches} micro-batches"
                   f"{' with recomputation' if way.recompute else ''}, {size(way.memory_bytes)} of memory; the host "
                   f"keeps {kept[way.offload]}; predicted step {duration(way.step_time_s)}"],
        )  # fmt: skip

    async def coordinate(self, node: Node, plan: Plan) -> None:
        """The server's part."""
        steps = plan.training.steps
        while True:
            message = await node.recv(ANY, DONE)
            done = message.meta
            loss = message.tensors[0]
            node.record(
                "step",
                step=done["step"],
                loss=float("nan") if loss.is_meta else float(loss),
                start=done["began"],
                end=done["ended"],
                samples=plan.training.batch,
                attempt=message.generation,
                devices=1,
            )
            if done["step"] + 1 == steps:
                return

    async def work(self, node: Node, plan: Plan) -> None:
        """A device's part."""
        way = Way(**plan.data["way"])
        if node.name != way.device:
            while True:  # stands by
                await node.membership.next_event()
        training = replace(plan.training, micro_batches=way.micro_batches)
        batches = Batches(plan.model, training)
        stage = make_stage(plan.model, training, 0, layer_count(plan.model), SEED_STATE, {}, recompute=way.recompute)
        speed = node.device.flops  # the plan's times hold here: priced as what it could compute meanwhile

        def train(index: int, tokens, targets):
            loss = stage.forward(index, tokens, targets)
            if way.recompute:
                stage.recompute(index)
            stage.backward(index)
            return loss

        for step in range(training.steps):
            began, loss = node.now(), 0.0
            for index, (tokens, targets) in enumerate(batches.micro_batches(step)):
                loss = loss + await node.compute(
                    train, index, tokens, targets, flops=way.micro_batch_s * speed, label="forward and backward"
                )
            await node.compute(stage.update, StateId(step + 1, 0), flops=way.update_s * speed, label="update")
            await node.send(SERVER, DONE, [loss], step=step, began=began, ended=node.now())

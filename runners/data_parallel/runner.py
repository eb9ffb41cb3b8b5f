"""The data-parallel runner: a whole model on each device, gradients by parameter server or by ring."""

from __future__ import annotations

from typing import Any

from runners.costs import FLOAT, layer_costs, training_flops
from runners.data_parallel.options import DataParallelOptions, parse_options
from runners.data_parallel.planner import Assignment, Planner
from runners.data_parallel.ps_server import ParameterServer
from runners.data_parallel.ps_worker import PsWorker
from runners.data_parallel.ring import RingStrategy
from runners.elastic.checkpoint import check_server_memory
from runners.elastic.runner import ElasticRunner
from runners.pipeline.planner import check_job
from testbed.cluster import Cluster, ModelSpec, TrainingSpec
from testbed.runtime import Node, Plan
from testbed.units import duration, size


class DataParallelRunner(ElasticRunner):
    """See docs/data_parallel.md."""

    correctness = "E0"
    check_options = staticmethod(parse_options)
    strategy = RingStrategy

    def plan(self, cluster: Cluster, model: ModelSpec, training: TrainingSpec) -> Plan:
        """Share the batch out by speed.

        Raises:
            InputError: bad settings; memory too small, with device and bytes.
        """
        options = parse_options(training.options)
        check_job(model, training)
        if options.reduce == "ring" and options.checkpoint_every:
            check_server_memory(cluster, model)
        planner = Planner(model, training, options)
        assignment = planner.plan(cluster)
        return Plan(
            runner="data_parallel", model=model, training=training, cluster=cluster,
            data=_describe(assignment, cluster, model, options),
            predicted={
                "step_time_s": assignment.step_time_s,
                "samples_per_s": training.batch / assignment.step_time_s,
            },
            notes=_notes(assignment, cluster, planner),
        )  # fmt: skip

    async def coordinate(self, node: Node, plan: Plan) -> None:
        """The server's part."""
        if parse_options(plan.training.options).reduce == "ps":
            await ParameterServer(node, plan).run()
        else:
            await super().coordinate(node, plan)

    async def work(self, node: Node, plan: Plan) -> None:
        """A device's part."""
        if parse_options(plan.training.options).reduce == "ps":
            await PsWorker(node, plan).run()
        else:
            await super().work(node, plan)


def traffic_bytes(assignment: Assignment, model: ModelSpec, options: DataParallelOptions) -> dict[str, float]:
    """Bytes a step that each device sends and receives, and that the server does."""
    nbytes = FLOAT * sum(c.parameters for c in layer_costs(model))
    members = len(assignment.shares)
    if options.reduce == "ps":
        device, server = nbytes, members * nbytes
    else:
        device, server = 2 * (members - 1) / members * nbytes, 0
    return {"device_up": device, "device_down": device, "server_up": server, "server_down": server}


def _describe(
    assignment: Assignment, cluster: Cluster, model: ModelSpec, options: DataParallelOptions
) -> dict[str, Any]:
    used = set(assignment.devices)
    traffic = traffic_bytes(assignment, model, options)
    count = len(assignment.shares)
    messages = len(assignment.buckets) * count * (2 if options.reduce == "ps" else 2 * (count - 1)) + count
    return {
        "load": {  # what a step asks of the machine that emulates it
            "step_s": assignment.step_time_s,
            "messages": messages,
            "flops": training_flops(model, sum(s.samples for s in assignment.shares)),
            "bytes": count * (traffic["device_up"] + (traffic["device_down"] if options.reduce == "ps" else 0)),
            "samples": max(s.samples for s in assignment.shares),
            "peak_flops": sum(cluster.device(s.device).flops for s in assignment.shares),
        },
        "assignment": assignment.as_data(),
        "spares": [d.name for d in cluster.devices if d.name not in used],
        "memory_bytes": {s.device: s.memory_bytes for s in assignment.shares},
        "bytes_per_step": traffic,
    }


def _notes(assignment: Assignment, cluster: Cluster, planner: Planner) -> list[str]:
    options, shares = planner.options, assignment.shares
    traffic = traffic_bytes(assignment, planner.model, options)
    how = "parameter server" if options.reduce == "ps" else "ring all-reduce"
    notes = [
        f"{how} over {len(shares)} devices, gradients in {len(assignment.buckets)} buckets; predicted step "
        f"{duration(assignment.step_time_s)}, of which the slowest device computes "
        f"{duration(max(s.compute_s for s in shares))}",
        f"each device sends {size(traffic['device_up'])} and receives {size(traffic['device_down'])} a step",
    ]
    if options.reduce == "ps":
        notes.append(f"the server sends {size(traffic['server_up'])} and receives as much a step")
    listed = ", ".join(f"{s.device} {s.samples}" for s in shares[:16])
    more = f" and {len(shares) - 16} more" if len(shares) > 16 else ""
    notes.append(f"samples of each batch: {listed}{more}")
    usable = {d.name for d in planner.usable(cluster)}
    small = [d.name for d in cluster.devices if d.name not in usable]
    if small:
        notes.append(f"without memory for a replica ({size(planner.memory_bytes(1))}): {', '.join(small[:16])}")
    spares = [d.name for d in cluster.devices if d.name in usable and d.name not in assignment.devices]
    if spares:
        notes.append(f"no sample of the batch left for: {', '.join(spares[:16])}")
    if cluster.shared_links:
        notes.append("the prediction takes each shared link as if one device used it at a time")
    return notes

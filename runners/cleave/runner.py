"""The runner `cleave`: a model trained as blocks of its matrix products on many devices."""

from __future__ import annotations

from typing import Any

from runners.cleave.affine.device import AffineWorker
from runners.cleave.affine.hybrid import hybrid_plan, is_hybrid, quickest, tables
from runners.cleave.affine.server import AffineServer
from runners.cleave.describe import describe, notes, plans_of
from runners.cleave.device import DeviceWorker
from runners.cleave.options import CleaveOptions, parse_options
from runners.cleave.planned import planned_chunks
from runners.cleave.precision import Codec
from runners.cleave.predict import predict
from runners.cleave.server import Server
from runners.costs import STATE_BYTES, layer_costs, model_parameters, training_flops
from runners.pipeline.planner import check_job
from runners.planning.gemm_step import step_tables
from runners.planning.transformer_gemms import gemms
from testbed.cluster import Cluster, ModelSpec, TrainingSpec
from testbed.errors import InputError
from testbed.runtime import Node, Plan
from testbed.units import size


class CleaveRunner:
    """See docs/cleave.md."""

    correctness = "E0"
    check_options = staticmethod(parse_options)

    def plan(self, cluster: Cluster, model: ModelSpec, training: TrainingSpec) -> Plan:
        """Decide for every matrix product whether it goes out, and predict a step.

        Raises:
            InputError: bad settings; a server without the memory for state and activations.
        """
        options = parse_options(training.options)
        check_job(model, training)
        if options.tasks == "hybrid":
            return hybrid_plan(cluster, model, training, options)
        if options.tasks == "auto":
            return quickest(lambda: self._tiles(cluster, model, training, options),
                            lambda: hybrid_plan(cluster, model, training, options))  # fmt: skip
        return self._tiles(cluster, model, training, options)

    def _tiles(self, cluster: Cluster, model: ModelSpec, training: TrainingSpec, options: CleaveOptions) -> Plan:
        needed = _server_bytes(model, training)
        if needed > cluster.server.memory_bytes:
            raise InputError(
                f"device {cluster.server.name!r}, memory",
                f"parameters, optimizer and activations need {needed:,} bytes ({size(needed)}), but it has "
                f"{int(cluster.server.memory_bytes):,} bytes ({size(cluster.server.memory_bytes)})",
                hint="more memory for the server (topology.server.memory), or a smaller training.batch",
            )
        plans = plans_of(cluster, options)
        data = describe(plans, model, training)
        predicted = predict(cluster, model, training, options, plans)
        data["devices"] = [
            {"device": d.name, "down_bytes": predicted.down_bytes.get(d.name, 0),
             "up_bytes": predicted.up_bytes.get(d.name, 0)} for d in cluster.devices
        ]  # fmt: skip
        data["load"] = {  # what a step asks of the machine that emulates it
            "step_s": predicted.step_time_s, "flops": training_flops(model, training.batch),
            "messages": predicted.messages,
            "bytes": predicted.server_out_bytes + predicted.server_in_bytes,
        }  # fmt: skip
        return Plan(
            "cleave", model, training, cluster, data,
            {
                "step_time_s": predicted.step_time_s,
                "samples_per_s": training.batch / predicted.step_time_s,
                "server_out_bytes": predicted.server_out_bytes,
                "server_in_bytes": predicted.server_in_bytes,
                "cached_bytes": predicted.saved_bytes,
            },
            notes(cluster, data, predicted),
        )  # fmt: skip

    def explain(self, plan: Plan) -> dict[str, Any]:
        """What `testbed plan` shows beside the plan: every product of a step, every device, the server's traffic."""
        if is_hybrid(plan):
            return tables(plan)
        options = parse_options(plan.training.options)
        codec = Codec(options.wire)
        products = gemms(plan.model, plan.training.batch, codec.element_bytes)
        return step_tables(plan.cluster, products, server_local=options.local == "auto",
                           chunks=planned_chunks(options, len(plan.cluster.devices)),
                           resident_bytes=codec.resident_bytes)  # fmt: skip

    async def coordinate(self, node: Node, plan: Plan) -> None:
        """The server's part."""
        options = parse_options(plan.training.options)
        await (AffineServer if is_hybrid(plan) else Server)(node, plan, options).run()

    async def work(self, node: Node, plan: Plan) -> None:
        """A device's part."""
        options = parse_options(plan.training.options)
        worker = AffineWorker(node, plan, Codec(options.wire)) if is_hybrid(plan) else DeviceWorker(node, options)
        await worker.run()


def _server_bytes(model: ModelSpec, training: TrainingSpec) -> int:
    """Weights, moments and gradients, and what the backward pass of the whole batch needs."""
    costs = layer_costs(model)
    activations = sum(c.activation_bytes for c in costs) + max(c.working_bytes for c in costs)
    attention = 2 * 4 * model.heads * model.sequence**2 * model.layers  # scores and their softmax, kept as they are
    return (STATE_BYTES + 4) * model_parameters(model) + training.batch * (activations + attention)

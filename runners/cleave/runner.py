"""The runner `cleave`: a model trained as blocks of its matrix products on many devices."""

from __future__ import annotations

from typing import Any

from runners.cleave.device import DeviceWorker
from runners.cleave.options import parse_options
from runners.cleave.planned import planned_chunks
from runners.cleave.precision import Codec
from runners.cleave.server import Server
from runners.planning.gemm_step import step_tables
from runners.planning.transformer_gemms import gemms
from testbed.cluster import Cluster, ModelSpec, TrainingSpec
from testbed.runtime import Node, Plan


class CleaveRunner:
    """See docs/cleave.md."""

    correctness = "E0"

    @staticmethod
    def check_options(options: dict[str, Any]) -> None:
        """Check `training.options` without a cluster. Raises InputError."""
        parse_options(options)

    def plan(self, cluster: Cluster, model: ModelSpec, training: TrainingSpec) -> Plan:
        parse_options(training.options)
        return Plan("cleave", model, training, cluster)

    def explain(self, plan: Plan) -> dict[str, Any]:
        """What `testbed plan` shows beside the plan: every product of a step, every device, the server's traffic."""
        options = parse_options(plan.training.options)
        products = gemms(plan.model, plan.training.batch, Codec(options.wire).element_bytes)
        return step_tables(plan.cluster, products, server_local=options.local == "auto",
                           chunks=planned_chunks(options, len(plan.cluster.devices)))

    async def coordinate(self, node: Node, plan: Plan) -> None:
        """The server's part."""
        await Server(node, plan, parse_options(plan.training.options)).run()

    async def work(self, node: Node, plan: Plan) -> None:
        """A device's part."""
        await DeviceWorker(node, parse_options(plan.training.options)).run()

"""A runner on the elastic core: all but the plan."""

from __future__ import annotations

from runners.elastic.coordinator import Coordinator
from runners.elastic.memory import KeptMemory
from runners.elastic.strategy import Strategy
from runners.elastic.worker import Worker
from testbed.runtime import Node, Plan


class ElasticRunner:
    """A base of runners: subclasses name their `strategy` and have `plan` (see `testbed.runtime.Runner`).

    One instance serves one node, and outlives a lost lease but not a kill.
    """

    strategy: type[Strategy]

    def __init__(self) -> None:
        self._memory = KeptMemory()

    async def coordinate(self, node: Node, plan: Plan) -> None:
        """The server's part."""
        await Coordinator(node, plan, self.strategy(plan)).run()

    async def work(self, node: Node, plan: Plan) -> None:
        """A device's part."""
        with self._memory.of(node.name) as memory:
            await Worker(node, plan, memory, self.strategy(plan)).run()

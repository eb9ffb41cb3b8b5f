"""Which plan to go on with when devices come and go: the one with which training ends soonest."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from runners.elastic.strategy import Assignment, Planner
from runners.state import Holdings, StateId, transfer_time, transfers
from testbed.cluster import Cluster
from testbed.cluster.model import SERVER

JOIN_GAIN = 0.05  # least share of the remaining time that a joining device must save


class Replanner:
    """Weighs plans by the time to the end of training: moving the state, then the steps that are left.

    Rates and speeds are those that the plan was made with.

    Args:
        first_choice: the plan made before the start.
    """

    def __init__(self, cluster: Cluster, planner: Planner, first_choice: Assignment):
        self._cluster, self._planner, self._first_choice = cluster, planner, first_choice
        self.layer_bytes = {i: cost.state_bytes for i, cost in enumerate(planner.layers)}

    def best(
        self, present: Collection[str], current: Assignment | None,
        state: StateId, holders: Mapping[str, Holdings], left: int,
    ) -> Assignment | None:  # fmt: skip
        """The plan over those present that ends soonest, or None if they can't hold the model.

        Args:
            current: the stages up to now, if any; their devices may be gone.
            state: from which training goes on; holders: node -> states and layers that it has.
            left: steps still to do from `state`.
        """
        plans = list(self._planner.candidates(self._cluster.only(present), current.spans if current else ()))
        if all(device in present for device in self._first_choice.devices):
            plans.append(self._first_choice)
        return min(plans, key=lambda plan: self.time_to_end(plan, state, holders, left), default=None)

    def better(self, present: Collection[str], running: Assignment, state: StateId, left: int) -> bool:
        """Whether, with all stages of `running` at `state`, another plan is worth the change."""
        holders = {device: {state: set(span)} for device, span in running.layers_by_device.items()}
        best = self.best(present, running, state, holders, left)
        stay = left * running.step_time_s
        return best is not None and self.time_to_end(best, state, holders, left) < (1 - JOIN_GAIN) * stay

    def time_to_end(self, plan: Assignment, state: StateId, holders: Mapping[str, Holdings], left: int) -> float:
        """Seconds: the transfers of state, then `left` steps."""
        moves = transfers(plan.layers_by_device, state, SERVER, holders)
        return transfer_time(moves, self.layer_bytes, self._cluster) + left * plan.step_time_s

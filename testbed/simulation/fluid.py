"""A network of links shared max-min fairly by flows, in virtual time, recomputed only where something changed.

A flow is in one of three states, by how many of its links it shares with other flows:

* none: it runs at the rate of its slowest link;
* one, and all flows of that link share that link only: the link is a `Pool`, O(log n) a change. That is the server's
  link with thousands of devices behind their own;
* otherwise its rate is computed together with those of all flows that it is connected to by shared links.

All that happens at one instant is taken in before rates are computed: call `settle` at its end.
"""

from __future__ import annotations

from collections import deque

from testbed.runtime.virtual_time import VirtualLoop
from testbed.simulation.flow import Flow, Group, Link, connected
from testbed.simulation.max_min import water_fill
from testbed.simulation.pool import Pool

_NEVER = float("inf")
_DUE_S, _DUE_BYTES = 1e-9, 1e-3


class FluidNetwork:
    """The flows on the links. Times are `loop.now`."""

    def __init__(self, loop: VirtualLoop):
        self._loop = loop
        self._changed_links: dict[Link, None] = {}
        self._changed_flows: dict[Flow, None] = {}
        self._changed_pools: dict[Pool, None] = {}

    # -- changes -----------------------------------------------------------------------

    def start(self, flow: Flow, nbytes: float) -> None:
        """nbytes > 0 begin to flow from now on. The flow must not be active."""
        now = self._loop.now
        flow.active = True
        flow.left, flow.rate, flow.since = nbytes, 0.0, now
        flow.total, flow.counted = nbytes, 0.0
        flow.pool = flow.group = None
        shared, pool, limit = 0, None, flow.limit
        for link in flow.path:
            flows = link.flows
            if flows:
                shared += 1
                pool = link.pool if not link.tangled and len(flows) > 1 else None
            elif link.rate < limit:
                limit = link.rate
        if shared == 1 and pool is not None:  # by far the most frequent case in a star
            for link in flow.path:
                link.flows[flow] = None
            flow.shared, flow.pool = 1, pool
            pool.add(flow, nbytes, limit, now)
            self._changed_pools[pool] = None
            return
        for link in flow.path:
            flows = link.flows
            if len(flows) == 1:
                other = next(iter(flows))
                self._set_shared(other, other.shared + 1)
            flows[flow] = None
            self._changed_links[link] = None
        flow.shared = 0
        self._set_shared(flow, shared)

    def stop(self, flow: Flow) -> float:
        """The flow ends here; the bytes that it had still to go."""
        if not flow.active:
            return 0.0
        left = self._detach(flow)
        self._count(flow, left)
        self._leave(flow)
        return left

    def add(self, flow: Flow, nbytes: float) -> None:
        """More bytes for an active flow, after those that it has."""
        left = self._detach(flow)
        flow.left, flow.total = left + nbytes, flow.total + nbytes
        self._changed_flows[flow] = None

    def set_rate(self, link: Link, rate: float) -> None:
        if rate == link.rate:
            return
        link.rate = rate
        self._changed_links[link] = None
        for flow in link.flows:
            if flow.pool is None or flow.pool.link is not link:
                self._changed_flows[flow] = None

    def set_limit(self, flow: Flow, limit: float) -> None:
        if limit != flow.limit:
            flow.limit = limit
            if flow.active:
                self._changed_flows[flow] = None

    # -- looking -----------------------------------------------------------------------

    def rate(self, flow: Flow) -> float:
        """The present rate [bytes/s], as of the last `settle`."""
        if not flow.active:
            return 0.0
        return flow.pool.rate(flow) if flow.pool is not None else flow.rate

    def left(self, flow: Flow) -> float:
        """The bytes that it has still to go."""
        if not flow.active:
            return 0.0
        if flow.pool is not None:
            return flow.pool.left(flow, self._loop.now)
        return max(0.0, flow.left - flow.rate * (self._loop.now - flow.since))

    def count(self, links: list[Link]) -> None:
        """Bring `Link.carried` of these links up to now."""
        for link in links:
            for flow in link.flows:
                self._count(flow, self.left(flow))

    # -- the end of an instant ----------------------------------------------------------

    def settle(self) -> None:
        """Compute the rates anew where something has changed."""
        while self._changed_links or self._changed_flows:
            self._settle_changes()
        if self._changed_pools:
            pools, self._changed_pools = self._changed_pools, {}
            for pool in pools:
                self._announce(pool)

    def _settle_changes(self) -> None:
        now = self._loop.now
        links, self._changed_links = self._changed_links, {}
        for link in links:
            pooled = not link.tangled and len(link.flows) > 1
            if pooled and link.pool is None:
                link.pool = Pool(link, now)
                self._changed_flows.update(link.flows)
            elif not pooled and link.pool is not None:
                for flow in link.pool.flows():
                    self._detach(flow)
                    self._changed_flows[flow] = None
                link.pool = None
        flows, self._changed_flows = self._changed_flows, {}
        tangled: dict[Flow, None] = {}
        for flow in flows:
            if not flow.active:
                continue
            if flow.shared == 0:
                self._run_alone(flow)
            elif flow.shared == 1 and (pool := self._pool_of(flow)) is not None:
                limit = self._own_limit(flow)
                if flow.pool is pool and pool.limit(flow) == limit:
                    continue
                left = self._detach(flow)
                flow.pool = pool
                pool.add(flow, left, limit, now)
                self._changed_pools[pool] = None
            else:
                tangled[flow] = None
        for link in links:
            if link.pool is not None:
                self._changed_pools[link.pool] = None
            elif len(link.flows) > 1:
                tangled.update(link.flows)
        if tangled:
            self._fill(tangled)

    # -- inside ------------------------------------------------------------------------

    def _set_shared(self, flow: Flow, shared: int) -> None:
        was, flow.shared = flow.shared, shared
        if (was > 1) is not (shared > 1):
            for link in flow.path:
                link.tangled += 1 if shared > 1 else -1
                self._changed_links[link] = None
        self._changed_flows[flow] = None

    def _leave(self, flow: Flow) -> None:
        flow.active = False
        if flow.shared > 1:
            self._set_shared(flow, 0)
        flow.shared = 0
        for link in flow.path:
            flows = link.flows
            del flows[flow]
            if len(flows) == 1:
                other = next(iter(flows))
                self._set_shared(other, other.shared - 1)
                self._changed_links[link] = None
            elif link.pool is not None:
                self._changed_pools[link.pool] = None
            elif flows:
                self._changed_links[link] = None

    def _detach(self, flow: Flow) -> float:
        """Take it out of its pool or group; the bytes that it has still to go."""
        if flow.pool is not None:
            left = flow.pool.remove(flow, self._loop.now)
            self._changed_links[flow.pool.link] = None
            flow.pool = None
        else:
            left = self.left(flow)
            if flow.group is not None:
                if flow.group.alive:
                    flow.group.alive = False
                    self._changed_flows.update((f, None) for f in flow.group.flows if f.active)
                flow.group = None
        flow.left, flow.rate, flow.since = left, 0.0, self._loop.now
        return left

    def _count(self, flow: Flow, left: float) -> None:
        passed = flow.total - left - flow.counted
        flow.counted += passed
        for link in flow.path:
            link.carried += passed

    @staticmethod
    def _pool_of(flow: Flow) -> Pool | None:
        for link in flow.path:
            if len(link.flows) > 1:
                return link.pool
        return None

    @staticmethod
    def _own_limit(flow: Flow) -> float:
        limit = flow.limit
        for link in flow.path:
            if len(link.flows) == 1 and link.rate < limit:
                limit = link.rate
        return limit

    def _run_alone(self, flow: Flow) -> None:
        rate = self._own_limit(flow)
        if flow.group is not None and flow.group.alive and flow.group.flows == [flow] and flow.rate == rate:
            return
        self._detach(flow)
        flow.rate = rate
        flow.group = Group([flow])
        self._expect(flow.group)

    def _fill(self, tangled: dict[Flow, None]) -> None:
        """Rates of these flows and of everyone who is connected to them by shared links."""
        seeds = deque(tangled)
        done: set[Flow] = set()
        while seeds:
            seed = seeds.popleft()
            if seed.active and seed not in done:
                flows = connected(seed)
                done.update(flows)
                self._fill_group(flows, seeds)

    def _fill_group(self, flows: list[Flow], seeds: deque[Flow]) -> None:
        now = self._loop.now
        paths = [[link for link in flow.path if len(link.flows) > 1] for flow in flows]
        capacity = {link: link.rate for path in paths for link in path}
        rates = water_fill(paths, capacity, [self._own_limit(f) for f in flows])
        group = Group(flows)
        for flow, rate in zip(flows, rates):
            if flow.pool is not None:
                self._detach(flow)
            else:
                flow.left, flow.since = self.left(flow), now
            old = flow.group
            if old is not None and old.alive:
                old.alive = False
                seeds.extend(f for f in old.flows if f.group is old)  # those who are not connected any more
            flow.rate, flow.group = rate, group
        self._expect(group)

    def _expect(self, group: Group) -> None:
        end = min((f.since + f.left / f.rate for f in group.flows if f.rate > 0), default=None)
        if end is not None:
            self._loop.at(end, self._group_due, group)

    def _announce(self, pool: Pool) -> None:
        if pool.link.pool is not pool:
            return
        pool.rebalance(self._loop.now)
        if pool.end_s < pool.timer_s:
            self._watch(pool)

    def _watch(self, pool: Pool) -> None:
        """Look at the pool when its next flow should be done; that may be put off by then."""
        pool.timer_s = pool.end_s
        self._loop.at(pool.end_s, self._pool_due, (pool, pool.end_s))

    def _pool_due(self, timer: tuple[Pool, float]) -> None:
        pool, at_s = timer
        if pool.timer_s != at_s or pool.link.pool is not pool:
            return
        now = self._loop.now
        pool.timer_s = _NEVER
        if pool.end_s > now:
            if pool.end_s < _NEVER:
                self._watch(pool)
            return
        for flow in pool.take_due(now):
            passed = flow.total - flow.counted
            flow.counted += passed
            for link in flow.path:
                link.carried += passed
            more = flow.on_served()
            if more:
                flow.total += more
                pool.extend(flow, more)
            else:
                pool.done(flow)
                flow.pool = None
                self._leave(flow)
        self._changed_pools[pool] = None

    def _group_due(self, group: Group) -> None:
        if not group.alive:
            return
        now = self._loop.now
        for flow in group.flows:
            if not flow.active:
                continue
            left = flow.left - flow.rate * (now - flow.since)
            if left > _DUE_BYTES and left > flow.rate * _DUE_S:
                continue
            self._count(flow, 0.0)
            more = flow.on_served()
            flow.left, flow.since = more, now
            if more:
                flow.total += more
            else:
                group.alive = False
                flow.group = None
                self._leave(flow)
                for other in group.flows:
                    if other.active:
                        self._changed_flows[other] = None
        if group.alive:
            self._expect(group)

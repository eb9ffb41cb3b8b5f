"""Every link measured before training: does the network do what it was told to? The verdict rests on this.

Each home exchanges data and echo requests with the server: downlinks together, then uplinks together (the
acknowledgements of one would slow the other), in groups small enough for the links that they share and for
this machine.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from testbed import units
from testbed.cluster import LinkState, Topology
from testbed.cluster.model import SERVER
from testbed.emulation.network.counters import QueueCounters
from testbed.emulation.probing.echoes import echo_rtts
from testbed.emulation.probing.light_traffic import Flow, FlowSpec, open_flows, saturate
from testbed.emulation.probing.queue_watch import QueueWatch
from testbed.scenario.link_model import FRAME_BYTES, one_way_loss
from testbed.scenario.network import NetworkSettings

MACHINE_BPS = 100e6  # how much is sent at once; more could measure the machine instead of the link
# Homes further than this from the expected rate are measured again with less traffic beside theirs: was it their
# link, or the machine, or what others had left in queues? What was measured alone is final, and nothing at all is no
# question of load.
RETRY_OFF = 0.02
RETRY_LOADS = (0.25, 0.05)  # x the limits, one after the other
RETRY_MAX = 48  # homes, of those most off: if there are more, it is the machine, and asking all again takes minutes
SHARE = 0.8  # of a link in common that a group may fill
GROUP_MAX = 64
TCP_TDF = 8.0  # beyond this time dilation TCP takes minutes to settle, a few homes at once on the server's slow link
LONG_BYTES = 2e6  # under way on a link (rate x RTT): beyond, TCP takes seconds to get so far, and datagrams don't
VANISHED = 0.1  # of what left a queue: with more missing at the receiver, it is no longer the queue that counts
FULL = 0.8  # of the time that a queue has to be known to be busy, where only arrivals tell the rate
CONNECT_S = 5.0  # beside four round trips
ECHOES = 16
PACKETS_MIN = 60  # in one rate measurement, however slow the link: one packet more or less is no error then
STAMPED_MIN = 12  # of datagrams without losses: the kernel's stamps tell the first one's time from the last one's


@dataclass(frozen=True)
class ProbeResult:
    """One quantity of one home's link. rate_up, rate_down [bit/s], rtt [s]; all emulated.

    measured: 0 bit/s or an infinite RTT when nothing came through; NaN: not judged, `text` says why. seconds:
    emulated, that the measurement took.
    count: answers that the RTT is the median of; for rates 1.
    """

    home: str
    quantity: str
    set: float
    measured: float
    seconds: float
    count: int = 1
    text: str = ""


class _Host(Protocol):
    netns_path: str
    ip: str


class _Network(Protocol):
    hosts: Mapping[str, _Host]
    topology: Topology  # rates as emulated, time dilation applied
    settings: NetworkSettings

    def bottlenecks(self, home: str, direction: str) -> list[str]: ...
    def queue(self, interface: str) -> QueueCounters: ...


def probe_links(
    network: _Network,
    expected: Mapping[str, LinkState],
    *,
    server: LinkState,
    seconds: float = 1.0,
    tdf: float = 1.0,
    tcp_tdf: float = TCP_TDF,
) -> list[ProbeResult]:
    """Measure RTT and rate, in both directions, of every home's link. Blocks; leaves no process and no
    traffic.

    The rate is that of a TCP flow in its steady state at the receiver. Where packets are lost at random, TCP
    is slower than its link, and at a high time dilation or on a long link it takes long to settle; so there it is the
    rate at which full packets come through, in terms of TCP goodput, the loss taken off.

    What is judged is the link, not the flow. Where less arrives than was set, the link's own queue says what the link
    lets through while that queue is never empty (QueueWatch). A link whose queue could not be kept filled is tried
    again with datagrams, and if that does not do either, its rate is not judged.

    Args:
        network: started; its delay backend too.
        expected: the settings in force, by home (emulated units).
        server: the server's link; a home that is faster is expected to reach the server's rate.
        seconds: real length of one rate measurement, after the flows have settled.
        tdf: time dilation factor.
        tcp_tdf: time dilation beyond which TCP is not waited for; infinite: it is TCP that is to be measured, nothing
            else is tried.
    """
    results = _probe_rtts(network.hosts, expected, tdf)
    for direction in ("down", "up"):
        links = _Path(network.topology, server, direction, tdf)
        rates = {home: links.expected_bps(home, state) for home, state in expected.items()}
        rates = dict(sorted(rates.items(), key=lambda item: -item[1]))  # a group takes as long as its slowest
        found: dict[str, ProbeResult] = {}
        pushed: set[str] = set()  # those that TCP did not fill
        for load in (1.0, *RETRY_LOADS):
            if load != 1.0:
                worst = sorted(rates, key=lambda home: -_off(found[home]))[:RETRY_MAX]
                rates = {home: rates[home] for home in worst}
            for group in list(links.groups(rates, load)):
                of_group = {home: rates[home] for home in group}
                now = _probe_rates(network, expected, of_group, direction, seconds, tdf, tcp_tdf, pushed)
                found |= now
                for home in group:
                    unfilled = math.isnan(now[home].measured)
                    if unfilled and tcp_tdf < math.inf and home not in pushed:
                        pushed.add(home)
                    elif len(group) == 1 or now[home].measured == 0 or _off(now[home]) <= RETRY_OFF:
                        del rates[home]
        results += found.values()
    return results


def _off(result: ProbeResult) -> float:
    return math.inf if math.isnan(result.measured) else abs(result.measured / result.set - 1)


class _Path:
    """What homes share on the way to the server, in one direction; rates in real bit/s."""

    def __init__(self, topology: Topology, server: LinkState, direction: str, tdf: float):
        self._down = direction == "down"
        self._tdf = tdf
        self._server_bps = (server.up_bps if self._down else server.down_bps) / tdf
        self._shared = {
            home: (link.name, link.downlink_bps if self._down else link.uplink_bps)
            for link in topology.shared_links
            for home in link.members
        }

    def expected_bps(self, home: str, state: LinkState) -> float:
        """What the home alone can reach: the least rate on its path."""
        own_bps = (state.down_bps if self._down else state.up_bps) / self._tdf
        return min(own_bps, self._server_bps, self._shared.get(home, ("", math.inf))[1])

    def groups(self, rates: Mapping[str, float], load: float = 1.0) -> Iterator[list[str]]:
        """Homes in order, in groups that leave room on every link in common (one home alone may fill it).

        load: how much of that room to use.
        """
        capacity = {"": load * min(MACHINE_BPS, SHARE * self._server_bps)}
        capacity |= {name: load * SHARE * bps for name, bps in self._shared.values()}
        group: list[str] = []
        used = dict.fromkeys(capacity, 0.0)
        for home, rate in rates.items():
            on_path = ["", *([self._shared[home][0]] if home in self._shared else [])]
            if group and (len(group) == GROUP_MAX or any(used[x] + rate > capacity[x] for x in on_path)):
                yield group
                group, used = [], dict.fromkeys(capacity, 0.0)
            group.append(home)
            for link in on_path:
                used[link] += rate
        if group:
            yield group


def _probe_rtts(hosts: Mapping[str, _Host], expected: Mapping[str, LinkState], tdf: float) -> list[ProbeResult]:
    results: list[ProbeResult] = []
    for group in _chunks(expected, 4 * GROUP_MAX):
        longest_s = max(expected[h].rtt_s + 8 * expected[h].jitter_s for h in group) * tdf + 0.1
        # Packets closer together than the jitter would wait for one another, as a line keeps its order.
        interval_s = max(0.02, min(0.2, 4 * max(expected[h].jitter_s for h in group) * tdf))
        found = echo_rtts(
            [(h, hosts[h].netns_path, hosts[SERVER].ip) for h in group],
            count=ECHOES,
            interval_s=interval_s,
            wait_s=longest_s,
        )
        seconds = (ECHOES * interval_s + longest_s) / tdf
        results += [
            ProbeResult(
                h,
                "rtt",
                expected[h].rtt_s,
                statistics.median(found[h]) / tdf if found[h] else math.inf,
                seconds,
                len(found[h]),
            )
            for h in group
        ]
    return results


def _chunks(names: Iterable[str], size: int) -> Iterator[list[str]]:
    names = list(names)
    for start in range(0, len(names), size):
        yield names[start : start + size]


def _probe_rates(
    network: _Network,
    expected: Mapping[str, LinkState],
    rates: Mapping[str, float],
    direction: str,
    seconds: float,
    tdf: float,
    tcp_tdf: float,
    pushed: Collection[str] = (),
) -> dict[str, ProbeResult]:
    """One group's. pushed: homes that get datagrams whatever their link is like."""
    hosts, specs = network.hosts, []
    real_rtt_s = {home: expected[home].rtt_s * tdf for home in rates}
    for home, rate_bps in rates.items():
        source, sink = (SERVER, home) if direction == "down" else (home, SERVER)
        long = rate_bps * real_rtt_s[home] / 8 > LONG_BYTES and tcp_tdf < math.inf
        specs.append(
            FlowSpec(
                home,
                hosts[source].netns_path,
                hosts[sink].netns_path,
                hosts[sink].ip,
                rate_bps,
                datagrams=expected[home].loss > 0 or tdf > tcp_tdf or long or home in pushed,
            )
        )
    # Slow start doubles every RTT from ten packets; then the buffer fills, and what it overshot is sent again.
    longest_s = max((real_rtt_s[spec.name] for spec in specs if not spec.datagrams), default=0.0)
    settle_s = 0.5 + max(real_rtt_s.values())
    if longest_s:
        settle_s = max(settle_s, 0.5 * tdf + 12 * longest_s)
    lengths = {}
    for spec in specs:
        packets = STAMPED_MIN if spec.datagrams and not expected[spec.name].loss else PACKETS_MIN
        lengths[spec.name] = max(seconds, packets * FRAME_BYTES * 8 / spec.rate_bps)
    # What homes have in common says something about one of them only while that one is alone.
    queues = {home: network.bottlenecks(home, direction)[: None if len(rates) == 1 else 1] for home in rates}
    reading = {name: functools.partial(network.queue, name) for names in queues.values() for name in names}
    watch = QueueWatch(reading, network.settings.buffer_s)
    with open_flows(specs, timeout_s=CONNECT_S + 4 * longest_s) as flows:
        arrived = saturate(flows, lengths, settle_s, watch)
        opened = {flow.spec.name: flow for flow in flows}
    found = {}
    for home, bps in rates.items():
        kept = 1 - one_way_loss(expected[home].loss)
        came = arrived.get(home, 0.0) / kept
        measured, text = came, ""
        if came and came < (1 - RETRY_OFF) * bps:
            flow = opened[home]
            window = flow.measured_from_s, flow.measured_from_s + lengths[home]
            served = watch.goodput_bps(queues[home], *window)
            if served is None and watch.busy_s(queues[home], *window) >= FULL * lengths[home]:
                pass  # a slow link, of whose few packets each one's arrival is known
            elif served is None:
                measured, text = math.nan, _unfilled(flow, came * tdf, bps * tdf)
            elif came >= (1 - VANISHED) * served:
                measured = served
        found[home] = ProbeResult(home, f"rate_{direction}", bps * tdf, measured * tdf, lengths[home] / tdf, 1, text)
    return found


def _unfilled(flow: Flow, came_bps: float, set_bps: float) -> str:
    """Why nothing can be said about a link."""
    what = f"{units.rate(came_bps)} of {units.rate(set_bps)} came through, and the link's queue was never full for long"
    if flow.skipped:
        return f"{what}: this machine could not send fast enough"
    return f"{what}: one {'flow of datagrams' if flow.spec.datagrams else 'TCP flow'} did not fill it"

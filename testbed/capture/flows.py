"""The flows in a capture, a row each direction of a connection, in constant memory but for the number of flows.

RTT: from the time stamps of TCP (RFC 7323), as K. Nichols' pping does it: from the first packet with data that carries
a time stamp to the first that echoes it. Where the packets were captured only one side's way is a whole round trip, so
both rows of a connection get the RTT of the side whose smallest values are larger.

Retransmission or reordering: data below the highest sequence number seen. Its sender sent it before that (an older TCP
time stamp, or the same and an older IP identification): reordering; otherwise it was sent again.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from testbed.capture.packets import ACK, SYN, TCP, Packets, decode, known_link
from testbed.capture.reading import Capture
from testbed.errors import InputError

FLOWS_MAX = 50_000  # more share one row
_SERIES_MAX = 2000  # intervals of a flow's series; their width doubles until all fit
_LOG_STEP = 0.002  # RTTs are counted in steps of 0.2 %
_MAX_SEGMENT = 1460
OTHERS = "(other flows)"
COLUMNS = ("source", "destination", "protocol", "source_port", "destination_port", "source_role", "destination_role",
           "start_s", "end_s", "packets", "bytes", "payload_bytes", "goodput_bps", "rtt_p50_s", "rtt_p95_s",
           "retransmissions", "reordered", "largest_gap_s")  # fmt: skip


@dataclass
class Flows:
    """table: COLUMNS, a row a flow, in order of their start. Times are seconds since `zero_ns`, divided by tdf.

    series: flow (row of the table), t_s, seconds, goodput_bps, rtt_s (mean, NaN without). remarks: for people.
    """

    table: pd.DataFrame
    series: pd.DataFrame
    packets: int
    other_packets: int
    zero_ns: int
    tdf: float = 1.0
    remarks: list[str] = field(default_factory=list)


_HOLES_MAX = 2000


@dataclass
class _Flow:
    key: tuple
    first_ns: int
    last_ns: int = 0
    packets: int = 0
    wire: int = 0
    payload: int = 0
    fresh: int = 0
    retransmitted: int = 0
    reordered: int = 0
    last_data_ns: int | None = None
    first_data_ns: int | None = None
    gap_ns: int = 0
    origin: int | None = None  # sequence number that positions are counted from
    top: int = 0  # the highest position seen
    top_stamp: int = -1
    top_id: int = -1
    segment: int = 0
    holes: list[tuple[int, int]] = field(default_factory=list)  # positions below `top` that were not seen
    waiting: tuple[np.ndarray, np.ndarray] = field(default_factory=lambda: (np.empty(0, np.int64),) * 2)
    pending: tuple[np.ndarray, np.ndarray] = field(default_factory=lambda: (np.empty(0, np.int64),) * 2)
    stamp_seen: int | None = None
    echo_seen: int | None = None
    rtts: Counter = field(default_factory=Counter)
    bytes_at: Counter = field(default_factory=Counter)  # interval: payload
    rtt_at: Counter = field(default_factory=Counter)  # interval: sum [ns]
    rtts_at: Counter = field(default_factory=Counter)

    def fill(self, start: int, end: int) -> int:
        """Data came late: how much of it had not been seen."""
        left, found = [], 0
        for a, b in self.holes:
            low, high = max(a, start), min(b, end)
            if low >= high:
                left.append((a, b))
                continue
            found += high - low
            left += [x for x in ((a, low), (high, b)) if x[0] < x[1]]
        self.holes = left
        return found


def read_flows(
    path: Path,
    *,
    names: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
    zero_ns: int | None = None,
    tdf: float = 1.0,
) -> Flows:
    """All flows of a capture file.

    Args:
        names: hosts' names by address, beside those that the file holds.
        roles: of hosts, by name.
        zero_ns: moment that times are counted from [ns since 1970]; default: the first packet.
        tdf: real seconds in a second of the table.

    Raises:
        InputError: as `Capture.batches`; or a link type that is not known.
    """
    capture, reader = Capture(path), _Reader(zero_ns)
    for batch in capture.batches():
        if not known_link(batch.link):
            raise InputError(str(path), f"link type {batch.link}; expected Ethernet, Linux-cooked, loopback or raw IP")
        packets, others = decode(batch)
        reader.others += others
        reader.feed(packets, int(batch.time_ns.min()))
    return reader.result({**capture.names, **(names or {})}, roles or {}, tdf, capture.remarks)


class _Reader:
    def __init__(self, zero_ns: int | None):
        self.zero_ns, self.flows, self.others, self.packets = zero_ns, {}, 0, 0
        self.width_ns = 100_000_000
        self.merged = 0

    def feed(self, p: Packets, first_ns: int) -> None:
        if self.zero_ns is None:
            self.zero_ns = first_ns
        n = len(p.time_ns)
        self.packets += n
        if not n:
            return
        mix = np.zeros(n, np.uint64)
        columns = [p.source[:, 0], p.source[:, 1], p.destination[:, 0], p.destination[:, 1], p.ports.astype(np.uint64),
                   p.protocol.astype(np.uint64)]  # fmt: skip
        for column in columns:
            mix = (mix ^ column) * np.uint64(0x9E3779B97F4A7C15)
            mix ^= mix >> np.uint64(29)
        order = np.argsort(mix, kind="stable")
        ordered = mix[order]
        cuts = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
        last = (int(p.time_ns.max()) - self.zero_ns) // self.width_ns
        while last > _SERIES_MAX:
            self._double()
            last = (int(p.time_ns.max()) - self.zero_ns) // self.width_ns
        touched = []
        for rows in np.split(order, cuts):
            i = rows[0]
            key = (
                _address(p.source[i], p.v6[i]),
                _address(p.destination[i], p.v6[i]),
                int(p.protocol[i]),
                int(p.ports[i]) >> 16,
                int(p.ports[i]) & 0xFFFF,
            )
            flow = self.flows.get(key)
            if flow is None:
                if len(self.flows) >= FLOWS_MAX:
                    self.merged += 1
                    key = (OTHERS, OTHERS, int(p.protocol[i]), 0, 0)
                    flow = self.flows.get(key)
                if flow is None:
                    flow = self.flows[key] = _Flow(key, int(p.time_ns[rows[0]]))
            touched.append((flow, rows))
        for flow, rows in touched:
            self._count(flow, p, rows)
        for flow, rows in touched:
            if flow.key[2] == TCP and flow.key[0] != OTHERS:
                self._echoes(flow, p, rows)

    def _double(self) -> None:
        self.width_ns *= 2
        for flow in self.flows.values():
            for name in ("bytes_at", "rtt_at", "rtts_at"):
                halved: Counter = Counter()
                for at, value in getattr(flow, name).items():
                    halved[at // 2] += value
                setattr(flow, name, halved)

    def _back(self, flow: _Flow) -> _Flow | None:
        a, b, protocol, x, y = flow.key
        return self.flows.get((b, a, protocol, y, x))

    def _count(self, flow: _Flow, p: Packets, rows: np.ndarray) -> None:
        time, payload, length = p.time_ns[rows], p.payload[rows], p.length[rows]
        flow.first_ns = min(flow.first_ns, int(time.min()))
        flow.last_ns = max(flow.last_ns, int(time.max()))
        flow.packets += len(rows)
        tcp = flow.key[2] == TCP and flow.key[0] != OTHERS
        segments = np.ones(len(rows), np.int64)
        if tcp:
            mss = p.mss[rows].max()
            if mss:
                back = self._back(flow)
                flow.segment = min(x for x in (int(mss), back.segment if back else 0) if x)
                if back:
                    back.segment = flow.segment
            stamped = (p.stamp[rows] >= 0).any()
            segment = (flow.segment or _MAX_SEGMENT) - (12 if stamped else 0)
            segments = np.maximum(1, -(-payload // max(segment, 1)))
        flow.wire += int((length + (segments - 1) * np.minimum(p.header[rows], 160)).sum())
        flow.payload += int(payload.sum())
        data = payload > 0
        fresh = payload
        if tcp and data.any():
            fresh = self._sequence(flow, p, rows, payload, segments)
        flow.fresh += int(fresh.sum())
        if data.any():
            at = time[data]
            before = [flow.last_data_ns] if flow.last_data_ns is not None else []
            both = np.concatenate([np.array(before, np.int64), at])
            if len(both) > 1:
                flow.gap_ns = max(flow.gap_ns, int(np.diff(both).max()))
            if flow.first_data_ns is None:
                flow.first_data_ns = int(at[0])
            flow.last_data_ns = int(at[-1])
            _add(flow.bytes_at, (at - self.zero_ns) // self.width_ns, fresh[data])

    def _sequence(self, flow, p, rows, payload, segments) -> np.ndarray:
        """Payload that had not been seen before, by packet; counts what was sent again and what was overtaken."""
        chosen = np.flatnonzero(payload > 0)
        seq, size = p.seq[rows][chosen], payload[chosen]
        stamp, ident = p.stamp[rows][chosen], p.ip_id[rows][chosen]
        if flow.origin is None:
            flow.origin, flow.top = int(seq[0]), 0
        # positions beyond 2^32: each relative to the highest before this batch, half the space each way
        delta = (seq - (flow.origin + flow.top) + 2**31) % 2**32 - 2**31
        steps = np.diff(seq, prepend=seq[:1])
        steps = (steps + 2**31) % 2**32 - 2**31
        position = flow.top + delta[0] + np.cumsum(steps) if len(seq) else delta
        end = position + size
        running = np.maximum.accumulate(np.concatenate([[flow.top], end]))
        before = running[:-1]
        old = position < before
        new = np.clip(end - np.maximum(position, before), 0, size)
        if old.any():
            raised = end > before
            index = np.where(raised, np.arange(len(end)), -1)
            latest = np.maximum.accumulate(np.concatenate([[-1], index]))[:-1]
            top_stamp = np.where(latest >= 0, stamp[latest], flow.top_stamp)
            top_id = np.where(latest >= 0, ident[latest], flow.top_id)
            older = (stamp - top_stamp + 2**31) % 2**32 - 2**31
            older_id = (ident - top_id + 2**15) % 2**16 - 2**15
            known = (stamp >= 0) & (top_stamp >= 0)
            ids = (ident > 0) & (top_id > 0)
            overtaken = old & ((known & (older < 0)) | ((~known | (older == 0)) & ids & (older_id < 0)))
            again = old & ~overtaken
            flow.reordered += int(overtaken.sum())
            flow.retransmitted += int(segments[chosen][again].sum())
        ahead = position > before
        for i in np.flatnonzero(ahead | old):
            if ahead[i]:
                flow.holes = [*flow.holes[-_HOLES_MAX:], (int(before[i]), int(position[i]))]
            elif flow.holes:
                new[i] += flow.fill(int(position[i]), int(end[i]))
        tops = np.flatnonzero(end > before)
        if len(tops):
            flow.top_stamp, flow.top_id = int(stamp[tops[-1]]), int(ident[tops[-1]])
        flow.top = int(running[-1])
        fresh = np.zeros(len(rows), np.int64)
        fresh[chosen] = new
        return fresh

    def _echoes(self, flow: _Flow, p: Packets, rows: np.ndarray) -> None:
        """Match what this flow's packets echo with what the other direction's data carried before."""
        back = self._back(flow)
        time, stamp, echo = p.time_ns[rows], p.stamp[rows], p.echo[rows]
        carries = (stamp >= 0) & ((p.payload[rows] > 0) | (p.flags[rows] & SYN > 0))
        if carries.any():
            at, value = _first_of_each(time[carries], stamp[carries], flow.stamp_seen)
            if len(value):
                flow.stamp_seen = int(value[-1])
                flow.waiting = tuple(np.concatenate(x)[-100_000:] for x in zip(flow.waiting, (value, at)))
        if back is None:
            return
        # the other direction's stamps of this very batch are needed, too: whichever comes second matches
        for one, other in ((flow, back), (back, flow)):
            pending = one.pending
            if one is flow:
                echoes = (echo >= 0) & (p.flags[rows] & ACK > 0) & (stamp >= 0)
                at, value = _first_of_each(time[echoes], echo[echoes], one.echo_seen)
                if len(value):
                    one.echo_seen = int(value[-1])
                    pending = tuple(np.concatenate(x) for x in zip(pending, (value, at)))
            one.pending = self._match(other, pending)

    def _match(self, sender: _Flow, pending: tuple) -> tuple:
        values, times = pending
        sent, sent_at = sender.waiting
        if not len(values) or not len(sent):
            return tuple(x[-1000:] for x in pending)
        base = int(sent[0])
        a, b = _near(sent, base), _near(values, base)
        place = np.searchsorted(a, b)
        hit = (place < len(a)) & (a[np.minimum(place, len(a) - 1)] == b)
        rtt = times[hit] - sent_at[place[hit]]
        good = rtt > 0
        rtt, at = rtt[good], (times[hit][good] - self.zero_ns) // self.width_ns
        if len(rtt):
            _add(sender.rtts, np.round(np.log(rtt) / _LOG_STEP).astype(np.int64), np.ones(len(rtt), np.int64))
            _add(sender.rtt_at, at, rtt)
            _add(sender.rtts_at, at, np.ones(len(rtt), np.int64))
        if hit.any():
            sender.waiting = sent[place[hit].max() + 1 :], sent_at[place[hit].max() + 1 :]
        late = b > a[-1]
        return values[late][-1000:], times[late][-1000:]

    def result(self, names: dict, roles: Mapping[str, str], tdf: float, remarks: list[str]) -> Flows:
        zero = self.zero_ns or 0
        flows = sorted(self.flows.values(), key=lambda f: f.first_ns)
        rows, series = [], []
        seconds = self.width_ns / 1e9 / tdf
        for number, flow in enumerate(flows):
            a, b, protocol, x, y = flow.key
            seen = _whole_way(flow, self._back(flow) if a != OTHERS else None)
            source, target = names.get(a, a), names.get(b, b)
            data_ns = (flow.last_data_ns or 0) - (flow.first_data_ns or 0)
            rows.append(
                (
                    source,
                    target,
                    "tcp" if protocol == TCP else "udp",
                    x,
                    y,
                    roles.get(source, ""),
                    roles.get(target, ""),
                )
                + ((flow.first_ns - zero) / 1e9 / tdf, (flow.last_ns - zero) / 1e9 / tdf)
                + (flow.packets, flow.wire, flow.fresh)
                + (flow.fresh * 8e9 * tdf / data_ns if data_ns > 0 else np.nan,)
                + (_quantile(seen.rtts, 0.5) / tdf, _quantile(seen.rtts, 0.95) / tdf)
                + (flow.retransmitted, flow.reordered, flow.gap_ns / 1e9 / tdf)
            )
            for at in sorted(set(flow.bytes_at) | set(seen.rtts_at)):
                rtt = seen.rtt_at[at] / seen.rtts_at[at] / 1e9 / tdf if seen.rtts_at[at] else np.nan
                series.append((number, at * seconds, seconds, flow.bytes_at[at] * 8 / seconds, rtt))
        notes = list(remarks)
        if self.merged:
            notes.append(f"more than {FLOWS_MAX} flows: the others share the row {OTHERS}")
        return Flows(
            pd.DataFrame(rows, columns=list(COLUMNS)),
            pd.DataFrame(series, columns=["flow", "t_s", "seconds", "goodput_bps", "rtt_s"]),
            self.packets,
            self.others,
            zero,
            tdf,
            notes,
        )


def _whole_way(flow: _Flow, back: _Flow | None) -> _Flow:
    """Of a connection's two directions the one whose round trips lead to the far host and back."""
    if back is None or not back.rtts:
        return flow
    return back if not flow.rtts or _quantile(back.rtts, 0.1) > _quantile(flow.rtts, 0.1) else flow


def _quantile(counts: Counter, share: float) -> float:
    """Seconds; NaN without any."""
    left = share * sum(counts.values())
    for step in sorted(counts):
        left -= counts[step]
        if left <= 0:
            return float(np.exp(step * _LOG_STEP)) / 1e9
    return float("nan")


def _first_of_each(time: np.ndarray, value: np.ndarray, seen: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Where a 32 bit counter is higher than ever before."""
    if not len(value):
        return time, value
    base = int(value[0]) if seen is None else seen
    ahead = _near(value, base)
    top = np.maximum.accumulate(np.concatenate([[-1 if seen is None else 0], ahead]))[:-1]
    fresh = ahead > top
    return time[fresh], value[fresh]


def _near(value: np.ndarray, base: int) -> np.ndarray:
    return (value - base + 2**31) % 2**32 - 2**31


def _add(counter: Counter, keys: np.ndarray, amounts: np.ndarray) -> None:
    unique, inverse = np.unique(keys, return_inverse=True)
    sums = np.zeros(len(unique), np.int64)
    np.add.at(sums, inverse, amounts)
    for key, amount in zip(unique.tolist(), sums.tolist()):
        counter[key] += amount


def _address(halves: np.ndarray, v6: bool) -> str:
    high, low = int(halves[0]), int(halves[1])
    return str(ipaddress.IPv6Address(high << 64 | low) if v6 else ipaddress.IPv4Address(low))

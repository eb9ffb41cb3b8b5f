"""RIPE Atlas ping results: RTT in ms, a home a probe. No rate: see `rtt_logs`."""

from __future__ import annotations

from testbed.traces.json_format import JsonFormat
from testbed.traces.json_text import get, number_at


def _rtts(value) -> list[float]:
    results = get(value, "result")
    if not isinstance(results, list):
        return []
    return [r for entry in results if (r := number_at(entry, "rtt")) is not None and r >= 0]


def _row(value, clock):
    if get(value, "type") not in (None, "ping"):
        return None
    sent, back = number_at(value, "sent"), number_at(value, "rcvd")
    rtts = _rtts(value)
    average = number_at(value, "avg")
    rtt = sum(rtts) / len(rtts) if rtts else average if average is not None and average >= 0 else None
    jitter = sum(abs(b - a) for a, b in zip(rtts, rtts[1:])) / (len(rtts) - 1) if len(rtts) > 1 else None
    loss = 1 - min(back, sent) / sent if sent and back is not None else None
    return clock.epoch(str(value["timestamp"])), None, None, rtt, jitter, loss


ATLAS = JsonFormat(
    "ripe-atlas",
    "RIPE Atlas ping results",
    needs=(("msm_id",), ("prb_id",), ("timestamp",)),
    units={"rtt_s": "ms", "jitter_s": "ms", "loss": "ratio"},
    row=_row,
    home=lambda value, records: f"probe-{get(value, 'prb_id')}",
    drops=("from, src_addr, dst_addr",),
    sparse=True,
)

FORMATS = (ATLAS.format(),)

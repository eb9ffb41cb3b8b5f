"""The run in Chrome's trace format: opens in Perfetto (https://ui.perfetto.dev) or chrome://tracing.

One process a device, with threads for computing, the network each way and its status; one process for
training as a whole. Times are emulated microseconds. Format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from testbed.measurement.events import natural, select
from testbed.measurement.steps import absences

THREADS = {"status": 0, "compute": 100, "network up": 200, "network down": 300}  # room for lanes of overlapping slices
_TRAINING = 1
_LANES = 100


def trace_json(events: pd.DataFrame) -> str:
    """The whole trace as JSON text, one trace event a line."""
    lines = (json.dumps(e, separators=(",", ":"), ensure_ascii=False) for e in trace_events(events))
    return '{"displayTimeUnit":"ms","traceEvents":[\n' + ",\n".join(lines) + "\n]}\n"


def trace_events(events: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Trace events: names first, then slices, instants and counters."""
    nodes = {n for n in events["node"].dropna().unique() if n != "testbed"} if len(events) else set()
    nodes |= set(select(events, "transfer")["peer"].dropna())
    order = sorted(nodes, key=lambda n: (n != "server", natural(n)))
    pids = {name: _TRAINING + 1 + i for i, name in enumerate(order)}
    yield from _process(_TRAINING, "training", 0)
    for name, pid in pids.items():
        yield from _process(pid, name, pid)
    end_s = float(events["t"].max()) if len(events) else 0.0
    yield from _training(events)
    peers = events["peer"] if "peer" in events else events["node"]
    for node, pid in pids.items():
        yield from _device(events[(events["node"] == node) | (peers == node)], node, pid, end_s)


def _process(pid: int, name: str, order: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": order}}


def _training(events: pd.DataFrame) -> Iterator[dict[str, Any]]:
    spans = []
    for e in select(events, "step").itertuples():
        name = f"step {_whole(e.step)}" + (f" (attempt {_whole(e.attempt)})" if e.attempt > 1 else "")
        spans.append((e.start, e.end, name, {"loss": e.loss, "samples": e.samples}))
    yield from _slices(spans, _TRAINING, "steps", 0)
    spans = [
        (e.start, e.end, f"recovery: {e.kind} ({e.peer})", {"detected_s": e.detected, "lost_steps": e.lost_steps})
        for e in select(events, "recovery").itertuples()
    ]
    yield from _slices(spans, _TRAINING, "recovery", 100)
    spans = [
        (e.start, e.end, f"checkpoint {_whole(e.step)}", {"bytes": e.bytes})
        for e in select(events, "checkpoint").itertuples()
    ]
    yield from _slices(spans, _TRAINING, "checkpoints", 200)
    for kind in ("warning", "plan"):
        for e in select(events, kind).itertuples():
            text = e.text if kind == "warning" else f"plan: {e.note or 'changed'}"
            yield _instant(_TRAINING, 0, e.t, str(text), "p")


def _device(events: pd.DataFrame, node: str, pid: int, end_s: float) -> Iterator[dict[str, Any]]:
    own = events[events["node"] == node]
    spans = [
        (e.start, e.end, e.label or "compute", {"flops": e.flops, "busy_s": e.busy, "overrun_s": e.overrun})
        for e in select(own, "compute").itertuples()
    ]
    yield from _slices(spans, pid, "compute", THREADS["compute"])
    arrived = select(events, "transfer")
    arrived = arrived[arrived["peer"] == node]
    spans = [(e.start, e.end, f"{e.tag} → {e.node}", {"bytes": e.bytes}) for e in arrived.itertuples()]
    flights = {(e.node, e.tag, round(e.start, 3)) for e in arrived.itertuples() if math.isfinite(e.start)}
    for e in select(own, "send").itertuples():  # those that arrived are shown already, until their last byte
        if math.isfinite(e.start) and not any(
            (e.peer, e.tag, round(e.start + d, 3)) in flights for d in (-1e-3, 0, 1e-3)
        ):
            spans.append((e.start, e.end, f"{e.tag} → {e.peer}", {"bytes": e.bytes, "arrived": False}))
    yield from _slices(spans, pid, "network up", THREADS["network up"])
    spans = [(e.start, e.end, f"{e.tag} ← {e.peer}", {"bytes": e.bytes}) for e in select(own, "transfer").itertuples()]
    yield from _slices(spans, pid, "network down", THREADS["network down"])
    spans = [
        (e.start, e.end, f"wait for {e.tag} from {e.peer or 'anyone'}", {}) for e in select(own, "wait").itertuples()
    ]
    away = absences(own)
    spans += [
        (
            a.leave_s if math.isfinite(a.leave_s) else 0.0,
            a.return_s if math.isfinite(a.return_s) else end_s,
            f"offline ({a.mode})",
            {"cause": a.cause},
        )
        for a in away.itertuples()
    ]
    yield from _slices(spans, pid, "status", THREADS["status"])
    for e in select(own, "member").itertuples():
        yield _instant(pid, THREADS["status"], e.t, f"{e.peer} {e.kind}", "t")
    for e in select(own, "worker").itertuples():
        yield _instant(pid, THREADS["status"], e.t, f"worker {e.state}", "t")
    for e in select(own, "link").itertuples():
        args = {"down": _number(e.down_bps / 1e6), "up": _number(e.up_bps / 1e6)}
        yield {"ph": "C", "pid": pid, "name": "set rate [Mbit/s]", "ts": _us(e.t), "args": args}
    for e in select(own, "throughput").itertuples():
        if e.seconds > 0:
            args = {str(e.direction): _number(e.bytes * 8 / e.seconds / 1e6)}
            name = f"measured {e.direction} [Mbit/s]"
            yield {"ph": "C", "pid": pid, "name": name, "ts": _us(e.t - e.seconds), "args": args}


def _slices(spans: list[tuple], pid: int, thread: str, tid: int) -> Iterator[dict[str, Any]]:
    """Complete ('X') events. Slices of one thread must not overlap, so overlapping ones get further lanes."""
    spans = sorted((s for s in spans if _finite(s[0], s[1])), key=lambda s: (s[0], s[1]))
    busy: list[tuple[float, int]] = []  # (free from, lane)
    free: list[int] = []
    lanes = 0
    for start, end, name, args in spans:
        while busy and busy[0][0] <= start + 1e-9:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, lanes = min(lanes, _LANES - 1), lanes + 1
        heapq.heappush(busy, (end, lane))
        args = {k: v for k, v in ((k, _number(v)) for k, v in args.items()) if v is not None}
        yield {
            "ph": "X",
            "pid": pid,
            "tid": tid + lane,
            "name": str(name),
            "cat": thread,
            "ts": _us(start),
            "dur": round(max(end - start, 0) * 1e6, 3),
            "args": args,
        }
    for lane in range(min(lanes, _LANES)):
        name = thread if lane == 0 else f"{thread} ({lane + 1})"
        yield {"ph": "M", "pid": pid, "tid": tid + lane, "name": "thread_name", "args": {"name": name}}
        yield {
            "ph": "M",
            "pid": pid,
            "tid": tid + lane,
            "name": "thread_sort_index",
            "args": {"sort_index": tid + lane},
        }


def _instant(pid: int, tid: int, t: float, name: str, scope: str) -> dict[str, Any]:
    return {"ph": "i", "pid": pid, "tid": tid, "ts": _us(t), "name": name, "s": scope}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3) if math.isfinite(seconds) else 0.0


def _finite(*values: float) -> bool:
    return all(v is not None and math.isfinite(v) for v in values)


def _number(value: Any) -> Any:
    if isinstance(value, float):
        return (int(value) if value.is_integer() else value) if math.isfinite(value) else None
    return value


def _whole(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "?"

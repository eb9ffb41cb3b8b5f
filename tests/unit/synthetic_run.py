"""TEST FIXTURE: made-up run folders. No number in them was measured.

A small model of pipeline training (GPipe order) over home links, with link changes, churn, rollback to a
checkpoint and the engine's own figures, so that reports can be tested without an emulation. Everything
follows from the arguments.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from testbed.cluster import Cluster, Device, Link, ModelSpec, TrainingSpec
from testbed.measurement.rates import WIRE_PER_GOODPUT
from testbed.measurement.run_folder import RunFolder
from testbed.runtime.interface import Plan


@dataclass
class Synthetic:
    """Settings of a made-up run. churn: (leave_s, device index, away_s), of devices that hold a stage."""

    homes: int = 6
    steps: int = 30
    micro_batches: int = 8
    batch: int = 16
    churn: tuple[tuple[float, int, float], ...] = ((40.0, 2, 31.0), (112.0, 4, 18.0))
    checkpoint_every: int = 5
    compute_s: float = 0.09  # a stage's forward pass of one micro-batch
    activation_bytes: int = 65_000
    state_bytes: int = 1_500_000
    link_change_s: float = 6.0
    tdf: float = 1.0
    probes: bool = True
    rate_error: float = 0.004
    seed: int = 0
    names: tuple[str, ...] = ()
    host_fields: dict[str, Any] = field(default_factory=dict)


class _World:
    """Time and resources of the made-up run; `emit` collects events."""

    def __init__(self, s: Synthetic):
        self.s, self.rng = s, np.random.default_rng(s.seed)
        self.homes = list(s.names) or [f"h{i + 1}" for i in range(s.homes)]
        self.events: list[dict[str, Any]] = []
        self.base = {
            h: (float(self.rng.uniform(25, 90)) * 1e6, float(self.rng.uniform(6, 20)) * 1e6) for h in self.homes
        }
        self.rtt = {h: float(self.rng.uniform(0.012, 0.045)) for h in self.homes}
        self.speed = {h: float(self.rng.choice([0.8, 1.0, 1.3])) for h in self.homes}
        self.free: dict[str, float] = {}

    def emit(self, t: float, node: str, event: str, **fields: Any) -> None:
        self.events.append({"t": t, "node": node, "event": event, **fields})

    def rates(self, node: str, t: float) -> tuple[float, float]:
        if node == "server":
            return 200e6, 200e6
        phase = self.homes.index(node)
        step = math.floor((t + phase) / self.s.link_change_s)
        factor = 0.75 + 0.25 * math.sin(1.7 * step + phase)
        return self.base[node][0] * factor, self.base[node][1] * factor

    def take(self, resource: str, start: float, seconds: float) -> tuple[float, float]:
        start = max(start, self.free.get(resource, 0.0))
        self.free[resource] = start + seconds
        return start, start + seconds

    def compute(self, node: str, ready: float, seconds: float, label: str) -> float:
        waited_from = self.free.get(node, ready)
        start, end = self.take(node, ready, seconds / self.speed[node])
        overrun = float(self.rng.exponential(2e-4)) if self.rng.random() < 0.2 else 0.0
        self.free[node] = end = end + overrun
        if start - waited_from > 1e-3:
            self.emit(start, node, "wait", start=waited_from, end=start, peer=None, tag=label)
        self.emit(
            end,
            node,
            "compute",
            start=start,
            end=end,
            label=label,
            flops=2e9 * seconds,
            busy=seconds / 4,
            overrun=overrun,
        )
        return end

    def move(self, source: str, to: str, start: float, size: int, tag: str) -> float:
        """A message: waits for both links, takes size / slower rate; returns when the last byte arrived."""
        rate = min(self.rates(source, start)[1], self.rates(to, start)[0])
        seconds = size * 8 / rate
        begin = max(start, self.free.get(f"{source} up", 0.0), self.free.get(f"{to} down", 0.0))
        self.free[f"{source} up"] = self.free[f"{to} down"] = begin + seconds
        end = begin + seconds + (self.rtt.get(source, 0.002) + self.rtt.get(to, 0.002)) / 2
        self.emit(start + 1e-3, source, "send", start=start, end=start + 1e-3, peer=to, tag=tag, bytes=size)
        self.emit(end, to, "transfer", start=start, end=end, peer=source, tag=tag, bytes=size)
        return end


def _one_step(w: _World, step: int, start: float, stages: list[str]) -> float:
    """All forwards, all backwards, the optimizer; returns when the server has every stage's word."""
    s = w.s
    compute_s = s.compute_s * s.homes / len(stages) / 2
    there = [w.move("server", stages[0], start, 4_000, f"batch {step}.{m}") for m in range(s.micro_batches)]
    for i, node in enumerate(stages):
        for m in range(s.micro_batches):
            there[m] = w.compute(node, there[m], compute_s, f"F{m}")
            if i + 1 < len(stages):
                there[m] = w.move(node, stages[i + 1], there[m], s.activation_bytes, f"activation {step}.{m}")
    for i in reversed(range(len(stages))):
        for m in range(s.micro_batches):
            there[m] = w.compute(stages[i], there[m], 2 * compute_s, f"B{m}")
            if i > 0:
                there[m] = w.move(stages[i], stages[i - 1], there[m], s.activation_bytes, f"gradient {step}.{m}")
    done = start
    for node in stages:
        end = w.compute(node, w.free[node], compute_s / 4, "optimizer")
        done = max(done, w.move(node, "server", end, 300, f"done {step}"))
    return done


def _counters(w: _World, end_s: float) -> None:
    """`throughput` events: what the transfers put on each link, a second a window."""
    seconds = math.ceil(end_s)
    moved: dict[tuple[str, str], np.ndarray] = {}
    for e in [e for e in w.events if e["event"] == "transfer"]:
        for node, direction in ((e["peer"], "up"), (e["node"], "down")):
            rate = min(w.rates(e["peer"], e["start"])[1], w.rates(e["node"], e["start"])[0])
            stop = e["end"]
            begin = max(e["start"], stop - e["bytes"] * 8 / rate)
            bins = moved.setdefault((node, direction), np.zeros(seconds + 1))
            for second in range(int(begin), int(stop) + 1):
                share = min(stop, second + 1) - max(begin, second)
                bins[min(second, seconds)] += e["bytes"] * max(share, 0) / max(stop - begin, 1e-9)
    for (node, direction), sizes in moved.items():
        for second, size in enumerate(sizes[:-1]):
            set_bps = min(w.rates(node, t)[direction == "up"] for t in (second, second + 0.999))
            size = min(size, set_bps / 8) * WIRE_PER_GOODPUT
            w.emit(
                second + 1.0,
                node,
                "throughput",
                direction=direction,
                bytes=round(size),
                seconds=1.0,
                drops=int(size > 0.9 * set_bps / 8),
                backlog=0,
            )


def events_of(s: Synthetic) -> list[dict[str, Any]]:
    """The events of a made-up run, in time order."""
    w = _World(s)
    if s.probes:
        for h in [*w.homes]:
            down, up = w.rates(h, 0.0)
            for quantity, value in (("rate_down", down), ("rate_up", up), ("rtt", w.rtt[h])):
                error = 1 + float(w.rng.normal(0, s.rate_error))
                w.emit(-0.5, h, "probe", quantity=quantity, set=value, measured=value * error, seconds=1.0, count=20)
    w.emit(0.0, "server", "link", down_bps=200e6, up_bps=200e6, rtt_s=0.002, jitter_s=0.0, loss=0.0, late=0.0)
    for h in w.homes:
        w.emit(-1.0, h, "worker", state="started", pid=4000 + len(h), exit=None)
        w.emit(-0.1, h, "worker", state="ready", pid=4000 + len(h), exit=None)
        w.emit(0.0, "server", "member", kind="joined", peer=h, generation=1, detection=0.0)
    now, step, saved, attempt = 0.0, 0, 0, [0] * s.steps  # saved: steps that the last checkpoint contains
    leaves, away, pending = sorted(s.churn), {}, []
    while step < s.steps:
        for recovery in [r for r in pending if step >= r["step"]]:
            pending.remove(recovery)
            w.emit(now, "server", "recovery", end=now, **recovery)
        for name, back in [(n, b) for n, b in away.items() if b <= now]:
            del away[name]
            _return(w, name, back)
            w.emit(now, "server", "plan", devices=len(w.homes) - len(away), note=f"{name} is back")
        stages = [h for h in w.homes if h not in away]
        w.free = dict.fromkeys(w.free, now)
        mark, before = len(w.events), copy.deepcopy(w.free)
        end = _one_step(w, step, now, stages)
        attempt[step] += 1
        if leaves and leaves[0][0] < end:
            gone_s, index, away_s = leaves.pop(0)
            gone_s, gone = max(gone_s, now), stages[index % len(stages)]
            w.events[mark:] = [e for e in w.events[mark:] if e["t"] <= gone_s]
            w.free = before
            away[gone] = gone_s + away_s
            rest = [h for h in w.homes if h not in away]
            found_s, ready_s = _loss_of(w, gone, gone_s, rest)
            pending.append(
                {"kind": "replan", "peer": gone, "detected": 2.3, "start": found_s, "restored": ready_s}
                | {"step": step, "lost_steps": step - saved}
            )
            now, step = ready_s, saved
            continue
        _report(w, step, now, end, attempt[step], len(stages))
        now = end
        step += 1
        if step % s.checkpoint_every == 0:
            done = max(w.move(h, "server", now, s.state_bytes, f"checkpoint {step}") for h in stages)
            size = s.state_bytes * len(stages)
            w.emit(done, "server", "checkpoint", start=now, end=done, step=step - 1, bytes=size)
            now, saved = done, step
    _links(w, now)
    _counters(w, now)
    _host(w, now)
    w.events.sort(key=lambda e: e["t"])
    return w.events


def _report(w: _World, step: int, start: float, end: float, attempt: int, devices: int) -> None:
    noise = float(np.random.default_rng(step).normal(0, 0.03))
    loss = 2.1 + 3.4 * math.exp(-step / 12) + noise
    fields = {"step": step, "loss": loss, "start": start, "end": end, "samples": w.s.batch}
    w.emit(end, "server", "step", **fields, attempt=attempt, devices=devices)


def _loss_of(w: _World, gone: str, gone_s: float, rest: list[str]) -> tuple[float, float]:
    """A device vanishes; returns when that was noticed, and when the rest have the state again."""
    found_s = gone_s + 2.4
    w.emit(gone_s, gone, "churn", action="leave", mode="kill", late=0.003, cause="trace")
    w.emit(gone_s, gone, "worker", state="killed", pid=4000, exit=-9)
    w.emit(found_s, "server", "member", kind="left", peer=gone, generation=1, detection=2.3)
    w.emit(found_s, "server", "plan", devices=len(rest), note=f"replanned without {gone}")
    w.free = dict.fromkeys(w.free, found_s)
    return found_s, max(w.move("server", h, found_s, w.s.state_bytes, "state") for h in rest)


def _return(w: _World, name: str, at_s: float) -> None:
    w.emit(at_s, name, "churn", action="return", mode="kill", late=0.004, cause="trace")
    w.emit(at_s + 0.4, name, "worker", state="ready", pid=4100, exit=None)
    w.emit(at_s + 0.5, "server", "member", kind="joined", peer=name, generation=2, detection=0.0)


def _links(w: _World, end_s: float) -> None:
    for h in w.homes:
        t = 0.0
        while t < end_s:
            down, up = w.rates(h, t)
            late = 0.0 if t == 0 else float(w.rng.exponential(0.002))
            w.emit(t + late, h, "link", down_bps=down, up_bps=up, rtt_s=w.rtt[h], jitter_s=0.0, loss=0.0, late=late)
            t = (math.floor((t + w.homes.index(h)) / w.s.link_change_s) + 1) * w.s.link_change_s - w.homes.index(h)


def _host(w: _World, end_s: float) -> None:
    for second in range(int(end_s * w.s.tdf)):
        w.emit(
            (second + 1) / w.s.tdf,
            "testbed",
            "host",
            **{
                "cpu": float(w.rng.uniform(0.3, 0.6)),
                "steal": 0.0,
                "load": 1.2,
                "memory_bytes": 3.1e9,
                "memory_available_bytes": 4.6e9,
                "memory_stall": 0.0,
                "cpu_stall": 0.03,
                "sched_delay": float(w.rng.exponential(5e-4)),
                "delay_lag_p99": float(w.rng.exponential(3e-4)),
                "delay_lag_max": float(w.rng.exponential(2e-3)),
                "delay_overflowed": 0,
                "delay_age": 0.1,
                "delay_cpu": 0.06,
                "delay_paused": 0,
                "replay_overdue": 0.0,
                "churn_overdue": 0.0,
                "links_watched": 1,
                **w.s.host_fields,
            },
        )


def write_run(
    base: Path,
    s: Synthetic | None = None,
    name: str = "synthetic",
    status: str | None = "complete",
    extra: list[dict[str, Any]] = (),
    keep=lambda event: True,
) -> Path:
    """A made-up run folder. status None: as a crash leaves it, without the last manifest and derived files.

    Args:
        extra: events to add. keep: which of the model's events to keep.
    """
    s = s or Synthetic()
    w = _World(s)
    folder = RunFolder.create(base, name)
    experiment = {
        "name": name,
        "seed": s.seed,
        "engine": "emulation",
        "tdf": s.tdf,
        "time_scale": 60.0,
        "probes": {"enabled": s.probes},
        "model": {"layers": 12, "d_model": 128, "sequence": 64},
        "training": {"runner": "pipeline", "batch": s.batch, "steps": s.steps},
        "fidelity": {},
    }
    folder.write_manifest(
        testbed="0.1.0",
        engine="emulation",
        seed=s.seed,
        tdf=s.tdf,
        time_scale=60.0,
        experiment=experiment,
        kernel="6.1.0-synthetic",
        versions={"python": "3.11.2", "torch": "2.13.0", "mininet": "2.3.0"},
        machine={"cpu": "made-up", "cores": 2, "memory_bytes": 8e9},
        backend={"delay": "nfqueue", "switch": "bridge"},
        capabilities={"netem": False, "nfqueue": True, "cgroup": 2},
        commands=[f"tc class add dev p{i} parent 1: classid 1:1 htb rate 20mbit" for i in range(2 * s.homes)],
    )
    folder.write_experiment(
        f"# a made-up run\nname: {name!r}\nseed: {s.seed}\ntopology: {{homes: {s.homes}}}\n"
        f"training: {{runner: pipeline, batch: {s.batch}, steps: {s.steps}}}\n"
    )
    devices = tuple(
        Device(
            h, 10e9 * w.speed[h], 8_000_000_000, Link(w.base[h][1], w.base[h][0], w.rtt[h] / 2, w.rtt[h] / 2), "laptop"
        )
        for h in w.homes
    )
    server = Device("server", 1e12, 64_000_000_000, Link(200e6, 200e6))
    cut = [round(12 * i / s.homes) for i in range(s.homes + 1)]
    folder.write_plan(
        Plan(
            "pipeline",
            ModelSpec(layers=12),
            TrainingSpec(batch=s.batch, micro_batches=s.micro_batches, steps=s.steps),
            Cluster(server, devices),
            data={
                "schedule": "gpipe",
                "step_time_s": 2.4,
                "bubble_fraction": 0.41,
                "stages": [
                    {
                        "device": h,
                        "first": cut[i],
                        "end": cut[i + 1],
                        "layers": f"block {cut[i]} … block {cut[i + 1] - 1}",
                        "memory_bytes": 220_000_000,
                        "parameters": 400_000,
                        "forward_s": s.compute_s / w.speed[h] / 2,
                        "backward_s": s.compute_s / w.speed[h],
                        "output_bytes": s.activation_bytes,
                    }
                    for i, h in enumerate(w.homes)
                ],
            },
            predicted={"step_time_s": 2.4},
            notes=["h1 holds the embedding."],
        )
    )
    (folder.logs / "h1.log").write_text("made up\n")
    for event in sorted([*filter(keep, events_of(s)), *extra], key=lambda e: e["t"]):
        folder.recorder.append(event)
    if status is None:
        folder.recorder.flush()
        folder.write_manifest(process={"pid": 0, "start_ticks": "0"})
    else:
        folder.finish(status)
    return folder.path

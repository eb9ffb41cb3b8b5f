"""Simulates the points of questions, in several processes, and keeps what came out of each."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import re
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from testbed.cluster.published import PUBLISHED
from testbed.errors import InputError
from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import RunSetup, run_setup
from testbed.scenario.run import Silent
from testbed.studies.questions import Point, Questions

AWAY_S = 1800.0  # how long a device stays away under churn


@dataclass(frozen=True)
class Answer:
    """What a point gave. status: ok, does-not-fit (memory), failed or gave-up (took too long to simulate); message:
    why, else None. metrics: as compare_figures.METRICS. server_up, server_down: share of the server's link in use,
    over a step. slowest: what the plan says of it, as text."""

    question: str
    strategy: str
    value: str
    status: str
    message: str | None
    metrics: dict[str, float | None]
    server_up: float | None = None
    server_down: float | None = None
    steps: int = 0
    notes: tuple[str, ...] = ()


def answer_all(
    questions: Questions,
    points: Sequence[Point],
    out: Path,
    *,
    workers: int,
    limit_s: float,
    budget_s: float = math.inf,
    say: Callable[[str], None] = lambda _: None,
    keep: Callable[[list[Answer]], None] = lambda _: None,
) -> list[Answer]:
    """Simulate every point in a process of its own, at most `limit_s` of CPU time each; the short ones first.

    After `budget_s` (of real time) what still runs is ended, and nothing more begins. `keep` gets the answers so far
    whenever there is a new one.

    Returns:
        Answers in the points' order.
    """
    out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [__name__, "torch", "testbed.experiment.simulating", "testbed.report.compare_figures"]
    )
    waiting = sorted(points, key=_cost, reverse=True)
    end_s = time.monotonic() + budget_s
    running: dict[Any, tuple[Point, Any]] = {}  # process -> its point, its end of the pipe
    found: dict[Point, Answer] = {}
    try:
        while (waiting or running) and time.monotonic() < end_s:
            while waiting and len(running) < workers:
                point, (ours, theirs) = waiting.pop(), context.Pipe(duplex=False)
                process = context.Process(
                    target=_answer_to, args=(theirs, questions.base, point, out, limit_s), daemon=True
                )
                process.start()
                theirs.close()
                running[process] = point, ours
            wait([end for _, end in running.values()], timeout=max(0.0, min(end_s - time.monotonic(), 1e6)))
            for process, (point, end) in list(running.items()):
                if not end.poll():
                    continue
                found[point], cpu_s = _received(end, point, limit_s)
                process.join()
                del running[process]
                say(
                    f"{len(found)}/{len(points)} {point.name}: {found[point].message or found[point].status}"
                    f" ({cpu_s:.0f} s of CPU)"
                )
                keep(list(found.values()))
    finally:
        for process in running:
            process.kill()
    over = f"not simulated: all {len(points)} points together took longer than {budget_s / 60:g} min"
    return [found.get(p) or _without(p, "gave-up", over) for p in points]


def _received(end: Any, point: Point, limit_s: float) -> tuple[Answer, float]:
    try:
        return end.recv()
    except EOFError:  # its CPU time ran out (or the machine's memory)
        return _without(point, "gave-up", f"not simulated within {limit_s:g} s of CPU time"), limit_s


def _answer_to(end: Any, base: Path, point: Point, out: Path, limit_s: float) -> None:
    used = math.ceil(limit_s + time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used, used + 5))  # then the kernel ends this process
    began = time.process_time()
    end.send((answer(base, point, out), time.process_time() - began))
    end.close()


def _cost(point: Point) -> float:
    """Roughly how long a point takes to simulate: devices times layers, for Cleave; the others send less and longer."""
    devices = float(point.settings.get("devices.count") or 64)
    model = PUBLISHED.get(str(point.settings.get("model.name", "")).lower())
    layers = point.settings.get("model.layers") or (model.layers if model else 24)
    times = (3 if point.loses else 20 if point.churn_h else 1) * (5 if point.strategy == "cleave" else 1)
    return devices * layers * times


def answer(base: Path, point: Point, out: Path) -> Answer:
    """Simulate one point. Never raises for what the experiment does."""
    import torch

    torch.set_num_threads(1)
    try:
        return _answer(base, point, out)
    except InputError as error:
        short = memory_text(error.message)
        return _without(point, "does-not-fit" if short else "failed", short or error.message)
    except Exception as error:  # a runner's bug is a finding, not the end of the table
        return _without(point, "failed", f"{type(error).__name__}: {error}"[:300])


def _without(point: Point, status: str, message: str) -> Answer:
    return Answer(point.question, point.strategy, point.value, status, message, {})


def memory_text(message: str) -> str | None:
    """'needs 5.6 GB, has 4.29 GB' from a message about memory; None from any other."""
    if "memory" not in message:
        return None
    sizes = re.findall(r"\(?(\d+(?:\.\d+)?(?:e[+-]?\d+)? [kMGT]?B)\b\)?", message)
    return f"needs {sizes[0]}, has {sizes[1]}" if len(sizes) > 1 else message.splitlines()[0]


def _answer(base: Path, point: Point, out: Path) -> Answer:
    setup = _setup(base, point, ())
    if point.loses is not None:
        calm = _run(setup, out / f"{point.name}-calm", point)
        if calm.status != "ok":
            return calm
        setup = _setup(base, point, _loss(calm, out / f"{point.name}-calm", point, out))
    elif point.churn_h is not None:
        setup = _setup(base, point, _churn(setup, point, out))
    return _run(setup, out / point.name, point)


def _setup(base: Path, point: Point, more: Sequence[str]) -> RunSetup:
    return run_setup(load_experiment(base, (*point.overrides, f"name={_short(point.name)}", *more)))


def _short(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:40]


def _run(setup: RunSetup, out: Path, point: Point) -> Answer:
    from testbed.experiment.simulating import simulate_once
    from testbed.report.compare_figures import run_figures

    folder, result = simulate_once(setup, out, progress=Silent(), command="testbed results")
    figures = run_figures(folder)
    steps = sum(1 for _ in (folder.path / "steps.csv").open()) - 1 if (folder.path / "steps.csv").exists() else 0
    message = None if result.status == "complete" else memory_text(result.error or "") or result.error
    status = "ok" if result.status == "complete" else "does-not-fit" if memory_text(result.error or "") else "failed"
    server, step_s = setup.cluster.server.link, figures.metrics["step_time_s"]

    def used(name: str, rate_bps: float) -> float | None:
        moved = figures.metrics[name]
        return None if moved is None or not step_s else 8 * moved / step_s / rate_bps

    return Answer(
        point.question, point.strategy, point.value, status, message, figures.metrics,
        used("server_egress_bytes", server.uplink_bps), used("server_ingress_bytes", server.downlink_bps), steps,
        tuple(setup.plan.notes[:1]),
    )  # fmt: skip


def _loss(calm: Answer, calm_out: Path, point: Point, out: Path) -> list[str]:
    """Overrides that take away, for good, the device that moved the most bytes, after point.loses undisturbed steps."""
    from testbed.report.run_summary import summarize

    run = summarize(next(calm_out.iterdir()))
    moved = {n: run.bytes_up.get(n, 0) + run.bytes_down.get(n, 0) for n in run.bytes_up if n != "server"}
    device = max(sorted(moved), key=moved.get)
    at_s = point.loses * calm.metrics["step_time_s"]
    trace = out / f"{point.name}.csv"
    trace.write_text(f"# span_s: 1e9\ndevice,start_s,end_s\n{device},0,{at_s:.6f}\n")
    return [f"availability.trace={json.dumps(str(trace.resolve()))}", "availability.assign=by-name"]


def _churn(setup: RunSetup, point: Point, out: Path) -> list[str]:
    """Overrides with exponential stays of point.churn_h mean hours, and AWAY_S of absence after each."""
    rng = random.Random(f"churn {setup.loaded.experiment.seed} {point.churn_h}")
    span_s = setup.loaded.experiment.time_limit
    rows = ["device,start_s,end_s"]
    for device in (d.name for d in setup.cluster.devices):
        t, stays = 0.0, 0
        while t < span_s and stays < 400:
            stay = rng.expovariate(1 / (point.churn_h * 3600))
            rows.append(f"{device},{t:.3f},{min(t + stay, span_s):.3f}")
            t, stays = t + stay + AWAY_S, stays + 1
    trace = out / f"{point.name}.csv"
    trace.write_text(f"# span_s: {span_s:.0f}\n" + "\n".join(rows) + "\n")
    return [f"availability.trace={json.dumps(str(trace.resolve()))}", "availability.assign=by-name"]


def to_json(answers: Sequence[Answer]) -> str:
    """For results.json: six significant digits, no paths, no times of the simulation itself."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.6g}")
        if isinstance(value, dict):
            return {k: rounded(v) for k, v in value.items()}
        return [rounded(v) for v in value] if isinstance(value, (list, tuple)) else value

    return json.dumps([rounded(asdict(a)) for a in answers], indent=1, ensure_ascii=False) + "\n"


def from_json(text: str) -> list[Answer]:
    return [Answer(**{**entry, "notes": tuple(entry["notes"])}) for entry in json.loads(text)]


def cores() -> int:
    return len(os.sched_getaffinity(0))

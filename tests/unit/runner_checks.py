"""Shared checks for tests of runners: a small job, an engine that runs it, and the oracle's losses."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from contextlib import contextmanager
from functools import lru_cache, partial

import torch

from runners import reference
from testbed.cluster import Cluster, Device, Link, ModelSpec, TrainingSpec
from testbed.runtime.local import LocalEngine

TOLERANCE = 1e-4  # class E0: of any step's loss
MODEL = ModelSpec(layers=6, d_model=32, heads=4, d_ff=64, sequence=16)


def job(steps: int = 20, batch: int = 8, micro_batches: int = 4, seed: int = 0, **options) -> TrainingSpec:
    return TrainingSpec(batch=batch, micro_batches=micro_batches, steps=steps, seed=seed, options=options)


def cluster(
    devices: int, *, flops: float = 1e9, memory: int = 1 << 28, up: float = 1e7, down: float = 5e7, delay: float = 0.01
) -> Cluster:
    """Even homes home0 … behind like links, and a server."""
    link = Link(up, down, delay, delay)
    return Cluster(
        Device("server", 1e11, 1 << 32, Link(1e9, 1e9, 0.001, 0.001)),
        tuple(Device(f"home{i}", flops, memory, link) for i in range(devices)),
    )


@contextmanager
def one_thread():
    """Tiny tensors are faster on one thread, above all when tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=64)
def _oracle(model: ModelSpec, batch: int, steps: int, seed: int) -> tuple[float, ...]:
    with one_thread():
        return tuple(reference.train(model, TrainingSpec(batch=batch, steps=steps, seed=seed)))


def oracle(model: ModelSpec, training: TrainingSpec) -> tuple[float, ...]:
    """The losses of one-device training; computed once for each job."""
    return _oracle(model, training.batch, training.steps, training.seed)


class FaultEngine(LocalEngine):
    """LocalEngine for many short absences.

    A device that was only cut off or frozen comes back in the same process, so with the same runner object;
    and messages keep their order also when some of them were held back while a link was cut.
    """

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self._stuck = defaultdict(deque)

    def _join(self, name: str) -> None:
        old = self._current.get(name)
        survivor = old.runner if old is not None and not old.dead else None
        super()._join(name)
        if survivor is not None:
            self._current[name].runner = survivor

    def _arrive(self, sender, to: str, header, buffers: list, nbytes: int) -> None:
        receiver = self._current.get(to)
        stuck = self._stuck[sender, receiver]
        if sender.dead or receiver is None or receiver.dead:
            return
        if stuck or sender.cut or receiver.cut:
            stuck.append((sender, to, header, buffers, nbytes))
        else:
            super()._arrive(sender, to, header, buffers, nbytes)

    def _reach(self, me) -> None:
        super()._reach(me)
        for ends, stuck in self._stuck.items():
            if me in ends and not any(end is None or end.cut for end in ends):
                arrivals, lost = list(stuck), any(end.dead or end.declared_lost for end in ends)
                stuck.clear()
                for arrival in arrivals if not lost else ():
                    super()._arrive(*arrival)


def run(engine: LocalEngine) -> list[dict]:
    """The events of a run."""
    with one_thread():
        return asyncio.run(engine.run())


def of(events: list[dict], event: str, /, **fields) -> list[dict]:
    return [e for e in events if e["event"] == event and all(e.get(k) == v for k, v in fields.items())]


def losses(events: list[dict], steps: int) -> list[float]:
    """The loss of each step, the last attempt counting; fails if one is missing or attempts do not rise."""
    final: dict[int, dict] = {}
    for e in of(events, "step"):
        if e["step"] in final:
            assert e["attempt"] > final[e["step"]]["attempt"], e
        final[e["step"]] = e
    assert sorted(final) == list(range(steps)), f"steps recorded: {sorted(final)}"
    return [final[s]["loss"] for s in range(steps)]


def assert_same_training(events: list[dict], model: ModelSpec, training: TrainingSpec) -> float:
    """Class E0: every loss as in one-device training. Returns the largest difference."""
    expected = oracle(model, training)
    got = losses(events, training.steps)
    difference = max(abs(a - b) for a, b in zip(got, expected))
    assert difference <= TOLERANCE, f"largest difference {difference}: {got} against {list(expected)}"
    assert all(e["samples"] == training.batch for e in of(events, "step"))
    return difference


def random_faults(
    engine: LocalEngine, seed: int, *, until_s: float, faults: int, longest_s: float = 4.0,
    modes=("kill", "suspend", "disconnect"),
) -> list[str]:  # fmt: skip
    """Schedule `faults` absences at random times, each of a random length; all devices are back in the end.

    Absences of one device may follow each other closely, those of several overlap, and all may be away at
    once. Returns the schedule, for messages.
    """
    rng = random.Random(seed)
    names = [d.name for d in engine.plan.cluster.devices]
    free_at = dict.fromkeys(names, 0.0)
    written = []
    for at in sorted(rng.uniform(0.0, until_s) for _ in range(faults)):
        name, mode = rng.choice(names), rng.choice(modes)
        start = max(at, free_at[name])
        back = start + rng.uniform(0.05, longest_s)
        free_at[name] = back + 0.01
        go, come = {"kill": (engine.kill, engine.rejoin), "suspend": (engine.suspend, engine.resume),
                    "disconnect": (engine.disconnect, engine.reconnect)}[mode]  # fmt: skip
        engine.after(start, partial(_leave, engine, name, go))
        engine.after(back, partial(_return, engine, name, come))
        written.append(f"{start:.3f} {mode} {name} until {back:.3f}")
    return written


def _leave(engine: LocalEngine, name: str, go) -> None:
    if _up(engine, name):
        go(name)


def _return(engine: LocalEngine, name: str, come) -> None:
    if not _up(engine, name):
        come(name)


def _up(engine: LocalEngine, name: str) -> bool:
    life = engine._current.get(name)
    return life is not None and not life.dead and not life.cut

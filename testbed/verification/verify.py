"""`testbed verify`: an experiment's network, or a grid of settings, measured from end to end."""

from __future__ import annotations

import math
import platform
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from testbed import __version__
from testbed.emulation import cleanup
from testbed.emulation.machine.capabilities import Capabilities
from testbed.emulation.shaped import ShapedNetwork
from testbed.emulation.state import RunState
from testbed.errors import InputError
from testbed.experiment.loading import LoadedExperiment
from testbed.experiment.machine import capable, check_kernel
from testbed.experiment.setup import network_setup, thresholds
from testbed.measurement.thresholds import Thresholds
from testbed.scenario.network import NetworkSetup
from testbed.signals import interruptible
from testbed.verification import changes, isolation
from testbed.verification.effort import QUICK, Effort
from testbed.verification.links import LinkVerification
from testbed.verification.rows import Row, judged, passed

RATES = ("UDP rate", "TCP rate")
SAMPLE = 8  # homes of a network with more, unless told otherwise
ISOLATION_MOST_BPS = 250e6  # real: more could measure the machine instead of the link
Say = Callable[[str], None]


@dataclass(frozen=True)
class Verification:
    """What was found. facts: what carried it (kernel, backend, settings), by name."""

    name: str
    rows: list[Row]
    facts: dict[str, Any]
    warnings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return passed(self.rows)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ok": self.ok,
            **self.facts,
            "warnings": self.warnings,
            "rows": [row.as_dict() for row in self.rows],
        }


def choose(homes: Sequence[str], sample: int | None, seed: int) -> list[str]:
    """The homes to measure, in order; all where nothing else is asked and they are few, else by seed.

    Raises:
        InputError: a sample larger than the network.
    """
    if sample is not None and sample > len(homes):
        raise InputError("--sample", f"{sample} homes; the network has {len(homes)}")
    count = min(len(homes), SAMPLE) if sample is None else sample
    drawn = set(random.Random(f"{seed}/verify").sample(list(homes), count))
    return [home for home in homes if home in drawn]


def verify_experiment(
    loaded: LoadedExperiment, *, sample: int | None, quick: bool, command: str, say: Say = lambda _: None
) -> Verification:
    """Build the experiment's network, its links as they are at the start, and measure it. Nothing trains.

    Raises:
        InputError: the experiment. CapabilityError: this machine can't build it.
    """
    caps = capable()
    check_kernel(loaded, caps)
    e = loaded.experiment
    limits = thresholds(loaded)
    warnings: list[str] = []
    setup = network_setup(loaded, warnings)
    homes = choose(setup.topology.homes, sample, e.seed)
    with built(setup, homes, caps=caps, command=command, say=say) as (shaped, busy):
        rows = measure(shaped, homes, busy, limits, QUICK if quick else Effort(), say)
        facts = facts_of(shaped, len(homes))
    return Verification(e.name, [*rows, mean_rate_row(rows, limits)], facts, warnings)


@contextmanager
def built(
    setup: NetworkSetup, homes: Sequence[str], *, caps: Capabilities, command: str, say: Say
) -> Iterator[tuple[ShapedNetwork, str]]:
    """The network with its links as they are at the start, and the traffic ready that saturates the busiest home that
    the machine can carry."""
    sums = {home: state.down_bps + state.up_bps for home, state in setup.at_start().items() if home in homes}
    light = [h for h in homes if sums[h] / setup.settings.tdf <= ISOLATION_MOST_BPS]
    busy = max(light, key=sums.__getitem__) if light else min(homes, key=sums.__getitem__)
    with interruptible():
        state = RunState.create(None, command=command)
        try:
            say(f"building the network: {len(setup.topology.homes)} homes")
            held = setup.held(tuple(isolation.saturating(setup.at_start()[busy], busy)))
            with ShapedNetwork(state, held, caps=caps) as shaped:
                yield shaped, busy
        finally:
            cleanup.teardown(state)


def measure(
    shaped: ShapedNetwork, homes: Sequence[str], busy: str, limits: Thresholds, effort: Effort, say: Say
) -> list[Row]:
    """Every row of a network. The steps come last: they change links.

    Raises:
        TestbedError: a part of the network has ended.
    """

    def next_one(text: str) -> None:
        shaped.check()  # what is measured without a delay line takes long and says nothing
        say(text)

    rows = LinkVerification(shaped, homes, limits, effort, next_one).rows()
    next_one(f"isolation: {busy} saturated")
    rows += isolation.isolation_rows(shaped, busy, shaped.topology.homes, limits, effort.echoes, effort.attempts)
    next_one(f"steps of a trace: {busy}")
    rows += changes.step_rows(shaped, busy, limits, effort.attempts)
    shaped.check()
    return rows


def mean_rate_row(rows: Sequence[Row], limits: Thresholds) -> Row:
    """How far rates are off, over all links and directions; what was not judged is left out."""
    errors = [abs(r.error) for r in rows if r.quantity in RATES and r.ok is not None and math.isfinite(r.error)]
    mean = sum(errors) / len(errors) if errors else math.nan
    return judged(
        "all",
        "both",
        "rate error, mean",
        0.0,
        mean,
        "%",
        mean,
        "%",
        limits.rate_error_mean,
        f"of {len(errors)} measurements",
    )


def facts_of(shaped: ShapedNetwork, measured: int) -> dict[str, Any]:
    """What a reader of the numbers needs to know."""
    stats = shaped.backend.stats()
    return {
        "testbed": __version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "delay_backend": shaped.backend_name,
        "switch": shaped.network.settings.switch,
        "queue": shaped.network.settings.queue,
        "tdf": shaped.tdf,
        "homes": len(shaped.topology.homes),
        "homes_measured": measured,
        "delay_line": {
            "packets": stats.packets,
            "lost_by_setting": stats.lost_by_setting,
            "overflowed": stats.overflowed,
            "cpu_s": stats.cpu_s,
        },
    }

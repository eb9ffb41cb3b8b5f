"""Verification on a real network: what is as set passes, and what is not is found and named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from steady import IN_UML, measured

from testbed.cluster import Link, LinkState, Topology
from testbed.emulation.network import shaping
from testbed.errors import TestbedError
from testbed.measurement.thresholds import Thresholds
from testbed.scenario.network import NetworkSetup
from testbed.verification import changes, isolation
from testbed.verification.effort import Effort
from testbed.verification.links import LinkVerification
from testbed.verification.rows import passed
from testbed.verification.verify import built, measure

pytestmark = [pytest.mark.emulation, pytest.mark.root]

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Thresholds.from_mapping(None)
# A machine that others use, too: scheduling may cost what it likes, a wrong setting is far beyond.
ROOMY = replace(
    LIMITS,
    rtt_error_s=0.003,
    rtt_p99_over_s=0.05,
    jitter_error_s=0.003,
    window_deviation_p99=0.6,
    neighbour_rtt_s=0.01,
    replay_late_s=0.2,
    buffer_error_s=0.01,
    gap_deviation_p99=0.5,
)
SHORT = Effort(echoes=30, packets=300, packet_interval_s=0.004, seconds=0.4, attempts=4)
STATES = {"a": LinkState(20e6, 8e6, 0.02), "b": LinkState(12e6, 5e6, 0.05, jitter_s=0.002, loss=0.04)}


def network(capabilities, states=STATES):
    topology = Topology(tuple(states), Link(1e9, 1e9, 0.001, 0.001))
    links = {home: [(0.0, state)] for home, state in states.items()}
    setup = NetworkSetup(topology, links)
    return built(setup, tuple(states), caps=capabilities, command="pytest", say=lambda _: None)


def by_key(rows) -> dict:
    found = {(r.home, r.direction, r.quantity): r for r in rows}
    assert len(found) == len(rows)
    return found


@measured
def test_a_network_as_set_passes_and_steps_and_neighbours_are_seen(capabilities):
    with network(capabilities) as (shaped, busy):
        assert busy == "a"
        rows = LinkVerification(shaped, list(STATES), ROOMY, SHORT).rows()
        rows += isolation.isolation_rows(shaped, busy, list(STATES), ROOMY, 30, 4)
        rows += changes.step_rows(shaped, busy, ROOMY, 4)
    found = by_key(rows)
    assert passed(rows), [r for r in rows if r.ok is False]
    for home, state in STATES.items():
        for direction, rate in (("down", state.down_bps), ("up", state.up_bps)):
            assert found[home, direction, "UDP rate"].set == pytest.approx(rate, rel=1e-6)
            assert found[home, direction, "delay p50"].set == pytest.approx(state.rtt_s / 2)
            assert found[home, direction, "buffer"].set == pytest.approx(0.1, rel=0.03)
    assert found["a", "down", "TCP rate"].ok
    assert found["b", "down", "TCP rate"].ok is None  # lossy by setting
    assert found["b", "up", "loss"].set == pytest.approx(0.0202, abs=1e-4)
    assert found["b", "up", "loss"].more["low"] > 0  # packets were lost indeed
    assert found["b", "up", "jitter"].measured > found["a", "up", "jitter"].measured
    assert found["b", "both", "neighbour's RTT"].more["load_bps"] > 15e6  # a was busy meanwhile
    assert {q for _, _, q in found} >= {"RTT p50", "RTT p99", "delay step", "rate step", "foreign frames"}


@measured
def test_what_was_changed_behind_the_tools_back_fails_and_the_other_home_does_not(capabilities):
    states = {"a": LinkState(20e6, 8e6, 0.02), "b": LinkState(20e6, 8e6, 0.02)}
    with network(capabilities, states) as (shaped, _):
        port = shaped.network.hosts["a"].bridge_port
        as_set = shaped.network.plan.shapes[port]
        wrong = replace(as_set, rate_bps=as_set.rate_bps // 2, limit_bytes=as_set.limit_bytes * 2)
        shaped.network.tc(shaping.change_bottleneck(port, as_set, wrong))
        verification = LinkVerification(shaped, ["a", "b"], ROOMY, replace(SHORT, attempts=1))
        verification.one_way()
        found = by_key(verification.throughput().saturated())
    assert found["a", "down", "UDP rate"].ok is False
    assert found["a", "down", "UDP rate"].error == pytest.approx(-0.5, abs=0.02)
    assert found["a", "down", "buffer"].ok is False
    assert found["a", "down", "buffer"].measured > 0.2  # and still filling: it has 0.4 s
    assert found["b", "down", "UDP rate"].ok
    assert found["a", "up", "UDP rate"].ok


@measured
def test_another_delay_and_loss_than_set_fail(capabilities):
    states = {"a": LinkState(20e6, 8e6, 0.02)}
    with network(capabilities, states) as (shaped, _):
        verification = LinkVerification(shaped, ["a"], ROOMY, replace(SHORT, attempts=1))
        shaped._current["a"] = LinkState(20e6, 8e6, 0.04, loss=0.1)  # what it believes to have set
        told = LinkVerification(shaped, ["a"], ROOMY, replace(SHORT, attempts=1))
        truth, belief = by_key(verification.one_way()), by_key(told.one_way())
    assert truth["a", "up", "loss"].ok
    assert truth["a", "up", "delay p50"].ok
    assert belief["a", "up", "loss"].ok is False
    assert belief["a", "up", "delay p50"].ok is False
    assert belief["a", "up", "delay p50"].error == pytest.approx(-0.01, abs=0.004)


def verify(*args: str, timeout_s: float = 200) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "testbed", "verify", *args], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
    )


@pytest.mark.skipif(IN_UML, reason="the kernel suite runs the verb there itself")
def test_the_verb_says_fail_by_its_exit_code_and_writes_what_it_found(tmp_path):
    impossible = "fidelity={rate_error_mean: 0}"
    done = verify("smoke", "--sample", "1", "--quick", "--json", "--out", str(tmp_path), "--set", impossible)
    assert done.returncode == 1, done.stderr
    data = json.loads(done.stdout)
    assert data["ok"] is False
    assert data["homes"] == 3
    assert data["homes_measured"] == 1
    assert "rate error, mean" in {r["quantity"] for r in data["rows"] if r["verdict"] == "FAIL"}
    folder = Path(data["folder"])
    assert folder.parent == tmp_path
    assert {p.name for p in folder.iterdir()} == {"verify.json", "verify.png"}
    assert json.loads((folder / "verify.json").read_text())["rows"] == data["rows"]


def test_a_delay_line_that_ends_is_told_by_the_next_measurement(capabilities, capsys):
    said = []

    def say(text: str) -> None:
        said.append(text)
        if shaped.backend_name == "nfqueue":
            os.kill(shaped.backend.pid, signal.SIGKILL)
            while shaped.backend.alive:
                time.sleep(0.01)
        else:
            shaped.failed_step(OSError("the delay line ended"))

    with network(capabilities) as (shaped, busy):
        with pytest.raises(TestbedError, match="the delay line ended"):
            measure(shaped, list(STATES), busy, LIMITS, replace(SHORT, echoes=2, attempts=1), say)
        step = changes._replayed(shaped, "a", STATES["a"], time.monotonic() + 0.1)
        step.join(5)
    assert len(said) == 1
    assert "Traceback" not in capsys.readouterr().err

"""The estimate before the start: what a plan demands, what a machine has, and the time dilation between them."""

import dataclasses

import pytest
import torch

from testbed.emulation.calibration import PacketCost, WorkShape, compute_capacity
from testbed.errors import InputError, TestbedError
from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import run_setup
from testbed.studies.preflight import TDF_STEPS, Capacity, Demand, compare, demand_of, round_up

MACHINE = Capacity((10e9, 10e9), PacketCost(50e-6, 20e-6), 8e9)
LIGHT = Demand(
    flops=1e9, fastest=1e9, messages=10, packets=100, peak_packets=1000, workers=4, memory_bytes=1e9, declared=True
)


def test_a_light_experiment_fits():
    found = compare(LIGHT, MACHINE, 1.0)
    assert found.fits
    assert found.needed_tdf == 1


@pytest.mark.parametrize(
    ("heavier", "says"),
    [
        ({"flops": 100e9}, "core-seconds"),
        ({"fastest": 25e9}, "fastest device computes 25 GFLOP/s, a core 10 GFLOP/s"),
        ({"peak_flops": 30e9}, "at the busiest moment the machine needs"),
        ({"update_bps": 12e9}, "updates of the fastest device move 12 GB of memory a second, a core 6 GB"),
        ({"packets": 60_000}, "delay line"),
        ({"packets": 20_000, "peak_traffic": 3.0}, "delay line"),
        ({"peak_packets": 200_000}, "while the fastest link is full"),
        ({"messages": 5000}, "core-seconds"),
    ],
)
def test_what_is_too_heavy_is_said_with_the_time_dilation_that_carries_it(heavier, says):
    demand = dataclasses.replace(LIGHT, **heavier)
    found = compare(demand, MACHINE, 1.0)
    assert not found.fits
    assert says in " ".join(found.problems)
    assert found.needed_tdf > 1
    assert compare(demand, MACHINE, found.needed_tdf).fits
    smaller = max((s for s in TDF_STEPS if s < found.needed_tdf), default=None)
    if smaller is not None and found.needed_tdf <= TDF_STEPS[-1]:
        assert not compare(demand, MACHINE, smaller).fits  # it is the smallest


def test_memory_is_not_a_matter_of_time():
    found = compare(dataclasses.replace(LIGHT, memory_bytes=9e9), MACHINE, 1.0)
    assert "9 GB of memory are needed, 8 GB are free" in found.problems[0]
    assert found.needed_tdf == 1


def test_other_programs_count():
    heavy = dataclasses.replace(LIGHT, flops=7e9)
    assert compare(heavy, MACHINE, 1.0).fits
    beside = dataclasses.replace(MACHINE, others=1.5)
    assert not compare(heavy, beside, 1.0).fits
    assert "other programs keep 1.5 of 2 cores busy" in compare(heavy, beside, 1.0).problems[-1]


@pytest.mark.parametrize(
    ("need", "tdf"), [(0.2, 1), (1.0, 1), (1.01, 1.2), (8.1, 10), (10.5, 12), (75, 80), (130, 150)]
)
def test_round_numbers(need, tdf):
    assert round_up(need) == pytest.approx(tdf)


def test_demand_is_the_plans_where_it_says_it():
    setup = run_setup(load_experiment("smoke"))
    declared = demand_of(setup)
    assert declared.declared
    assert declared.workers == 3
    assert 0 < declared.flops < sum(d.flops for d in setup.cluster.devices)
    silent = dataclasses.replace(setup.plan, data={k: v for k, v in setup.plan.data.items() if k != "load"})
    worst = demand_of(dataclasses.replace(setup, plan=silent))
    assert not worst.declared
    assert worst.flops == pytest.approx(sum(d.flops for d in setup.cluster.devices))
    assert worst.packets > declared.packets


def test_tdf_auto_is_left_to_be_chosen():
    loaded = load_experiment("smoke", ("tdf=auto",))
    assert loaded.auto_tdf
    assert loaded.experiment.tdf == 1
    chosen = loaded.dilated(4.0)
    assert (chosen.experiment.tdf, chosen.data["tdf"], chosen.auto_tdf) == (4.0, 4.0, False)
    assert load_experiment("smoke", tdf="auto").auto_tdf
    with pytest.raises(InputError, match="found 'atuo'; expected a number from 0.1 to 1000, or auto"):
        load_experiment("smoke", tdf="atuo")


SMALL = WorkShape(1, 16, 32, 2, 64)


def test_calibration_counts_a_core_at_a_time():
    rates = compute_capacity(SMALL, 1)
    assert len(rates) == 1
    assert rates[0] > 1e7


def test_calibration_works_in_a_process_that_has_computed_gradients():
    torch.ones(1, requires_grad=True).sum().backward()  # torch then computes none in forked children
    assert compute_capacity(SMALL, 1)[0] > 1e7


def test_a_calibration_that_fails_says_why():
    with pytest.raises(TestbedError, match=r"cores could not be measured: \w+Error: .*heads|shape"):
        compute_capacity(WorkShape(1, 16, 32, 5, 64), 1)  # 32 is no multiple of 5

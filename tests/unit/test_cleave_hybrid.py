"""Hybrid tasks of Cleave: the losses of one device, whatever the devices, whoever goes and comes."""

from dataclasses import replace
from functools import partial

import pytest
from runner_checks import MODEL as DEEP
from runner_checks import FaultEngine, assert_same_training, cluster, job, losses, of, oracle, random_faults, run
from test_cleave_training import mixed

from runners.cleave import CleaveRunner
from testbed.cluster import ModelSpec
from testbed.runtime.local import LocalEngine

MODEL = ModelSpec(layers=2, d_model=32, heads=2, d_ff=64, sequence=16)
SLOW = {"flops": 2e7}


def train(homes, training, model=MODEL, faults=lambda engine: None, **settings):
    plan = CleaveRunner().plan(homes, model, training)
    engine = FaultEngine(plan, CleaveRunner, **settings)
    faults(engine)
    return run(engine)


def hybrid(steps=3, batch=4, **options):
    return job(steps=steps, batch=batch, tasks="hybrid", **options)


@pytest.mark.parametrize("devices", [1, 2, 5, 16])
@pytest.mark.parametrize("slab", [4, 5, 16])
def test_losses_are_those_of_one_device(devices, slab):
    training = hybrid(slab=slab)
    assert assert_same_training(train(mixed(devices), training), MODEL, training) < 2e-6

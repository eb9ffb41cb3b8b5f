"""The plan: what it says, and which settings it refuses."""

import json
from dataclasses import replace

import pytest
from runner_checks import MODEL, cluster, job

from runners.costs import layer_costs
from runners.elastic.replanning import Replanner
from runners.pipeline import PipelineRunner
from runners.pipeline.options import PipelineOptions, parse_options
from runners.pipeline.planner import Assignment, Planner
from runners.state import StateId, moved_bytes, transfers
from testbed.cluster import OptimizerSpec
from testbed.errors import InputError


def plan(devices=4, model=MODEL, home=None, **options):
    return PipelineRunner().plan(cluster(devices, **(home or {})), model, job(**options))


def refused(match, where=None, **kwargs):
    with pytest.raises(InputError, match=match) as error:
        plan(**kwargs)
    if where:
        assert error.value.where == where
    return error.value


def test_the_plan_is_json_and_reads_back():
    made = plan(stages=3)
    data = json.loads(json.dumps(made.data))
    assert data == made.data | {"assignment": data["assignment"]}
    again = Assignment.from_data(data["assignment"])
    assert [s.device for s in again.stages] == ["home0", "home1", "home2"]
    assert again.as_data()["step_time_s"] == made.predicted["step_time_s"]
    assert data["spares"] == ["home3"]


def test_stages_cover_the_layers_once():
    stages = plan(stages=4).data["assignment"]["stages"]
    assert [s["first"] for s in stages] == [0, *(s["end"] for s in stages[:-1])]
    assert stages[-1]["end"] == MODEL.layers + 2
    assert sum(s["parameters"] for s in stages) == sum(c.parameters for c in layer_costs(MODEL))
    assert stages[-1]["output_bytes"] == 0


def test_auto_takes_as_many_stages_as_pay():
    assert len(plan(home={"flops": 1e6, "up": 1e9, "down": 1e9}).data["assignment"]["stages"]) == 4
    assert len(plan(home={"flops": 1e12, "up": 1e5, "down": 1e5}).data["assignment"]["stages"]) == 1


def test_the_load_is_that_of_the_devices_that_compute_at_once():
    """Two micro-batches keep two of six stages busy, however long the step lasts."""
    home = {"flops": 2e7, "up": 1e9, "down": 1e9, "delay": 1e-6}
    load = PipelineRunner().plan(cluster(6, **home), MODEL, job(stages=6, micro_batches=2)).data["load"]
    assert 2 * 2e7 <= load["peak_flops"] <= 3 * 2e7  # an update beside them
    assert load["flops"] / load["step_s"] < 2 * 2e7
    again = plan(6, stages=6, home=home, recompute=True).data["load"]
    passes = 8 * sum(c.forward_flops for c in layer_costs(MODEL))
    assert again["flops"] - load["flops"] == pytest.approx(passes)  # one more forward pass of the batch


def test_predictions_are_consistent():
    made = plan(stages=3, home={"flops": 2e7})
    assert 0 < made.predicted["bubble_fraction"] < 1
    assert made.predicted["samples_per_s"] == pytest.approx(8 / made.predicted["step_time_s"])
    slower = plan(stages=3, home={"flops": 2e7, "up": 1e5})
    assert slower.predicted["step_time_s"] > made.predicted["step_time_s"]


def test_memory_grows_with_micro_batches_in_flight_and_falls_with_recomputation():
    def needed(from_end=4, **options):
        training = job(micro_batches=8, **options)
        return Planner(MODEL, training, parse_options(training.options)).memory_bytes(0, 3, from_end)

    assert needed(schedule="gpipe") > needed(schedule="1f1b") > needed(1, schedule="1f1b")
    assert needed(schedule="gpipe") == needed(1, schedule="gpipe")
    assert needed(recompute=True) < needed()
    assert needed(local_copies=False) < needed()
    assert needed(checkpoint_every=0, local_copies=False) < needed(local_copies=False)


def test_memory_of_a_stage_by_hand():
    training = job(batch=8, micro_batches=4, schedule="1f1b")
    planner = Planner(MODEL, training, parse_options(training.options))
    embedding, block = layer_costs(MODEL)[:2]
    parameters = embedding.parameters + block.parameters
    fixed = parameters * (4 + 12 * (1 + 3))  # gradient; the live state and three kept ones
    passing = embedding.activation_bytes + block.activation_bytes + block.output_bytes
    # three stages from the end hold three micro-batches of two samples; and one gradient that came early
    assert planner.memory_bytes(0, 2, 3) == fixed + 2 * (3 * passing + block.working_bytes + block.output_bytes)


def test_a_device_too_small_is_named_with_bytes():
    error = refused(r"needs [\d,]+ bytes .* has 300,000 bytes", devices=3, stages=3, home={"memory": 300_000})
    assert error.where.startswith("device 'home")
    assert "recompute" in error.hint


def test_memory_decides_the_cut():
    even = plan(2, stages=2)
    room = max(even.data["memory_bytes"].values()) - 1
    homes = cluster(2)
    small = replace(homes, devices=(replace(homes.devices[0], memory_bytes=room // 2), homes.devices[1]))
    made = PipelineRunner().plan(small, MODEL, job(stages=2))
    assert made.data["memory_bytes"]["home0"] <= room // 2
    stages = made.data["assignment"]["stages"]
    assert stages[0]["end"] - stages[0]["first"] < stages[1]["end"] - stages[1]["first"]


def test_the_server_must_hold_the_checkpoints():
    homes = cluster(2)
    small = replace(homes, server=replace(homes.server, memory_bytes=1000))
    with pytest.raises(InputError, match="two checkpoints need") as error:
        PipelineRunner().plan(small, MODEL, job())
    assert error.value.where == "device 'server', memory"
    PipelineRunner().plan(small, MODEL, job(checkpoint_every=0))


@pytest.mark.parametrize(("kwargs", "match", "where"), [
    ({"stages": 9, "devices": 9}, "9 stages, but only 6 layers; .*at most 6", "training.stages"),
    ({"stages": 5}, r"5 stages, but only 4 devices", "training.stages"),
    ({"devices": 0}, "no devices", "cluster"),
    ({"batch": 3, "micro_batches": 4}, "expected at most 3", "training.micro_batches"),
    ({"steps": 0}, "0; expected 1 or more", "training.steps"),
    ({"model": replace(MODEL, heads=5)}, "do not divide d_model = 32", "model.heads"),
    ({"model": replace(MODEL, layers=0)}, "0; expected 1 or more", "model.layers"),
    ({"model": replace(MODEL, vocabulary=100)}, "100; expected 256 or more", "model.vocabulary"),
])  # fmt: skip
def test_impossible_jobs(kwargs, match, where):
    refused(match, where, **kwargs)


def test_unknown_optimizer():
    training = replace(job(), optimizer=OptimizerSpec(name="adam"))
    with pytest.raises(InputError, match="unknown optimizer 'adam'") as error:
        PipelineRunner().plan(cluster(2), MODEL, training)
    assert "adamw" in error.value.hint


@pytest.mark.parametrize(("options", "where", "expected", "hint"), [
    ({"shedule": "gpipe"}, "training.shedule", "unknown option", "'schedule'"),
    ({"schedule": "g-pipe"}, "training.schedule", "'g-pipe'; expected one of: 1f1b, gp", "'gpipe'"),
    ({"schedule": 1}, "training.schedule", "1; expected one of", None),
    ({"recovery": "waits"}, "training.recovery", "expected one of: replan, wait", "'wait'"),
    ({"wire": "fp16"}, "training.wire", "expected one of: fp32, bf16", "'bf16'"),
    ({"stages": 0}, "training.stages", "0; expected a number of stages", None),
    ({"stages": "audo"}, "training.stages", "'audo'; expected a number of stages", "'auto'"),
    ({"stages": True}, "training.stages", "True; expected a number of stages", None),
    ({"stages": 2.0}, "training.stages", "2.0; expected a number of stages", None),
    ({"checkpoint_every": -1}, "training.checkpoint_every", "-1; expected a number of steps", None),
    ({"checkpoint_every": "5"}, "training.checkpoint_every", "'5'; expected a number of steps", None),
    ({"recompute": "yes"}, "training.recompute", "'yes'; expected true or false", None),
    ({"local_copies": 1}, "training.local_copies", "1; expected true or false", None),
])  # fmt: skip
def test_bad_options(options, where, expected, hint):
    with pytest.raises(InputError) as error:
        PipelineRunner.check_options(options)
    assert error.value.where == where
    assert expected in error.value.message
    assert (error.value.hint is None) == (hint is None)
    if hint:
        assert hint in error.value.hint


def test_good_options():
    given = {"schedule": "gpipe", "recovery": "wait", "checkpoint_every": 0, "stages": 3, "recompute": True,
             "wire": "bf16", "local_copies": False}  # fmt: skip
    assert parse_options(given) == PipelineOptions(**given)
    assert parse_options({}) == PipelineOptions()
    assert PipelineRunner.check_options({"stages": "auto"}) == PipelineOptions()


def test_the_entry_point_gives_this_runner():
    from testbed.runtime.registry import load_runner

    assert load_runner("pipeline") is PipelineRunner


def held(assignment, state, without=()):
    return {s.device: {state: set(range(s.first, s.end))} for s in assignment.stages if s.device not in without}


def replanner(homes, training):
    planner = Planner(MODEL, training, parse_options(training.options))
    first = planner.plan(homes)
    return planner, first, Replanner(homes, planner, first)


@pytest.mark.parametrize("stages", [3, "auto"])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_repairs_are_whole_and_fit(stages, lost):
    homes = cluster(4, flops=5e6, up=1e9, down=1e9)
    planner = Planner(MODEL, job(stages=stages), parse_options({"stages": stages}))
    current = planner.plan(homes.only(["home0", "home1", "home2"])).spans
    assert len(current) == 3
    gone = current[lost][0]
    present = homes.only({d.name for d in homes.devices} - {gone})
    found = planner.candidates(present, current)
    for plan_ in found:
        assert plan_.spans[0][1] == 0
        assert plan_.spans[-1][2] == MODEL.layers + 2
        assert all(a[2] == b[1] for a, b in zip(plan_.spans, plan_.spans[1:]))
        assert gone not in plan_.devices
        assert len(set(plan_.devices)) == len(plan_.devices)
    substituted = tuple(("home3", f, e) if d == gone else (d, f, e) for d, f, e in current)
    assert substituted in [p.spans for p in found]
    shared = [p.spans for p in found if len(p.spans) == 2 and "home3" not in p.devices]
    assert bool(shared) == (stages == "auto")


def test_a_slow_downlink_is_not_filled_for_a_few_steps():
    """home3 is quick behind a slow link: worth filling with layers for many steps, not for few."""
    homes = cluster(4, flops=5e6, up=1e9, down=1e9)
    quick = replace(homes.devices[3], flops=2e7, link=replace(homes.devices[3].link, downlink_bps=1e6))
    homes = replace(homes, devices=(*homes.devices[:3], quick))
    training = job(stages="auto", steps=1000)
    planner = Planner(MODEL, training, parse_options(training.options))
    running = planner.plan(homes.only(["home0", "home1", "home2"]))
    weigh = Replanner(homes, planner, running)
    state = StateId(5, 1)
    holders = held(running, state, without=["home1"]) | {"server": {state: set(range(MODEL.layers + 2))}}
    present = {"home0", "home2", "home3"}
    few = weigh.best(present, running, state, holders, left=1)
    many = weigh.best(present, running, state, holders, left=1000)
    assert many.step_time_s < few.step_time_s

    def moved(plan_):
        sources = transfers(plan_.layers_by_device, state, "server", holders)
        return moved_bytes(sources, weigh.layer_bytes)

    assert moved(few) < moved(many)


def test_nobody_left_is_no_plan():
    homes = cluster(2)
    _, first, weigh = replanner(homes, job(stages=2))
    assert weigh.best(set(), first, StateId(0, 0), {}, 5) is None
    tiny = replace(homes, devices=tuple(replace(d, memory_bytes=1000) for d in homes.devices))
    planner = Planner(MODEL, job(), parse_options({}))
    assert planner.candidates(tiny) == []


def test_a_joining_device_is_weighed():
    homes = cluster(3, flops=5e6, up=1e9, down=1e9)
    planner, first, weigh = replanner(homes, job(stages="auto"))
    running = planner.plan(homes.only(["home0", "home1"]))
    everyone = {d.name for d in homes.devices}
    assert weigh.better(everyone, running, StateId(5, 1), left=100)
    assert not weigh.better(everyone, running, StateId(5, 1), left=0)
    assert not weigh.better(everyone, first, StateId(5, 1), left=100)

"""Class E0 for tensor parallelism: losses are those of one-device training, whoever comes and goes."""

from dataclasses import replace

import pytest
import torch
from baseline_checks import SLOW, bytes_sent, in_the_middle_of, train, uneven, without_data
from runner_checks import MODEL as TALL
from runner_checks import cluster, job, losses, of, one_thread, random_faults, run

from runners.costs import model_parameters, training_flops
from runners.state import SEED_STATE, StateId
from runners.tensor_parallel import TensorParallelRunner
from runners.tensor_parallel.options import TensorParallelOptions
from runners.tensor_parallel.pieces import KINDS, Pieces, Slices
from runners.tensor_parallel.planner import Planner
from runners.tensor_parallel.shard import Shard
from testbed.cluster import ModelSpec
from testbed.errors import InputError
from testbed.runtime.local import LocalEngine

MODEL = replace(TALL, layers=2)
LLAMA = replace(MODEL, family="llama", kv_heads=2)
QUICK = {"up": 1e9, "down": 1e9}  # so that it pays to take devices in


def trained(homes, faults=lambda engine: None, *, steps=12, batch=8, model=MODEL, absent=(), **options):
    training = job(steps=steps, batch=batch, **{"micro_batches": 2, **options})
    return train(TensorParallelRunner, homes, model, training, faults, absent=absent)


@pytest.mark.parametrize(
    ("devices", "all_reduce"), [(1, "direct"), (2, "direct"), (5, "direct"), (5, "ring"), (16, "ring"), (16, "direct")]
)
def test_losses_of_one_device(devices, all_reduce):
    model = replace(MODEL, layers=1) if devices == 16 else MODEL  # some 16 (16 - 1) messages an all-reduce
    plan, events = trained(uneven(devices), steps=20, model=model, micro_batches=1, all_reduce=all_reduce)
    shares = plan.data["assignment"]["shares"]
    for kind, whole in (("heads", 4), ("columns", 64), ("words", 256)):
        assert sum(s[kind] for s in shares) == whole
    assert [e["attempt"] for e in of(events, "step")] == [1] * 20


@pytest.mark.parametrize("model", [
    replace(MODEL, family="opt"), LLAMA, replace(LLAMA, kv_heads=None), replace(LLAMA, kv_heads=1), replace(MODEL, d_ff=300),
], ids=["opt", "llama-grouped", "llama", "llama-one-kv-head", "pieces-of-several-columns"])  # fmt: skip
def test_other_families(model):
    trained(uneven(3), steps=6, model=model)


def test_uneven_micro_batches():
    trained(uneven(3), steps=4, batch=7, micro_batches=3)


def test_shares_by_speed():
    plan = TensorParallelRunner().plan(uneven(3), replace(MODEL, heads=8, d_ff=120), job())
    shares = plan.data["assignment"]["shares"]
    assert [s["columns"] for s in shares] == [20, 40, 60]
    assert sum(s["heads"] for s in shares) == 8
    assert shares[2]["heads"] >= shares[1]["heads"] >= shares[0]["heads"]


def test_shares_within_memory():
    homes = cluster(3)
    whole = TensorParallelRunner().plan(homes, MODEL, job()).data["memory_bytes"]["home0"]
    small = replace(homes.devices[0], memory_bytes=int(whole * 0.75))
    plan, _ = trained(replace(homes, devices=(small, *homes.devices[1:])), steps=3)
    shares = plan.data["assignment"]["shares"]
    assert plan.data["memory_bytes"]["home0"] <= small.memory_bytes
    assert shares[0]["columns"] < shares[1]["columns"]


def test_no_memory_is_an_error_with_numbers():
    with pytest.raises(InputError, match=r"the model takes [\d,]+ bytes .* to share out, .*home0.* 200,000 bytes"):
        TensorParallelRunner().plan(cluster(2, memory=200_000), MODEL, job())


def test_members_compute_the_flops_of_the_model_and_send_what_the_plan_says():
    plan, events = trained(cluster(4), steps=3, checkpoint_every=0)
    flops = sum(e["flops"] for e in of(events, "compute") if e["label"] != "update")
    assert flops == pytest.approx(3 * (training_flops(MODEL, 8) - training_flops(MODEL, 0)))
    assert bytes_sent(events, "home2", "reduce") / 3 == pytest.approx(plan.data["bytes_per_step"]["device_up"], rel=0.1)


@pytest.mark.parametrize("label", ["forward 2", "backward 1", "update"])
def test_a_member_killed_in_the_middle_of_a_step(label):
    def faults(engine):
        in_the_middle_of(engine, label, "home1", 14, lambda: engine.kill("home1"))

    steps = {"update": 18}.get(label, 12)
    _, events = trained(uneven(5, flops=2e7, **QUICK), faults, steps=steps, checkpoint_every=3)
    (found,) = of(events, "recovery")
    assert found["kind"] == "replan"
    assert found["peer"] == "home1"
    assert 0 <= found["lost_steps"] <= 4  # back to the server's copy
    assert of(events, "step")[-1]["devices"] == 4
    assert "home1" not in of(events, "plan")[-1]["devices"]


def test_what_survivors_hold_does_not_move():
    def faults(engine):
        in_the_middle_of(engine, "forward 2", "home1", 14, lambda: engine.kill("home1"))

    _, events = trained(cluster(4, flops=2e7, **QUICK), faults, checkpoint_every=3)
    state = 12 * model_parameters(MODEL)
    assert 0 < of(events, "plan")[-1]["moved_bytes"] < 0.8 * state


def test_all_but_one_are_killed():
    def faults(engine):
        def most():
            for i in range(4):
                engine.kill(f"home{i}")

        in_the_middle_of(engine, "backward 1", "home1", 9, most)

    _, events = trained(cluster(5, flops=2e7, **QUICK), faults, checkpoint_every=3)
    assert of(events, "step")[-1]["devices"] == 1


def test_all_are_killed_and_come_back():
    def faults(engine):
        def everyone():
            for i in range(4):
                engine.kill(f"home{i}")
                engine.after(5.0 + i, lambda i=i: engine.rejoin(f"home{i}"))

        engine.at("step", lambda e: e["step"] == 6, lambda: engine.after(0.3, everyone))

    _, events = trained(cluster(4, flops=2e7, **QUICK), faults, checkpoint_every=3)
    assert [w["text"] for w in of(events, "warning")] == ["no device is there: training waits"]
    assert {e["lost_steps"] for e in of(events, "recovery", kind="replan")} <= {1, 2, 3, 4}


def test_a_device_joins():
    def faults(engine):
        engine.at("step", lambda e: e["step"] == 2, lambda: engine.rejoin("home2"))

    _, events = trained(cluster(3, flops=5e6, up=1e10, down=1e10, delay=0.001), faults, absent=["home2"], steps=25)
    (joined,) = of(events, "recovery", kind="join")
    assert joined["peer"] == "home2"
    assert joined["lost_steps"] == 0
    assert [e["attempt"] for e in of(events, "step")] == [1] * 25
    assert of(events, "step")[-1]["devices"] == 3


@pytest.mark.parametrize("seed", range(4))
def test_random_absences(seed):
    def faults(engine):
        assert random_faults(engine, seed, until_s=16.0, faults=7)

    algorithm = ("direct", "ring")[seed % 2]
    trained(cluster(4, **SLOW, **QUICK), faults, steps=10, checkpoint_every=3, all_reduce=algorithm)


@pytest.mark.parametrize("all_reduce", ["direct", "ring"])
@pytest.mark.parametrize("devices", [1, 2, 5])
def test_prediction_meets_a_run_where_only_delays_count(all_reduce, devices, monkeypatch):
    monkeypatch.setattr("runners.data_parallel.timing.slow_start_s", lambda *_: 0.0)  # the local engine has no TCP
    monkeypatch.setattr("runners.tensor_parallel.timing.slow_start_s", lambda *_: 0.0)
    training = job(steps=5, micro_batches=2, checkpoint_every=0, all_reduce=all_reduce)
    plan = TensorParallelRunner().plan(cluster(devices, flops=2e7, up=1e12, down=1e12), MODEL, training)
    events = run(LocalEngine(plan, TensorParallelRunner, jitter=0.0))
    for step in of(events, "step")[1:]:
        assert step["end"] - step["start"] == pytest.approx(plan.predicted["step_time_s"], rel=0.01)


def test_two_runs_give_the_same_events():
    first, second = (trained(cluster(3), steps=3)[1] for _ in range(2))
    assert first == second


def test_without_data_at_real_size(monkeypatch):
    """Llama 2's 7 billion parameters, a loss and a return, no bytes."""
    model = ModelSpec(layers=32, d_model=4096, heads=32, d_ff=11008, sequence=1024, vocabulary=32000, family="llama")
    homes = cluster(4, flops=5e12, memory=1 << 37, up=1e9, down=1e9)
    homes = replace(homes, server=replace(homes.server, memory_bytes=1 << 38))
    events = without_data(
        monkeypatch, TensorParallelRunner, homes, model, job(steps=4, batch=4, micro_batches=1, checkpoint_every=2)
    )
    assert losses(events, 4) == [None] * 4
    assert of(events, "recovery")


@pytest.mark.parametrize(
    "model", [MODEL, LLAMA, replace(MODEL, d_ff=300, vocabulary=1000)], ids=["gpt", "llama", "large"]
)
def test_units_are_the_whole_state_and_go_anywhere(model):
    pieces = Pieces(model)
    assert sum(pieces.unit_parameters(u) for u in range(pieces.units)) == model_parameters(model)
    everything = Slices(*((0, pieces.counts[k]) for k in KINDS))
    assert pieces.units_of(everything) == list(range(pieces.units))
    with one_thread():
        whole = Shard(model, job(), pieces, everything, SEED_STATE, {}).pack()
        marked = {u: torch.full_like(flat, float(u)) for u, flat in whole.items()}
        assert {u: flat.numel() for u, flat in whole.items()} == {
            u: 3 * pieces.unit_parameters(u) for u in range(pieces.units)
        }
        part = Slices((1, 2), (3, pieces.counts["columns"] - 5), (0, 7))
        units = pieces.units_of(part)
        shard = Shard(model, job(), pieces, part, StateId(3, 1), {u: marked[u] for u in units})
        assert all(torch.equal(flat, marked[u]) for u, flat in shard.pack().items())
        from_seed = Shard(model, job(), pieces, part, SEED_STATE, {}).pack()
        assert all(torch.equal(flat, whole[u]) for u, flat in from_seed.items())


def test_memory_counts_what_is_shared_out():
    planner = Planner(MODEL, job(), TensorParallelOptions())
    counts = planner.pieces.counts
    whole = planner.memory_bytes(Slices(*((0, counts[k]) for k in KINDS)))
    half = planner.memory_bytes(Slices(*((0, counts[k] // 2) for k in KINDS)))
    assert planner.memory_bytes(Slices((0, 0), (0, 0), (0, 0))) < half < whole


@pytest.mark.parametrize(("options", "said"), [
    ({"all_reduc": "ring"}, "did you mean 'all_reduce'"), ({"all_reduce": "direkt"}, "did you mean 'direct'"),
    ({"checkpoint_every": "often"}, "a number of steps"),
])  # fmt: skip
def test_wrong_options(options, said):
    with pytest.raises(InputError) as error:
        TensorParallelRunner.check_options(options)
    assert said in str(error.value)

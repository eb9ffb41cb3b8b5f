"""Schedules: right order, bounded memory, no deadlock, and the bubble that the papers state."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.schedules import SCHEDULES, Hop, Instruction, Op, StageTimes, in_flight_bound, peak_in_flight, time_step

shapes = {"stages": st.integers(1, 7), "micro_batches": st.integers(1, 9), "recompute": st.booleans()}
names = st.sampled_from(sorted(SCHEDULES))


def programs(name, stages, micro_batches, recompute=False):
    return [SCHEDULES[name](p, stages, micro_batches, recompute) for p in range(stages)]


@given(name=names, **shapes)
def test_each_micro_batch_goes_once_each_way_and_the_update_comes_last(name, stages, micro_batches, recompute):
    for p, program in enumerate(programs(name, stages, micro_batches, recompute)):
        assert program[-1] == Instruction(Op.UPDATE)
        order = {op: [i.micro_batch for i in program if i.op is op] for op in Op}
        every = list(range(micro_batches))
        assert order[Op.FORWARD] == order[Op.BACKWARD] == every
        assert order[Op.RECOMPUTE] == (every if recompute else [])
        assert order[Op.RECV_ACTIVATION] == order[Op.SEND_GRADIENT] == (every if p > 0 else [])
        assert order[Op.SEND_ACTIVATION] == order[Op.RECV_GRADIENT] == (every if p < stages - 1 else [])
        at = {(i.op, i.micro_batch): n for n, i in enumerate(program)}
        for m in every:
            wanted = [Op.RECV_ACTIVATION, Op.FORWARD, Op.SEND_ACTIVATION, Op.RECOMPUTE, Op.RECV_GRADIENT,
                      Op.BACKWARD, Op.SEND_GRADIENT]  # fmt: skip
            steps = [at[op, m] for op in wanted if (op, m) in at]
            assert steps == sorted(steps)


@given(name=names, **shapes)
def test_micro_batches_in_flight(name, stages, micro_batches, recompute):
    for p, program in enumerate(programs(name, stages, micro_batches, recompute)):
        assert peak_in_flight(program) == in_flight_bound(name, stages - p, micro_batches)


def test_in_flight_of_the_papers():
    assert [peak_in_flight(p) for p in programs("gpipe", 4, 8)] == [8, 8, 8, 8]
    assert [peak_in_flight(p) for p in programs("1f1b", 4, 8)] == [4, 3, 2, 1]


@given(name=names, **shapes)
def test_even_stages_idle_for_the_papers_share(name, stages, micro_batches, recompute):
    times = [StageTimes(1.0, 2.0, recompute=1.0)] * stages
    timing = time_step(programs(name, stages, micro_batches, recompute), times)
    if not recompute:
        assert timing.bubble_fraction == pytest.approx((stages - 1) / (micro_batches + stages - 1))
        assert timing.makespan == pytest.approx(3 * (micro_batches + stages - 1))
        assert timing.most_at_once([1.0] * stages) == min(stages, micro_batches)
    assert sum(timing.busy) == pytest.approx(stages * micro_batches * (4 if recompute else 3))


@settings(max_examples=60)
@given(name=names, data=st.data(), **shapes)
def test_no_deadlock_and_no_step_faster_than_its_slowest_part(name, data, stages, micro_batches, recompute):
    seconds = st.floats(0.0, 5.0)
    times = [StageTimes(data.draw(seconds), data.draw(seconds), 0.1, 0.0) for _ in range(stages)]
    hops = [[Hop(data.draw(seconds), data.draw(seconds)) for _ in range(stages - 1)] for _ in range(2)]
    timing = time_step(programs(name, stages, micro_batches, recompute), times, *hops)
    assert timing.makespan >= max(micro_batches * (t.forward + t.backward) for t in times)
    for p in range(stages):  # what leaves a stage shares its uplink
        occupied = (hops[0][p].occupy if p < stages - 1 else 0) + (hops[1][p - 1].occupy if p > 0 else 0)
        assert timing.makespan >= micro_batches * occupied * (1 - 1e-9)


def test_by_hand_two_stages_with_slow_link():
    # F0 F1 on stage 0 at 0-2; a message takes 3 s of uplink and 1 s of way: arrivals 1+3+1, 1+3+3+1
    times = [StageTimes(1.0, 2.0), StageTimes(1.0, 2.0)]
    timing = time_step(programs("gpipe", 2, 2), times, [Hop(3, 1)], [Hop(0.5, 0)])
    # stage 1: F0 5-6, F1 8-9, B0 9-11, B1 11-13; gradients reach stage 0 at 11.5 and 13.5: B0 -13.5, B1 -15.5
    assert timing.makespan == pytest.approx(15.5)
    assert timing.busy == (6.0, 6.0)
    assert timing.bubble_fraction == pytest.approx(1 - 12 / 31)
    assert timing.most_at_once([5.0, 7.0]) == 12.0  # stage 0's B0 and stage 1's B1, from 11.5 on


def test_a_deadlock_is_reported():
    wrong = [[Instruction(Op.RECV_GRADIENT, 0)], [Instruction(Op.RECV_ACTIVATION, 0)]]
    with pytest.raises(ValueError, match="stage 0 waits for ever"):
        time_step(wrong, [StageTimes(1, 1)] * 2)

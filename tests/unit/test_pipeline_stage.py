"""One stage by itself: what it computes, and that its hollow twin looks the same from outside."""

import pytest
import torch
from runner_checks import MODEL, job, one_thread

from runners.data import Batches
from runners.models.gpt import layer_count
from runners.pipeline.stage import HollowStage, Stage, make_stage
from runners.state import SEED_STATE, StateId

SPANS = [(0, 3), (3, 6), (6, layer_count(MODEL)), (0, layer_count(MODEL))]


def step(stage, training, text):
    """One step on one stage, with made-up neighbours; everything that it hands out, and its state."""
    outputs = []
    for m, (tokens, targets) in enumerate(text):
        x = tokens if stage.is_first else torch.ones(*tokens.shape, MODEL.d_model, dtype=torch.float32)
        outputs.append(stage.forward(m, x, targets if stage.is_last else None))
    for m in range(len(text)):
        gradient = None if stage.is_last else torch.ones_like(outputs[m])
        if training.options.get("recompute"):
            stage.recompute(m)
        outputs.append(stage.backward(m, gradient))
    stage.update(StateId(1, 1))
    return outputs, stage.pack()


def run(make, span, device="cpu", **options):
    training = job(**options)
    settings = {k: v for k, v in options.items() if k in ("recompute", "wire")}
    with torch.device(device), one_thread():
        stage = make(MODEL, training, *span, SEED_STATE, {}, **settings)
        return stage, *step(stage, training, Batches(MODEL, training).micro_batches(0))


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("options", [{}, {"wire": "bf16"}, {"recompute": True}])
def test_a_hollow_stage_has_the_shapes_and_prices_of_a_real_one(span, options):
    real, outputs, state = run(make_stage, span, **options)
    hollow, hollow_outputs, hollow_state = run(make_stage, span, device="meta", **options)
    assert (type(real), type(hollow)) == (Stage, HollowStage)
    for a, b in zip(outputs, hollow_outputs):
        assert (a is None) == (b is None)
        if a is not None:
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            assert b.is_meta
    assert {i: t.shape for i, t in state.items()} == {i: t.shape for i, t in hollow_state.items()}
    for price in ("forward_flops", "backward_flops", "update_flops", "is_first", "is_last", "state"):
        assert getattr(real, price) == getattr(hollow, price)


@pytest.mark.parametrize("span", SPANS)
def test_recomputation_gives_the_same(span):
    _, plain, plain_state = run(Stage, span)
    _, again, again_state = run(Stage, span, recompute=True)
    for a, b in zip(plain, again):
        assert (a is None and b is None) or torch.equal(a, b)
    assert all(torch.equal(plain_state[i], again_state[i]) for i in plain_state)


def test_a_stage_goes_on_from_packed_state_as_if_nothing_had_been():
    training = job()
    text = Batches(MODEL, training).micro_batches(1)
    with one_thread():
        stage, _, state = run(Stage, (2, 5))
        other = Stage(MODEL, training, 2, 5, StateId(1, 1), state)
        assert all(torch.equal(a, b) for a, b in zip(stage.pack().values(), other.pack().values()))
        first, second = step(stage, training, text), step(other, training, text)
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(first[0], second[0]))
    assert all(torch.equal(first[1][i], second[1][i]) for i in state)


def test_packed_state_of_another_layer_is_refused():
    _, _, state = run(Stage, (0, 2))
    with pytest.raises((ValueError, RuntimeError)):
        Stage(MODEL, job(), 1, 2, StateId(1, 1), {1: state[0]})


def test_packed_state_is_a_copy():
    stage, _, state = run(Stage, (1, 2))
    before = state[1].clone()
    step(stage, job(), Batches(MODEL, job()).micro_batches(1))
    assert torch.equal(state[1], before)
    assert not torch.equal(stage.pack()[1], before)

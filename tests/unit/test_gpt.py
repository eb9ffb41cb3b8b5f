"""The model: the same weights however it is built, and costs that agree with what PyTorch does."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from runners.costs import layer_costs, model_parameters, training_flops
from runners.models.gpt import GPT, build_layer, layer_count, layer_name, loss_sum, parameter_count
from testbed.cluster import ModelSpec

SPECS = [
    ModelSpec(layers=2, d_model=32, heads=4, d_ff=64, sequence=16),
    ModelSpec(layers=1, d_model=24, heads=2, d_ff=100, sequence=8, vocabulary=300),
]


@pytest.mark.parametrize("spec", SPECS)
def test_layer_by_layer_and_whole_have_the_same_weights(spec):
    whole = GPT(spec, seed=7)
    torch.manual_seed(1)  # neither depends on the global generator …
    before = torch.get_rng_state()
    for i in reversed(range(layer_count(spec))):
        alone = build_layer(spec, i, 7).state_dict()
        assert alone.keys() == whole.layers[i].state_dict().keys()
        assert all(torch.equal(value, whole.layers[i].state_dict()[key]) for key, value in alone.items())
    assert torch.equal(before, torch.get_rng_state())  # … nor draws from it


def test_other_seeds_and_other_layers_have_other_weights():
    spec = SPECS[0]
    weights = [build_layer(spec, i, seed).qkv.weight for i in (1, 2) for seed in (0, 1)]
    for a in range(4):
        for b in range(a):
            assert not torch.equal(weights[a], weights[b])


def test_attention_is_causal():
    spec = SPECS[0]
    model = GPT(spec, 0)
    tokens = torch.randint(0, 256, (1, spec.sequence), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 9] = (changed[0, 9] + 1) % 256
    a, b = model(tokens), model(changed)
    assert torch.equal(a[0, :9], b[0, :9])
    assert not torch.allclose(a[0, 9:], b[0, 9:])


@pytest.mark.parametrize("spec", SPECS)
def test_parameter_counts(spec):
    costs = layer_costs(spec)
    assert [c.parameters for c in costs] == [parameter_count(spec, i) for i in range(layer_count(spec))]
    assert model_parameters(spec) == sum(p.numel() for p in GPT(spec, 0).parameters())
    assert [c.name for c in costs] == [layer_name(spec, i) for i in range(layer_count(spec))]


def _layer_input(spec: ModelSpec, index: int, samples: int) -> torch.Tensor:
    if index == 0:
        return torch.randint(0, spec.vocabulary, (samples, spec.sequence))
    return torch.randn(samples, spec.sequence, spec.d_model, requires_grad=True)


@pytest.mark.parametrize("spec", SPECS)
def test_flops_are_those_that_pytorch_counts(spec):
    samples = 3
    for i, cost in enumerate(layer_costs(spec)):
        layer, x = build_layer(spec, i, 0), _layer_input(spec, i, samples)
        with (
            sdpa_kernel(SDPBackend.MATH),
            FlopCounterMode(display=False) as counter,
        ):  # fused ones go uncounted
            out = layer(x)
            forward = counter.get_total_flops()
            out.sum().backward()
            backward = counter.get_total_flops() - forward
        assert forward == samples * cost.forward_flops, cost.name
        assert backward == samples * cost.backward_flops, cost.name


def test_flops_of_a_step():
    spec = SPECS[0]
    model, tokens = GPT(spec, 0), torch.randint(0, 256, (2, spec.sequence))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss_sum(model(tokens), tokens).backward()
    updates = sum(c.update_flops for c in layer_costs(spec))
    assert counter.get_total_flops() == training_flops(spec, 2) - updates


@pytest.mark.parametrize("spec", SPECS)
def test_activation_bytes_are_those_that_autograd_keeps(spec):
    samples = 3
    for i, cost in enumerate(layer_costs(spec)):
        layer, x = build_layer(spec, i, 0), _layer_input(spec, i, samples)
        weights = {p.untyped_storage().data_ptr() for p in layer.parameters()}
        kept: dict[int, int] = {}

        def keep(t, kept=kept, weights=weights):
            if t.untyped_storage().data_ptr() not in weights:
                kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            out = layer(x)
            if i == layer_count(spec) - 1:
                out = loss_sum(out, torch.zeros(samples, spec.sequence, dtype=torch.int64))
        assert out.requires_grad
        # the embedding's positions are kept once, not once a sample; the loss keeps one scalar
        assert samples * cost.activation_bytes == pytest.approx(
            sum(kept.values()), rel=0.6 if i == 0 else 1e-3
        )
        assert samples * cost.activation_bytes >= sum(kept.values()) - 4
        if i < layer_count(spec) - 1:
            assert samples * cost.output_bytes == out.numel() * out.element_size()


def test_without_data_on_the_meta_device():
    spec = ModelSpec(
        layers=2, d_model=8192, heads=64, d_ff=32768, sequence=2048
    )  # 3.6 GB of weights, none made
    with torch.device("meta"):
        layer = build_layer(spec, 1, 0)
        out = layer(torch.empty(1, spec.sequence, spec.d_model, requires_grad=True))
        out.sum().backward()
    assert out.is_meta
    assert next(layer.parameters()).grad.is_meta

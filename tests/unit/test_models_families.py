"""OPT, GPT-3 and Llama 2: published sizes, and the same arithmetic as the papers'; test_models_layers has the rest."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from test_models_layers import SPECS

from runners.costs import layer_costs, model_parameters, published_parameters, training_flops
from runners.models import llama
from runners.models.gpt import build_layer, parameter_count
from testbed.cluster.published import PUBLISHED, published
from testbed.errors import InputError

# Parameters of the released checkpoints, facebook/opt-* and meta-llama/Llama-2-*-hf, as their users print them
# (numel over model.parameters()); no such print was found of opt-13b and opt-30b, which follow from their config.json.
# GPT-3 and the other OPT as the papers round them.
EXACT = {
    "opt-125m": 125_239_296, "opt-1.3b": 1_315_758_080, "opt-2.7b": 2_651_596_800, "opt-6.7b": 6_658_473_984,
    "opt-13b": 12_853_473_280, "opt-30b": 29_974_540_288,
    "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
}  # fmt: skip
ROUNDED = {
    "opt-350m": 350e6, "opt-66b": 66e9, "opt-175b": 175e9, "gpt-3-125m": 125e6, "gpt-3-350m": 350e6,
    "gpt-3-760m": 760e6, "gpt-3-1.3b": 1.3e9, "gpt-3-2.7b": 2.7e9, "gpt-3-6.7b": 6.7e9, "gpt-3-13b": 13e9,
    "gpt-3-175b": 175e9,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts(name):
    count = published_parameters(PUBLISHED[name])
    if name in EXACT:
        assert count == EXACT[name]
    else:
        assert count == pytest.approx(ROUNDED[name], rel=0.02)


@pytest.mark.parametrize("name", ["opt-125m", "gpt-3-350m", "llama-2-70b"])
def test_the_real_modules_have_these_parameters(name):
    spec = PUBLISHED[name]
    costs = layer_costs(spec)
    for index in (0, 1, spec.layers, spec.layers + 1):  # blocks are alike
        assert parameter_count(spec, index) == costs[index].parameters


@pytest.mark.parametrize("name", PUBLISHED)
def test_flops_follow_the_rule_of_six(name):
    """6 N D for N parameters in products, attention scores left out (Kaplan et al. 2020, section 2.1)."""
    spec = replace(PUBLISHED[name], sequence=64)
    embedding = layer_costs(spec)[0].parameters
    updates = sum(c.update_flops for c in layer_costs(spec))
    rule = 6 * (model_parameters(spec) - embedding) * 8 * spec.sequence
    assert training_flops(spec, 8) - updates == pytest.approx(rule, rel=0.02)


def test_names_are_forgiving_and_unknown_ones_name_the_nearest():
    assert published("Llama2-7B") == PUBLISHED["llama-2-7b"]
    assert published("gpt3-175b").layers == 96
    assert published("opt-13b", sequence=256).sequence == 256
    with pytest.raises(InputError) as error:
        published("opt-12b", where="file line 3, model.name")
    assert "file line 3" in str(error.value)
    assert "opt-1" in error.value.hint
    with pytest.raises(InputError, match="context of 2048"):
        published("opt-125m", sequence=2049)


def test_rotary_scores_depend_on_the_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(1))
    scores = [(llama.rotate(q, i + 3) * llama.rotate(k, i)).sum().item() for i in (0, 5, 100)]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-4)
    assert (llama.rotate(q, 4) * llama.rotate(k, 0)).sum().item() != pytest.approx(scores[0], abs=1e-4)


def test_grouped_heads_share_keys_and_values():
    """Against attention written out, head by head."""
    spec = SPECS["llama-grouped"]
    block = build_layer(spec, 1, 0)
    x = torch.randn(2, spec.sequence, spec.d_model, generator=torch.Generator().manual_seed(2))
    qkv = block.qkv(x)
    h = spec.head_dim
    mixed = []
    for head in range(spec.heads):
        group = head // (spec.heads // spec.key_heads)
        columns = (head, spec.heads + group, spec.heads + spec.key_heads + group)
        q, k, v = (qkv[..., c * h : (c + 1) * h] for c in columns)
        q, k = (llama.rotate(t[:, None])[:, 0] for t in (q, k))
        scores = (q @ k.transpose(1, 2) / h**0.5).masked_fill(
            torch.ones(spec.sequence, spec.sequence).triu(1).bool(), float("-inf")
        )
        mixed.append(scores.softmax(-1) @ v)
    assert torch.allclose(block.attention(x), block.projection(torch.cat(mixed, -1)), atol=1e-6)


def test_swiglu_and_relu():
    spec = SPECS["llama"]
    block = build_layer(spec, 1, 0)
    x = torch.randn(1, 4, spec.d_model, generator=torch.Generator().manual_seed(3))
    after = x + block.attention(block.norm1(x))
    gate, up = block.gate_up.weight[: spec.d_ff], block.gate_up.weight[spec.d_ff :]
    normed = block.norm2(after)
    assert torch.allclose(normed, normed / normed.pow(2).mean(-1, keepdim=True).add(1e-5).sqrt(), atol=1e-4)
    inner = F.silu(normed @ gate.T) * (normed @ up.T)
    assert torch.allclose(block(x), after + inner @ block.down.weight.T, atol=1e-6)
    opt = build_layer(SPECS["opt"], 1, 0)
    after = x + opt.attention(opt.norm1(x))
    assert torch.allclose(opt(x), after + opt.down(opt.up(opt.norm2(after)).clamp(min=0)), atol=1e-6)


def test_opt_counts_positions_from_two():
    layer = build_layer(SPECS["opt-20"], 0, 0)
    assert layer.position.weight.shape == (22, 24)
    tokens = torch.tensor([[7, 7, 7]])
    assert torch.equal(layer(tokens)[0], layer.token.weight[7] + layer.position.weight[2:5])


def test_families_start_from_other_weights_and_train():
    weights = [build_layer(replace(SPECS["llama"], family=f), 1, 0).projection.weight for f in ("gpt", "opt", "llama")]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def test_a_block_of_the_largest_llama_without_data():
    spec = published("llama-2-70b", sequence=128)
    with torch.device("meta"):
        out = build_layer(spec, 1, 0)(torch.empty(1, 128, spec.d_model))
    assert out.is_meta
    assert out.shape == (1, 128, 8192)

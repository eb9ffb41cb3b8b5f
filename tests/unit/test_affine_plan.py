"""Plans of weight-affine tasks: complete, within memory, near the best there is, and quickly made."""

import itertools
import random
from dataclasses import replace

import pytest
from runner_checks import cluster

from runners.costs import layer_costs
from runners.models.gpt import build_layer
from runners.planning.affine import Costs, Numbers, _Cut, _cuts, plan_affine
from runners.planning.affine_units import block_units, cut_evenly, head_units
from testbed.cluster import ModelSpec
from testbed.cluster.published import published
from testbed.errors import InputError

MODEL = ModelSpec(layers=2, d_model=64, heads=2, d_ff=256, sequence=64)


def unlike(devices: int, seed: int, **settings):
    rng = random.Random(seed)
    homes = cluster(devices, **settings)

    def home(d):
        link = replace(d.link, uplink_bps=d.link.uplink_bps * rng.uniform(0.3, 3),
                       downlink_bps=d.link.downlink_bps * rng.uniform(0.3, 3))  # fmt: skip
        return replace(d, flops=d.flops * rng.uniform(0.2, 5), link=link)

    return replace(homes, devices=tuple(map(home, homes.devices)))


@pytest.mark.parametrize("name", ["opt-125m", "llama-2-7b", "llama-2-70b"])
def test_units_are_all_of_the_model_but_the_embedding(name):
    model = published(name)
    expected = sum(c.parameters for c in layer_costs(model)[1:])
    assert sum(u.parameters for u in [*block_units(model), *head_units(model, 1)]) == expected


@pytest.mark.parametrize("family", ["gpt", "opt", "llama"])
def test_units_have_the_parameters_that_layers_have(family):
    from runners.cleave.affine.group import Group

    model = replace(MODEL, family=family, vocabulary=257)
    for unit in [*block_units(model), *head_units(model, 3)]:
        assert Group(model, [unit]).size == unit.parameters
    whole = sum(p.numel() for p in build_layer(model, 1, None).parameters())
    assert Group(model, block_units(model)[:2]).size == whole


@pytest.mark.parametrize("groups", range(1, 9))
def test_the_largest_group_is_as_small_as_can_be(groups):
    units = block_units(replace(MODEL, layers=4))
    found = cut_evenly(units, groups)
    assert [u for g in found for u in g] == units
    assert len(found) == groups
    best = min(
        max(sum(u.parameters for u in units[a:b]) for a, b in itertools.pairwise((0, *inner, len(units))))
        for inner in itertools.combinations(range(1, len(units)), groups - 1)
    )
    assert max(sum(u.parameters for u in g) for g in found) == best


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("devices", [1, 2, 5, 16, 100])
def test_every_sample_passes_every_part_once(devices, seed):
    plan = plan_affine(unlike(devices, seed), MODEL, 12, Numbers(2.0))
    for row in plan.shares:
        assert sorted(j for s in row for j in s.samples) == list(range(12))
        assert all(s.samples for s in row)
    if devices > 1:
        used = [s.device for row in plan.shares for s in row]
        assert len(used) == len(set(used))
    assert plan.bound_s <= plan.own_s * 1.001 <= plan.step_s * 1.001


@pytest.mark.parametrize(("devices", "seed"), [(3, s) for s in range(6)] + [(4, s) for s in range(6)] + [(5, 0)])
def test_within_a_tenth_of_the_best_there_is(devices, seed):
    """All cuts, all ways to put devices into parts; within a part, equal samples are shared out optimally anyway."""
    homes = unlike(devices, seed)
    plan = plan_affine(homes, MODEL, 6, Numbers(2.0))
    costs = Costs(homes, [d.name for d in homes.devices], MODEL, 6, Numbers(2.0))
    best = float("inf")
    for parts in _cuts(MODEL, devices):
        cut = _Cut(costs, parts, [plan.slab])
        for places in itertools.product(range(-1, len(parts)), repeat=devices):  # -1: not used
            members = [[i for i, p in enumerate(places) if p == g] for g in range(len(parts))]
            if all(members):
                best = min(best, cut._finish(members, 0.0).step_s)
    assert plan.step_s <= 1.1 * best


def test_memory_is_kept():
    homes = cluster(6, memory=1_400_000)
    plan = plan_affine(homes, MODEL, 6, Numbers(2.0))
    assert max(sum(u.parameters for u in p) for p in plan.parts) * 8 < 1_400_000
    with pytest.raises(InputError, match="memory"):
        plan_affine(cluster(6, memory=100_000), MODEL, 6, Numbers(2.0))

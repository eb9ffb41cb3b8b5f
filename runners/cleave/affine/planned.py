"""Plans of weight-affine tasks for a set of devices, each made once."""

from __future__ import annotations

from functools import lru_cache

from runners.cleave.options import CleaveOptions
from runners.cleave.precision import Codec
from runners.planning.affine import AffinePlan, Numbers, plan_affine
from testbed.cluster import Cluster, ModelSpec


@lru_cache(maxsize=16)
def _plan(cluster: Cluster, model: ModelSpec, batch: int, numbers: Numbers, names: tuple[str, ...], slab: int | None):
    return plan_affine(cluster, model, batch, numbers, devices=names, slab=slab)


def planned(
    cluster: Cluster, model: ModelSpec, batch: int, options: CleaveOptions, names: tuple[str, ...]
) -> AffinePlan:
    """Raises InputError where the model does not fit these devices."""
    numbers = Numbers(Codec(options.wire).nbytes(64) / 64)
    slab = None if options.slab == "auto" else min(int(options.slab), model.sequence)
    return _plan(cluster, model, batch, numbers, names, slab)

"""Which trace of a population each home or device gets."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from testbed.errors import InputError, unknown

METHODS = ("round-robin", "random", "one-to-one", "by-name")


def assign(
    names: Sequence[str],
    population: Sequence[str],
    method: str = "round-robin",
    *,
    seed: int = 0,
    mapping: Mapping[str, str] | None = None,
    where: str = "assign",
) -> dict[str, str]:
    """Trace name for each of `names`.

    method: 'round-robin' repeats the population in its order; 'random' draws by seed, every trace once before
    any twice; 'one-to-one' gives each its own and needs enough; 'by-name' uses `mapping` (name -> trace), and
    for names outside it the trace of the same name.
    where: the key that error messages name.

    Raises:
        InputError: unknown method or name, an empty population, or too few traces for 'one-to-one'.
    """
    if method not in METHODS:
        raise unknown(where, "assignment", method, METHODS)
    if not population:
        raise InputError(where, "the trace file holds no traces; expected at least one")
    if mapping and method != "by-name":
        raise InputError(where, f"a mapping was given with method {method!r}; only 'by-name' uses one")
    if method == "by-name":
        return _by_name(names, population, mapping or {}, where)
    if method == "one-to-one" and len(population) < len(names):
        raise InputError(
            where,
            f"one-to-one needs a trace for each of {len(names)} names; the file holds {len(population)}",
            hint="use round-robin or random, or a file with more traces",
        )
    order = list(population)
    if method == "random":
        generator, order = random.Random(seed), []
        while len(order) < len(names):
            order += generator.sample(list(population), len(population))
    return {name: order[i % len(order)] for i, name in enumerate(names)}


def _by_name(names, population, mapping, where) -> dict[str, str]:
    for name in mapping:
        if name not in names:
            raise unknown(where, "name", name, names)
    out = {}
    for name in names:
        out[name] = mapping.get(name, name)
        if out[name] not in population:
            raise unknown(f"{where}.{name}", "trace", out[name], population)
    return out

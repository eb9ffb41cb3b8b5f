"""Training state by layer: in versions, and who holds which.

A state is named by (version, epoch): version = optimizer updates applied since the seed; epoch = the spell
of undisturbed training in which it was made. Two states of one version from different spells are equal up
to rounding, but only layers of the same name are ever put together, so a restored model is always one that
existed. Version 0 needs no holder: it follows from the seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from runners.planning.paths import path
from testbed.cluster import Cluster


class StateId(NamedTuple):
    version: int
    epoch: int


SEED_STATE = StateId(0, 0)
Holdings = Mapping[StateId, set[int]]  # state -> layers held
HERE, SEED = "here", "seed"  # sources of a layer, beside the names of nodes; no device has these names


class VersionStore:
    """The states that one node keeps: state -> layer -> flat tensor."""

    def __init__(self) -> None:
        self._states: dict[StateId, dict[int, torch.Tensor]] = {}

    def put(self, state: StateId, layers: Mapping[int, torch.Tensor]) -> None:
        self._states.setdefault(state, {}).update(layers)

    def get(self, state: StateId, layer: int) -> torch.Tensor | None:
        return self._states.get(state, {}).get(layer)

    def kept(self, state: StateId, layer: int) -> torch.Tensor:
        """Raises KeyError: it does not keep that layer of that state."""
        return self._states[state][layer]

    def has(self, state: StateId, layers: Iterable[int] = ()) -> bool:
        """Whether it keeps something of that state, and all of these layers."""
        return state in self._states and self._states[state].keys() >= set(layers)

    def keep(self, states: Iterable[StateId | None], layers: Iterable[int] | None = None) -> None:
        """Forget all but these states (and all but these layers)."""
        states = set(states)
        self._states = {s: held for s, held in self._states.items() if s in states}
        if layers is not None:
            layers = set(layers)
            self._states = {
                s: kept for s, held in self._states.items() if (kept := {i: t for i, t in held.items() if i in layers})
            }

    def holdings(self) -> dict[StateId, set[int]]:
        return {state: set(held) for state, held in self._states.items()}

    def __len__(self) -> int:
        return len(self._states)


def restorable(layers: Iterable[int], holders: Iterable[Holdings]) -> list[StateId]:
    """The states of which every layer is held by someone, newest first; the seed's is always among them."""
    layers = set(layers)
    held: dict[StateId, set[int]] = defaultdict(set)
    for holdings in holders:
        for state, owned in holdings.items():
            held[state] |= owned
    whole = [state for state, owned in held.items() if owned >= layers and state != SEED_STATE]
    return [*sorted(whole, reverse=True), SEED_STATE]


def transfers(
    wanted: Mapping[str, Iterable[int]], state: StateId, server: str, holders: Mapping[str, Holdings]
) -> dict[str, dict[int, str]]:
    """Where each node gets each layer of `state`: node -> layer -> HERE, SEED or the name of the giver.

    What a node holds does not move. The server gives what it has, since its link is the widest; else the
    holder who gives least so far.

    Raises:
        KeyError: nobody holds a layer; ask `restorable` first.
    """
    sources: dict[str, dict[int, str]] = {}
    given: dict[str, int] = defaultdict(int)
    for node, layers in wanted.items():
        sources[node] = {}
        for layer in layers:
            having = [name for name, held in holders.items() if layer in held.get(state, ())]
            if node in having:
                sources[node][layer] = HERE
            elif state == SEED_STATE:
                sources[node][layer] = SEED
            elif server in having:
                sources[node][layer] = server
            elif having:
                giver = min(having, key=lambda name: (given[name], name))
                given[giver] += 1
                sources[node][layer] = giver
            else:
                raise KeyError(f"layer {layer} of {state} is held by nobody")
    return sources


def moved_bytes(sources: Mapping[str, Mapping[int, str]], layer_bytes: Mapping[int, int]) -> int:
    """Bytes that cross links when those transfers are made."""
    return sum(layer_bytes[i] for got in sources.values() for i, source in got.items() if source not in (HERE, SEED))


def transfer_time(sources: Mapping[str, Mapping[int, str]], layer_bytes: Mapping[int, int], cluster: Cluster) -> float:
    """Seconds that those transfers take at least: the busiest uplink or downlink."""
    out: dict[str, float] = defaultdict(float)
    into: dict[str, float] = defaultdict(float)
    for node, got in sources.items():
        for layer, source in got.items():
            if source not in (HERE, SEED):
                out[source] += 8 * layer_bytes[layer]
                into[node] += 8 * layer_bytes[layer]
    links = {name: path(cluster, cluster.device(name)) for name in {*out, *into}}
    return max(
        [bits / links[name].uplink_bps for name, bits in out.items()]
        + [bits / links[name].downlink_bps for name, bits in into.items()],
        default=0.0,
    )

"""What a network's settings promise for each home: rates, delays, loss and buffer of its path to the server."""

from __future__ import annotations

import math
from dataclasses import dataclass

from testbed.cluster import LinkState
from testbed.cluster.model import SERVER
from testbed.emulation.network.shaping import Shape
from testbed.emulation.shaped import ShapedNetwork
from testbed.scenario.link_model import FRAME_BYTES, GOODPUT_BYTES, access_link, server_delay
from testbed.verification.trains import Path


@dataclass(frozen=True)
class Promise:
    """One direction of a home's path, in real units (time dilation applied).

    rate_bps: of the narrowest link, as TCP goodput. wire_bps: the same in frames. buffer_s: what that link's
    queue holds, in whole frames. delay_s, sigma_s: one-way delay without queueing, and its standard
    deviation. loss: one-way.
    """

    rate_bps: float
    wire_bps: float
    buffer_s: float
    queue: str
    delay_s: float
    sigma_s: float
    loss: float
    path: Path


def promises(shaped: ShapedNetwork, home: str) -> dict[str, Promise]:
    """By direction, 'down' and 'up', for the settings now in force."""
    state: LinkState = shaped.current(home)
    topology, tdf = shaped.topology, shaped.tdf
    shared = next((s for s in topology.shared_links if home in s.members), None)
    own = access_link(state, topology.server_link, shared.delay_s if shared else 0.0, tdf).delay
    server = server_delay(topology.server_link, tdf)
    between_s = shared.delay_s * tdf if shared else 0.0
    hosts, shapes = shaped.network.hosts, shaped.network.plan.shapes
    here, there = hosts[home], hosts[SERVER]
    ports = shaped.network.shared[shared.name] if shared else None
    ways = {
        "down": (
            [there.inner, *([ports.down_interface] if ports else []), here.bridge_port],
            server.up_delay_s + own.down_delay_s,
            (server.up_jitter_s, own.down_jitter_s),
            (server.up_loss, own.down_loss),
            Path(there.netns_path, here.netns_path, here.ip),
        ),
        "up": (
            [here.inner, *([ports.up_interface] if ports else []), there.bridge_port],
            own.up_delay_s + server.down_delay_s,
            (own.up_jitter_s, server.down_jitter_s),
            (own.up_loss, server.down_loss),
            Path(here.netns_path, there.netns_path, there.ip),
        ),
    }
    out = {}
    for direction, (interfaces, delay_s, sigmas, losses, path) in ways.items():
        narrowest: Shape = min((shapes[i] for i in interfaces), key=lambda s: s.rate_bps)
        out[direction] = Promise(
            narrowest.rate_bps * GOODPUT_BYTES / FRAME_BYTES,
            narrowest.rate_bps,
            narrowest.limit_bytes // FRAME_BYTES * FRAME_BYTES * 8 / narrowest.rate_bps,
            narrowest.queue,
            delay_s + between_s,
            math.hypot(*sigmas),
            1 - (1 - losses[0]) * (1 - losses[1]),
            path,
        )
    return out

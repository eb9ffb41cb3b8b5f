"""When the kernel says that a packet came: behind an uplink's queue, the moment at which it left that queue."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time

import pytest
from traffic import socket_in

from testbed.emulation.delay.stamps import forget_early_stamps
from testbed.emulation.kernel.namespaces import inside
from testbed.emulation.kernel.socket_options import SO_TIMESTAMPNS

pytestmark = pytest.mark.emulation
PACKETS, FRAME_S = 10, 0.0116  # of full frames at 1 Mbit/s
SHAPED_S = (PACKETS - 4) * FRAME_S  # three pass with the shaper's burst


def spread_s(network) -> float:
    """Between the stamps of the first and the last of some full packets that wait in the home's uplink, as the
    bridge's port sees them [s]."""
    home, server = network.delay_ports()["h1"], network.hosts["server"]
    with (
        socket_in(home.netns, socket.SOCK_DGRAM) as near,
        socket_in(server.netns, socket.SOCK_DGRAM) as far,
        inside(home.net_netns),
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as port,
    ):
        port.bind((home.bridge_port, 0))
        port.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        far.bind((server.ip, 0))
        near.connect(far.getsockname())
        for _ in range(PACKETS):
            near.send(bytes(1472))
        stamps = []
        port.settimeout(2 * PACKETS * FRAME_S)
        with contextlib.suppress(TimeoutError):
            while len(stamps) < PACKETS:
                data, extra, _, _ = port.recvmsg(2048, 64)
                if len(data) == 1514:
                    seconds, ns = struct.unpack("ll", extra[0][2])
                    stamps.append(seconds + ns * 1e-9)
    assert len(stamps) == PACKETS
    time.sleep(0.05)
    return max(stamps) - min(stamps)


def come_early(network) -> bool:
    """Whether packets keep the stamps of when they came from the home, which is what the kernel does by itself: within
    a few tries, since it turns its stamps on, and what is attached to an interface off, when it gets to it."""
    return any(spread_s(network) < SHAPED_S / 2 for _ in range(20))


def test_packets_are_stamped_behind_the_uplinks_queue_while_asked_for(build):
    network = build(1, up_mbps=1, down_mbps=10)
    host = network.delay_ports()["h1"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stamped:
        stamped.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # so that stamps stay on all the while
        assert come_early(network)
        with inside(host.net_netns):
            index = socket.if_nametoindex(host.port)
            try:
                links = forget_early_stamps([index])
            except OSError as error:
                pytest.skip(f"no tcx: {error}")
            with pytest.raises(OSError):
                forget_early_stamps([index, 1 << 30])
        assert spread_s(network) > SHAPED_S
        for link in links:
            os.close(link)
        assert come_early(network)

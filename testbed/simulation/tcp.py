"""What one TCP connection adds to the fluid network: its handshake, slow start, idle restart, headers, loss, outages.

A model of Linux's TCP (net/ipv4/tcp*.c) and of ZeroMQ's handshake on it, as far as they decide when the last byte of a
message arrives. docs/simulation.md says what is left out.

Slow start and idle restart are `testbed.cluster.tcp`'s. The fluid network knows nothing of a burst's pauses; they are
added where the bytes end.
"""

from __future__ import annotations

import math

from testbed.cluster.tcp import CUBIC_BETA, MAX_RTO_S, MSS, retransmission_timeout_s

FRAME_BYTES = 1514  # of Ethernet, that carry them
HANDSHAKE_RTTS = 3.0  # TCP's SYN, then ZMTP 3: signatures, greeting, READY (rfc.zeromq.org/spec/23)
CUBIC_C = 0.4  # RFC 9438


def wire_bytes(payload: float) -> float:
    """Payload as the links' goodput sees it: a short last packet has a full packet's headers."""
    packets = math.ceil(payload / MSS)
    return (payload + packets * (FRAME_BYTES - MSS)) * MSS / FRAME_BYTES


def lossy_rate(loss: float, rtt_s: float) -> float:
    """Bytes/s that cubic reaches on a path that loses packets at random, whatever its rate.

    RFC 9438: the larger of equation 5 (cubic) and of Reno's response function, section 4.3.
    """
    if loss <= 0:
        return math.inf
    cubic = (CUBIC_C * (3 + CUBIC_BETA) / (4 * (1 - CUBIC_BETA))) ** 0.25 * (rtt_s / loss) ** 0.75
    reno = math.sqrt(1.5 / loss)
    return max(cubic, reno) * MSS / max(rtt_s, 1e-4)


def outage_end_s(cut_s: float, mended_s: float, rtt_s: float) -> float:
    """When a connection with data under way sends again after an outage: with the first retransmission to get through.

    The timeout doubles each time (RFC 6298, rule 5.5), up to MAX_RTO_S.
    """
    timeout = min(retransmission_timeout_s(rtt_s), MAX_RTO_S)
    at = cut_s + timeout
    while at < mended_s:
        timeout = min(2 * timeout, MAX_RTO_S)
        at += timeout
    return at

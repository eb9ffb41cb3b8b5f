"""The congestion window of a TCP connection, for planners and for the simulation: slow start and idle restart.

Sending of a burst is clocked by acknowledgements. In a round trip R a connection sends its window w, and the window
doubles until it fills the connection's share of the path, r R. From then on the share alone decides. So a burst of S
bytes is later than S / r by the pauses of its first k rounds,

    pause(S) = k R - w (2^k - 1) / r,    k = the rounds that end before the burst does and before w 2^k >= r R

(Cardwell, Savage, Anderson: Modeling TCP latency, INFOCOM 2000, equations 5 to 15, with growth factor 2, as Linux
counts bytes).
"""

from __future__ import annotations

MSS = 1448  # bytes of payload in a full packet: 1500 less IPv4, TCP and timestamps
INITIAL_WINDOW = 10 * MSS  # RFC 6928
MIN_RTO_S = 0.2  # TCP_RTO_MIN
MAX_RTO_S = 1.0  # instead of Linux's 120 s: the least that it takes (net.ipv4.tcp_rto_max_ms)
MAX_WINDOW = 3 * 2**20  # bytes; half of Linux's default tcp_rmem and tcp_wmem maxima (6 and 4 MiB) may be payload
CUBIC_BETA = 0.7  # RFC 9438


def retransmission_timeout_s(rtt_s: float) -> float:
    """Linux: smoothed RTT plus its variation, the latter at least TCP_RTO_MIN."""
    return rtt_s + MIN_RTO_S


def flow_rate_bps(rate_bps: float, rtt_s: float) -> float:
    """What one connection reaches of a path's rate: a window each round trip at most, as sockets' buffers allow."""
    return min(rate_bps, 8 * MAX_WINDOW / max(rtt_s, 1e-4))


class Window:
    """The congestion window of one direction of a connection, in bytes, over its bursts."""

    __slots__ = ("size", "idle_since_s", "_start", "_bytes", "_rounds")

    def __init__(self) -> None:
        self.size = float(INITIAL_WINDOW)
        self.idle_since_s: float | None = None
        self._start = self.size  # of the burst under way
        self._bytes = 0.0
        self._rounds = 0

    def begin(self, rtt_s: float, now_s: float) -> None:
        """The connection was idle and has something to send: RFC 2861, as in Linux's tcp_cwnd_restart."""
        if self.idle_since_s is not None and self.size > INITIAL_WINDOW:
            halvings = int((now_s - self.idle_since_s) / retransmission_timeout_s(rtt_s))
            if halvings > 0:
                self.size = max(float(INITIAL_WINDOW), self.size / 2.0 ** min(halvings, 30))
        self._start, self._bytes, self._rounds = self.size, 0.0, 0

    def pause(self, nbytes: float, share: float, rtt_s: float) -> float:
        """How long the burst pauses for acknowledgements in its next `nbytes`, at `share` bytes/s [s]."""
        self._bytes += nbytes
        w, before = self._start, self._rounds
        if w * 2.0**before >= share * rtt_s or w * (2.0 ** (before + 1) - 1) >= self._bytes:
            return 0.0
        rounds, full = before, share * rtt_s
        while w * 2.0**rounds < full and w * (2.0 ** (rounds + 1) - 1) < self._bytes:
            rounds += 1
        self._rounds = rounds
        return max(0.0, (rounds - before) * rtt_s - w * (2.0**rounds - 2.0**before) / share)

    def end(self, share: float, rtt_s: float, buffer_s: float, now_s: float) -> None:
        """The burst is over: what it left of the window.

        It has grown by what was acknowledged while it was more than half used (tcp_is_cwnd_limited). On a full
        path it ends in a loss at the latest when the bottleneck's buffer is full, and cubic keeps 0.7 of it.
        """
        if 2 * self._bytes > self.size:
            most = max(CUBIC_BETA * share * (rtt_s + buffer_s), self._start)
            self.size = max(float(INITIAL_WINDOW), min(self.size + self._bytes, most, MAX_WINDOW))
        self.idle_since_s = now_s

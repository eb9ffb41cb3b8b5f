"""Delay lines: one-way delay, jitter and loss of every access link, by netem or by an NFQUEUE daemon."""

from testbed.emulation.delay.base import DelayBackend, DelayStats, HostPort, PathDelay, SharedPort

__all__ = ["DelayBackend", "DelayStats", "HostPort", "PathDelay", "SharedPort"]

"""Delay lines: one-way delay, jitter and loss of every access link, by netem or by an NFQUEUE daemon."""

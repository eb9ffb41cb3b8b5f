"""Packet captures: reading them, the flows in them, and completing what the capturer wrote. No engine."""

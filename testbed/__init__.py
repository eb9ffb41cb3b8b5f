"""A trace-driven emulation testbed with network shaping, for training over home broadband."""

__version__ = "0.1.0"

"""What planners read: devices, links, memory, speed, model and training. Plain frozen data in SI units."""

from testbed.cluster.model import Cluster, Device, Link, LinkState, SharedLink, Topology
from testbed.cluster.specs import ModelSpec, OptimizerSpec, TrainingSpec

__all__ = [
    "Cluster",
    "Device",
    "Link",
    "LinkState",
    "ModelSpec",
    "OptimizerSpec",
    "SharedLink",
    "Topology",
    "TrainingSpec",
]

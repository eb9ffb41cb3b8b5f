"""What a runner's code may touch: messages, compute, clock, membership. The same on every engine."""

from testbed.runtime.interface import ANY, Membership, MembershipEvent, Message, Node, PeerLost, Plan, Runner

__all__ = ["ANY", "Membership", "MembershipEvent", "Message", "Node", "PeerLost", "Plan", "Runner"]

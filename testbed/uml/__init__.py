"""A second kernel, user-mode-linux: any command in it, on this file system, as an ordinary process of whoever runs it.

It has netem, Open vSwitch, cgroup v2 and namespaces whatever the machine's own kernel has, and the user who boots it is
root in it. See docs/kernels.md.

    kernel.py    which kernel, with which modules, and what this processor needs
    memory.py    how much memory it gets, and where that is kept
    session.py   boots it, runs one command, returns its exit code
    guardian.py  the process that owns it, and leaves nothing of it behind
    console.py   terminal, signals and streams, on this side
    guest.py     the same on the other side: its first process
    frames.py    what the two say to each other
"""

from testbed.uml.kernel import Availability, availability
from testbed.uml.session import run

__all__ = ["Availability", "availability", "run"]

"""Experiments, traces and topologies that come with the package.

In the source tree they are links to the folders at its top, where people read and edit them; a wheel holds the files.
"""

from importlib.resources import files
from pathlib import Path

SHIPPED = Path(str(files(__name__)))
#: resolved, so that the source tree's files are named as people know them
EXPERIMENTS = (SHIPPED / "experiments").resolve()
DEVICES = (SHIPPED / "traces" / "devices").resolve()

"""Networks of namespaces, shaped links and real processes, made with Mininet."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

DIST_PACKAGES = "/usr/lib/python3/dist-packages"  # Debian's and Ubuntu's


class SystemMininet:
    """Finds Mininet where the distribution's package puts it, as PyPI has none. A virtual environment sees no other
    package of the system's by it, and its own Mininet, if there is one, comes first."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [DIST_PACKAGES]) if name == "mininet" else None


sys.meta_path.append(SystemMininet)

"""python -m testbed.uml COMMAND…: any command as root of a second kernel."""

from __future__ import annotations

import sys

from testbed.errors import TestbedError
from testbed.uml.session import run

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m testbed.uml COMMAND…")
    try:
        sys.exit(run(sys.argv[1:]))
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)

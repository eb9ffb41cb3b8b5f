"""Link and availability traces: read what people have, check it, convert it, generate it, look at it."""

from testbed.traces.assign import assign
from testbed.traces.availability import Availability
from testbed.traces.links import LinkTrace, TraceEnded
from testbed.traces.report import Report

__all__ = ["Availability", "LinkTrace", "Report", "TraceEnded", "assign", "read_availability", "read_links"]


def __getattr__(name: str):
    """The readers, which load every format: on first use only."""
    if name not in ("read_availability", "read_links"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from testbed.traces import reading

    return getattr(reading, name)

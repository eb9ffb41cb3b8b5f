"""Link and availability traces: read what people have, check it, convert it, generate it, look at it."""

from testbed.traces.assign import assign
from testbed.traces.availability import Availability, read_availability
from testbed.traces.links import LinkTrace, TraceEnded, read_links
from testbed.traces.report import Report

__all__ = ["Availability", "LinkTrace", "Report", "TraceEnded", "assign", "read_availability", "read_links"]

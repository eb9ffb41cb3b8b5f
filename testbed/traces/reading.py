"""Open a file, recognise its format, read it, and make traces of it."""

from __future__ import annotations

from dataclasses import fields

from testbed.errors import InputError, unknown
from testbed.traces import formats
from testbed.traces.assemble import assemble
from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.links import LinkTrace
from testbed.traces.report import Report
from testbed.traces.source import Source


def read_link_file(path, *, format=None, strict=False, report=None, **options) -> dict[str, LinkTrace]:
    """See `testbed.traces.links.read_links`."""
    report, options = _prepare(path, strict, report, options)
    source = Source(path, report, options.progress)
    chosen = recognise(source, "links", format)
    report.format = chosen.name
    records = chosen.read(source, options)
    return assemble(records, options.defaults, options.align)


def read_availability_file(path, *, format=None, strict=False, report=None,
                           **options) -> dict[str, Availability]:
    """See `testbed.traces.availability.read_availability`."""
    report, options = _prepare(path, strict, report, options)
    source = Source(path, report, options.progress)
    chosen = recognise(source, "availability", format)
    report.format = chosen.name
    return chosen.read(source, options)


def recognise(source: Source, kind: str | None, name: str | None) -> Format:
    """The format called `name`, or the one that knows the sample best.

    Raises:
        InputError: an unknown name, one of the other kind, or a file that no format knows.
    """
    known = formats.all_formats()
    if name is not None:
        by_name = {f.name: f for f in known}
        if name not in by_name:
            raise unknown("--format", "format", name, [f.name for f in known if kind in (None, f.kind)])
        if kind not in (None, by_name[name].kind):
            raise InputError(source.report.path,
                             f"format {name!r} is for {by_name[name].kind}; expected {kind}")
        return by_name[name]
    scored = [(f.detect(source.sample), f) for f in known]
    best, found = max(scored, key=lambda pair: pair[0])
    if best > 0 and kind in (None, found.kind):
        return found
    if best > 0:
        raise InputError(source.report.path,
                         f"looks like {found.title}, which holds {found.kind}; expected {kind}")
    first = source.sample.lines[0][:80] if source.sample.lines else ""
    raise InputError(source.report.path, f"is in no format that is known; its first line is {first!r}",
                     hint="give --format, or --map for a table of another shape: see docs/traces.md")


def _prepare(path, strict, report, options) -> tuple[Report, Options]:
    report = report if report is not None else Report()
    report.path, report.strict = report.path or str(path), strict
    names = [f.name for f in fields(Options)]
    for name in options:
        if name not in names:
            raise unknown("options", "option", name, names)
    return report, Options(**options)

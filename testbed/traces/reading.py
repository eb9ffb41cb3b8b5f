"""Open files, recognise their format, read them, and make traces of them."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from testbed.errors import InputError, looking, together, unknown
from testbed.traces import formats
from testbed.traces.assemble import ALIGNMENTS, assemble
from testbed.traces.availability import Availability
from testbed.traces.formats import Format, Options
from testbed.traces.json_text import RepeatedKey
from testbed.traces.links import LinkTrace
from testbed.traces.records import LinkRecords
from testbed.traces.report import Report
from testbed.traces.series import FOLDERS, one_series
from testbed.traces.source import Source

_NO_TRACES = ("readme", "license", "licence", "sources", "manifest", "changelog")


def read_traces(
    paths,
    kind: str | None = None,
    *,
    format: str | None = None,
    strict: bool = False,
    report: Report | None = None,
    **options,
) -> dict[str, LinkTrace] | dict[str, Availability]:
    """Traces of one file, of several, or of the files of a folder, by home or device.

    Files of one family (FCC tables, M-Lab's downloads and uploads, a Mahimahi pair) are joined; each other
    one gives its own homes. What a folder holds beside traces is left out, with a warning; a trace that is wrong is
    not. kind: 'links', 'availability', or None to take what is found.

    Raises:
        InputError: a file is missing, in no known format, or holds impossible values; of several, all are named.
    """
    report = report if report is not None else Report()
    report.strict = strict
    settings = _options(options)
    files = _files(paths)
    report.path = report.path or ", ".join(str(f) for f, _ in files[:3]) + (" …" if len(files) > 3 else "")
    whole = report.path
    recognised = _recognised(files, kind, format, report, settings)
    kinds = {f.kind for _, f in recognised}
    if len(kinds) > 1:
        raise InputError(whole, "holds both link and availability traces; name files of one kind")
    report.format = ", ".join(dict.fromkeys(f.name for _, f in recognised))
    traces: dict = {}
    wrong: list[InputError] = []
    for group in _families(recognised):
        found, bad = _read_group(group, settings, report)
        wrong += bad
        for name, trace in found.items():
            source = group[0][0]
            traces[name if name not in traces else f"{source.stem}:{name}"] = trace
    if wrong:
        raise together(wrong)
    report.path = whole
    if len(recognised) > 1 and kinds == {"links"}:
        traces = one_series(traces, [s.stem for s, _ in recognised], settings, report)
    if len(recognised) > 1 and kinds == {"availability"}:
        traces = _one_clock(traces)
    return traces


def read_links(
    path, *, format: str | None = None, strict: bool = False, report: Report | None = None, **options
) -> dict[str, LinkTrace]:
    """The link traces in a file, by home.

    format: a name from `testbed.traces.formats`, or None to recognise it. strict: refuse what is otherwise
    repaired. report: filled with what was found and done. options: fields of `formats.Options`.

    Raises:
        InputError: the file is missing, in no known format, or holds impossible values.
    """
    return read_traces(path, "links", format=format, strict=strict, report=report, **options)  # type: ignore[return-value]


def read_availability(
    path, *, format: str | None = None, strict: bool = False, report: Report | None = None, **options
) -> dict[str, Availability]:
    """The availability traces in a file, by device; parameters as `read_links`.

    Raises:
        InputError: the file is missing, in no known format, or holds impossible values.
    """
    return read_traces(path, "availability", format=format, strict=strict, report=report, **options)  # type: ignore[return-value]


def _options(options: dict) -> Options:
    names = [f.name for f in fields(Options)]
    for name in options:
        if name not in names:
            raise unknown("options", "option", name, names)
    settings = Options(**options)
    if settings.align not in ALIGNMENTS:
        raise unknown("--align", "alignment", settings.align, ALIGNMENTS)
    if settings.folder not in (None, *FOLDERS):
        raise unknown("--folder", "reading of a folder", settings.folder, FOLDERS)
    return settings


@looking()
def _files(paths) -> list[tuple[Path, bool]]:
    """Each file, and whether it was named itself, not as one of a folder's."""
    if isinstance(paths, (str, Path)):
        paths = [paths]
    files: list[tuple[Path, bool]] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = [
                p
                for p in sorted(path.iterdir())
                if p.is_file()
                and not p.name.startswith(".")
                and not p.name.lower().startswith(_NO_TRACES)
                and p.suffix.lower() != ".md"
            ]
            if not found:
                raise InputError(str(path), "is a folder without files; expected traces")
            files += [(p, False) for p in found]
        else:
            files.append((path, True))
    return files


def _recognised(files: list[tuple[Path, bool]], kind, name, report: Report, settings: Options):
    """(source, format) of each file; files of a folder that are no traces are left out, with a warning."""
    if name is None and settings.map and kind != "availability":
        name = "map"
    if name is None and settings.pattern and kind != "availability":
        name = "pattern"
    found, wrong, left = [], [], {}
    for file, named in files:
        try:
            source = _source(file, report, settings)
            found.append((source, recognise(source, kind, name)))
        except InputError as error:
            if named:
                wrong.append(error)
            else:
                left[file.name] = error
    if wrong:
        raise together(wrong)
    if not found:
        none = InputError(report.path, f"none of {len(left)} files is a trace")
        raise together([none, *left.values()] if len(left) > 1 else [*left.values()])
    if left:
        names = ", ".join([*left][:20]) + (" …" if len(left) > 20 else "")
        report.warn(f"{len(left)} files are no traces and left out: {names}")
    return found


def _source(file: Path, report: Report, settings: Options) -> Source:
    keep, report.path = report.path, str(file)
    try:
        return Source(file, report, settings.progress)
    finally:
        report.path = keep


def _families(recognised: list[tuple[Source, Format]]) -> list[list[tuple[Source, Format]]]:
    """Files that are read into one set of records, in the order of their first."""
    groups: dict[object, list[tuple[Source, Format]]] = {}
    for k, (source, found) in enumerate(recognised):
        key: object = k
        if found.family == "mahimahi":
            from testbed.traces.formats.mahimahi import direction_of

            key = (found.family, source.path.parent, direction_of(source.path)[0])
            if key in groups:
                continue  # the pair is read from either of its files
        elif found.family is not None:
            key = found.family
        groups.setdefault(key, []).append((source, found))
    return list(groups.values())


def _read_group(group, settings: Options, report: Report) -> tuple[dict, list[InputError]]:
    """The traces of files that belong together, or what is wrong with each of them."""
    records: LinkRecords | None = None
    wrong: list[InputError] = []
    for source, found in group:
        report.path = str(source.path)
        try:
            if found.kind == "availability":
                return found.read(source, settings), []
            if len(group) == 1:
                records = found.read(source, settings)
            elif records is None:
                records = found.read(source, replace(settings, home=settings.home or found.family))
                records.sparse = records.joined = True
            else:
                labels = records.labels
                found.read(source, replace(settings, home=settings.home or found.family), records)
                records.labels = labels
        except RepeatedKey as error:
            wrong.append(report.error(str(error), hint="which of them is meant can't be told: remove one"))
        except RecursionError:
            wrong.append(report.error("is nested too deeply"))
        except MemoryError:
            wrong.append(report.error("does not fit into memory"))
        except InputError as error:
            wrong.append(error)
    if wrong:
        return {}, wrong
    try:
        return assemble(records, settings.defaults, settings.align), []
    except InputError as error:
        return {}, [error]


def _one_clock(traces: dict[str, Availability]) -> dict[str, Availability]:
    """Traces from several files with absolute times, counted from their common beginning."""
    starts = [t.start_epoch_s for t in traces.values()]
    if None in starts or len(set(starts)) == 1:
        return traces
    origin = min(starts)
    span = max(t.start_epoch_s + t.span_s for t in traces.values()) - origin
    return {
        name: Availability(t.device, t.intervals_s + (t.start_epoch_s - origin), span, origin, t.source)
        for name, t in traces.items()
    }


def recognise(source: Source, kind: str | None, name: str | None) -> Format:
    """The format called `name`, or the one that knows the sample best.

    Raises:
        InputError: an unknown name, one of the other kind, or a file that no format knows.
    """
    known = formats.all_formats()
    where = str(source.path)
    if name is not None:
        by_name = {f.name: f for f in known}
        if name not in by_name:
            raise unknown("--format", "format", name, [f.name for f in known if kind in (None, f.kind)])
        if kind not in (None, by_name[name].kind):
            raise InputError(where, f"format {name!r} is for {by_name[name].kind}; expected {kind}")
        return by_name[name]
    scored = [(f.detect(source.sample), f) for f in known]
    best, found = max(scored, key=lambda pair: pair[0])
    if best > 0 and kind in (None, found.kind):
        return found
    wanted = [pair for pair in scored if pair[1].kind == kind and pair[0] > 0]
    if wanted:
        return max(wanted, key=lambda pair: pair[0])[1]
    if best > 0:
        raise InputError(where, f"looks like {found.title}, which holds {found.kind}; expected {kind}")
    raise InputError(
        where, _why_unknown(source), hint="give --format, or --map for a table of another shape: see docs/traces.md"
    )


def _why_unknown(source: Source) -> str:
    """What keeps a file from being a trace, as far as it can be told."""
    from testbed.traces.names import recognise as by_names
    from testbed.traces.table import is_value

    layout = source.sample.layout
    named = {n.field for n in by_names(layout.header)} if layout.header else set()
    first = source.sample.lines[0].strip()[:80] if source.sample.lines else ""
    if named & {"rtt_s", "jitter_s", "loss"}:
        return (
            f"has delays or losses but no rate ({', '.join(layout.header[:10])}); a link trace needs download or upload"
        )
    if '"msm_id"' in source.sample.text[:4000]:
        return "holds RIPE Atlas results: delays but no rate; a link trace needs download or upload"
    if source.sample.json is not None:
        return f"is JSON of no format that is known; it begins with {first!r}"
    regular = [row for row in layout.rows if len(row) == layout.width > 1]
    if not layout.header and len(regular) > 0.8 * len(layout.rows) and sum(map(is_value, regular[0])) > 1:
        row = ", ".join(regular[0])[:80]
        return (
            f"is a table without header, whose columns can't be told (a row: {row!r}); those of a link table "
            "can be named by number: --map time=1 --map download=2:Mbps"
        )
    return f"is in no format that is known; its first line is {first!r}"

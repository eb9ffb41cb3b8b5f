"""Each home's link over the run, from one source or several: a trace or preset, another for the delays, constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed import units
from testbed.cluster import LinkState
from testbed.errors import InputError
from testbed.experiment.generated import generated_links
from testbed.experiment.loading import LoadedExperiment
from testbed.traces.assemble import Defaults
from testbed.traces.assign import assign
from testbed.traces.links import LinkTrace
from testbed.traces.reading import read_links
from testbed.traces.report import Report

Series = list[tuple[float, LinkState]]
FIELDS = {"download": "down_bps", "upload": "up_bps", "rtt": "rtt_s", "jitter": "jitter_s", "loss": "loss"}
_SHOWN = {"download": units.rate, "upload": units.rate, "rtt": units.duration, "jitter": units.duration}


def read_population(loaded: LoadedExperiment, section, name: Sequence[str], warnings: list[str], defaults: Defaults):
    """(what to call it, its traces) of a section with trace, format and read."""
    path = loaded.file(section.trace, *name, "trace", folders=True)
    report = Report()
    try:
        options = {k: tuple(v) if isinstance(v, list) else v for k, v in section.read.items()}
        traces = read_links(path, format=section.format, report=report, defaults=defaults, **options)
    except InputError as error:
        if error.where.startswith("options"):
            raise InputError(loaded.where(*name, "read"), error.problem, hint=error.hint) from None
        raise
    warnings += told(path.name, section.trace, report)
    return path.name, traces


def told(source: str, trace: str | None, report: Report) -> list[str]:
    """What the reader of a trace has to say about it."""
    lines = [f"{source}: {text}" for text in report.warnings]
    lines += [f"{source}: guessed, not stated in the file: {text}" for text in report.guessed]
    if repaired := sum(r.count for r in report.repairs.values()):
        lines.append(
            f"{source}: {repaired} repairs when reading ({', '.join(report.repairs)}); "
            f"testbed traces inspect {trace} lists them"
        )
    return lines


def defaults(section) -> Defaults:
    """What `links:` states for a file that does not have it."""
    constants = {"down_bps": section.download, "up_bps": section.upload, "rtt_s": section.rtt}
    return Defaults(**{name: value for name, value in constants.items() if value is not None})


def check_constants(loaded: LoadedExperiment, source: str, population: Mapping[str, LinkTrace]) -> None:
    """That a rate or RTT stated beside a trace is one which the trace does not have.

    Raises:
        InputError: it has: which of the two is meant can't be told.
    """
    section = loaded.experiment.links
    for name in ("download", "upload", "rtt"):
        own = [home for home, trace in population.items() if name not in trace.assumed]
        if getattr(section, name) is not None and own:
            raise InputError(
                loaded.where("links", name),
                f"{source} has {name} of its own (for {own[0]}); a constant stands beside a trace that has none",
                hint=f"remove links.{name}" + (", or take the delays from elsewhere: delays" if name == "rtt" else ""),
            )


def second_sources(loaded: LoadedExperiment, homes: Sequence[str], traces: Mapping[str, LinkTrace], warnings):
    """Of each home, (quantities, trace, what to call it) that replace those of its own trace.

    `delays` gives RTT, jitter and loss; `fill: preset` the jitter and loss that neither source has.
    """
    section = loaded.experiment.links
    found: dict[str, list[tuple[tuple[str, ...], LinkTrace, str]]] = {home: [] for home in homes}
    lacking = {home: set(traces[home].assumed) for home in homes}
    if section.delays is not None:
        delays = section.delays
        if delays.preset is not None:
            source, population = f"preset {delays.preset}", generated_links(loaded, len(homes), delays.preset)
        else:
            stated = Defaults(down_bps=1e6, up_bps=1e6)  # its rates are not used
            source, population = read_population(loaded, delays, ("links", "delays"), warnings, stated)
        named = assign(homes, list(population), delays.assign, seed=loaded.experiment.seed)
        for home in homes:
            trace = population[named[home]]
            taken = tuple(q for q in ("rtt", "jitter", "loss") if q not in trace.assumed)
            found[home].append((taken, trace, f"{source}: {named[home]}"))
            lacking[home] -= set(taken)
    if section.fill == "preset":
        preset = section.preset or "mixed"
        population = generated_links(loaded, len(homes), preset)
        named = assign(homes, list(population), "random", seed=loaded.experiment.seed)
        for home in homes:
            taken = tuple(q for q in ("jitter", "loss") if q in lacking[home] and getattr(section, q) is None)
            if taken:
                found[home].append((taken, population[named[home]], f"preset {preset}"))
    return found


def merged(series: Series, other: Series, quantities: Sequence[str]) -> Series:
    """`series` with some quantities taken from `other`, changing whenever either does."""
    times = sorted({t for t, _ in series} | {t for t, _ in other})
    fields = [FIELDS[q] for q in quantities]
    out: Series = []
    i = j = 0
    for t in times:
        while i + 1 < len(series) and series[i + 1][0] <= t:
            i += 1
        while j + 1 < len(other) and other[j + 1][0] <= t:
            j += 1
        state = LinkState(
            **{f: getattr((other if f in fields else series)[j if f in fields else i][1], f) for f in FIELDS.values()}
        )
        if not out or out[-1][1] != state:
            out.append((t, state))
    return out


def described(section, trace: LinkTrace, source: str, second: Sequence[tuple[tuple[str, ...], LinkTrace, str]]) -> str:
    """Where each quantity of a home comes from, in words."""
    parts, assumed = [source], set(trace.assumed)
    for quantities, _, name in second:
        if quantities:
            parts.append(f"{', '.join(quantities)} from {name}")
            assumed -= set(quantities)
    for name in FIELDS:
        value = getattr(section, name)
        if value is not None:
            shown = _SHOWN[name](value) if name in _SHOWN else f"{value:g}"
            parts.append(f"{name} {shown}, constant")
        elif name in assumed:
            parts.append(f"{name} assumed")
    return "; ".join(parts)

"""The `cross_traffic:` section as streams, read and checked before anything starts."""

from __future__ import annotations

from testbed import units
from testbed.cluster import LinkState
from testbed.errors import InputError, unknown
from testbed.experiment.loading import LoadedExperiment
from testbed.scenario import cross_traffic as shapes
from testbed.scenario.cross_traffic import Stream


def read_cross_traffic(loaded: LoadedExperiment, homes: tuple[str, ...]) -> tuple[Stream, ...]:
    """All streams of the experiment. Raises InputError."""
    e = loaded.experiment
    streams = []
    for i, section in enumerate(e.cross_traffic):
        key = "cross_traffic", i
        chosen = homes if section.homes == "all" else section.homes
        for home in chosen:
            if home not in homes:
                raise unknown(loaded.where(*key, "homes"), "home", home, homes)
        begin_s, end_s = section.start, e.time_limit if section.stop is None else min(section.stop, e.time_limit)
        if end_s <= begin_s:
            raise InputError(
                loaded.where(*key, "start"),
                f"{begin_s:g} s is not before its end, {end_s:g} s (stop, or the experiment's time_limit)",
            )
        samples = None
        if section.trace is not None:
            samples = shapes.read_rates(loaded.file(section.trace, *key, "trace"))
        directions = ("down", "up") if section.direction == "both" else (section.direction,)
        for home in chosen:
            for direction in directions:
                try:
                    changes = _changes(
                        section, samples, begin_s, end_s, e.time_scale, f"{e.seed}/cross_traffic/{i}/{home}/{direction}"
                    )
                except ValueError as error:
                    raise InputError(loaded.where(*key), str(error)) from None
                streams.append(Stream(home, direction, changes))
    return tuple(streams)


def _changes(section, samples, begin_s: float, end_s: float, time_scale: float, seed: str) -> shapes.Changes:
    if samples is not None:
        return shapes.from_samples(samples, begin_s, end_s, end=section.end, time_scale=time_scale)
    if section.burst is None:
        return shapes.constant(section.rate, begin_s, end_s)
    return shapes.on_off(
        section.rate,
        section.burst,
        section.pause,
        begin_s,
        end_s,
        seed=seed if section.periods == "exponential" else None,
    )


def overload_warnings(streams: tuple[Stream, ...], links: dict[str, list[tuple[float, LinkState]]]) -> list[str]:
    """Homes whose cross traffic alone can fill a link: what shares it with them gets next to nothing then."""
    peaks: dict[tuple[str, str], float] = {}
    for s in streams:
        peaks[s.home, s.direction] = peaks.get((s.home, s.direction), 0.0) + s.peak_bps()
    out = []
    for (home, direction), peak in peaks.items():
        least = min(s.down_bps if direction == "down" else s.up_bps for _, s in links[home])
        if peak >= least:
            out.append(
                f"{home}: up to {units.rate(peak)} of cross traffic fill its {direction}link, "
                f"{units.rate(least)} at the least"
            )
    return out


def described(streams: tuple[Stream, ...]) -> list[str]:
    """A line for each stream, for people."""
    return [
        f"{s.home:10} {s.direction:4}  up to {units.rate(s.peak_bps()):>12}  {len(s.changes)} changes from "
        f"{units.duration(s.changes[0][0]) if s.changes else 'never'} on"
        for s in streams
    ]

"""Make new sets of traces of old ones: draw homes, cut and join in time, scale quantities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from testbed.errors import InputError
from testbed.traces.availability import Availability
from testbed.traces.links import LinkTrace
from testbed.traces.records import EXPECTED, all_possible

Traces = Mapping[str, LinkTrace] | Mapping[str, Availability]
STRATA = ("download", "upload", "rtt", "loss", "available", "name")
_COLUMN = {"download": "down_bps", "upload": "up_bps", "rtt": "rtt_s", "loss": "loss"}


def sample(traces: Traces, count: int, *, seed: int, by: str | None = None) -> dict:
    """`count` traces drawn without repetition, in the order of the file.

    by: draw stratified: the homes are ranked by their mean download, upload, RTT, loss or availability (or
    grouped by the part of their name before the last '-') and as many drawn from each of `count` equal parts
    (each group in proportion), so that the sample's quantiles (shares) are those of the population.

    Raises:
        InputError: fewer traces than asked for, or a stratum that these traces do not have.
    """
    names = list(traces)
    if count > len(names):
        raise InputError("--homes", f"{count} asked for; the file holds {len(names)}")
    random = np.random.RandomState(seed)
    if by is None:
        chosen = random.permutation(len(names))[:count].tolist()
    else:
        groups = _groups(names) if by == "name" else [np.argsort(_means(traces, by), kind="stable").tolist()]
        chosen = []
        for group, quota in zip(groups, _quotas([len(g) for g in groups], count)):
            edges = np.linspace(0, len(group), quota + 1)
            order = group if by != "name" else [group[i] for i in random.permutation(len(group))]
            chosen += [order[int(a + (b - a) * random.random_sample())] for a, b in zip(edges, edges[1:])]
    return {names[i]: traces[names[i]] for i in sorted(chosen)}


def _means(traces: Traces, by: str) -> np.ndarray:
    first = next(iter(traces.values()))
    if by == "available" and isinstance(first, Availability):
        return np.array([t.fraction() for t in traces.values()])  # type: ignore[union-attr]
    if by in _COLUMN and isinstance(first, LinkTrace):
        return np.array([getattr(t, _COLUMN[by]).mean() for t in traces.values()])
    kind = "links" if isinstance(first, LinkTrace) else "availability"
    known = "download, upload, rtt, loss or name" if kind == "links" else "available or name"
    raise InputError("--by", f"{by!r} is no property of {kind}; expected {known}")


def _groups(names: Sequence[str]) -> list[list[int]]:
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        groups.setdefault(name.rpartition("-")[0], []).append(i)
    return list(groups.values())


def _quotas(sizes: list[int], count: int) -> list[int]:
    """`count` in proportion to `sizes`, by largest remainders."""
    exact = [count * size / sum(sizes) for size in sizes]
    quotas = [int(x) for x in exact]
    for i in sorted(range(len(sizes)), key=lambda i: quotas[i] - exact[i])[: count - sum(quotas)]:
        quotas[i] += 1
    return quotas


def cut(trace: LinkTrace | Availability, start_s: float, stop_s: float) -> LinkTrace | Availability:
    """The part of [start_s, stop_s), with `start_s` as its new time 0.

    Raises:
        InputError: the part is empty or lies beyond the trace.
    """
    name = trace.home if isinstance(trace, LinkTrace) else trace.device
    if not 0 <= start_s < stop_s <= trace.span_s * (1 + 1e-12):
        raise InputError("--from, --to", f"{start_s:g} to {stop_s:g} s; expected a part of {name}'s {trace.span_s:g} s")
    origin = None if trace.start_epoch_s is None else trace.start_epoch_s + start_s
    if isinstance(trace, Availability):
        kept = np.clip(trace.intervals_s, start_s, stop_s) - start_s
        kept = kept[kept[:, 1] > kept[:, 0]]
        return replace(trace, intervals_s=kept, span_s=stop_s - start_s, start_epoch_s=origin)
    first = int(np.searchsorted(trace.times_s, start_s, side="right")) - 1
    last = int(np.searchsorted(trace.times_s, stop_s, side="left"))
    times = trace.times_s[first:last] - start_s
    times[0] = 0.0
    return replace(
        trace,
        times_s=times,
        span_s=stop_s - start_s,
        start_epoch_s=origin,
        **{name: getattr(trace, name)[first:last] for name in ("down_bps", "up_bps", "rtt_s", "jitter_s", "loss")},
    )


def splice(parts: Sequence[Traces]) -> dict:
    """The sets of traces one after another: each home's next part begins where its last one ends.

    Raises:
        InputError: the parts are of different kinds, or a home is missing from one of them.
    """
    names = list(parts[0])
    for k, part in enumerate(parts[1:], 2):
        missing = [n for n in names if n not in part] + [n for n in part if n not in names]
        if missing:
            raise InputError(
                "splice", f"{missing[0]!r} is not in both part 1 and part {k}; expected the same names in all parts"
            )
        if type(part[names[0]]) is not type(parts[0][names[0]]):
            raise InputError("splice", f"part {k} holds traces of another kind than part 1")
    return {name: _joined([part[name] for part in parts]) for name in names}


def _joined(parts: list) -> LinkTrace | Availability:
    first, offsets = parts[0], np.cumsum([0.0, *(p.span_s for p in parts)])
    if isinstance(first, LinkTrace):
        columns = {
            name: np.concatenate([getattr(p, name) for p in parts])
            for name in ("down_bps", "up_bps", "rtt_s", "jitter_s", "loss")
        }
        times = np.concatenate([p.times_s + o for p, o in zip(parts, offsets)])
        return replace(first, times_s=times, span_s=float(offsets[-1]), **columns)
    intervals = np.concatenate([p.intervals_s + o for p, o in zip(parts, offsets)])
    whole = []
    for start, stop in intervals.tolist():
        if whole and start <= whole[-1][1]:
            whole[-1][1] = max(stop, whole[-1][1])
        else:
            whole.append([start, stop])
    return replace(first, intervals_s=np.array(whole, dtype=float).reshape(-1, 2), span_s=float(offsets[-1]))


def scale(
    traces: Traces,
    *,
    time: float = 1.0,
    download: float = 1.0,
    upload: float = 1.0,
    rtt: float = 1.0,
    jitter: float = 1.0,
    loss: float = 1.0,
) -> dict:
    """Each quantity times its factor; `time` stretches (above 1) or compresses the time axis.

    Raises:
        InputError: a factor not above 0 (loss and jitter may be 0), or values beyond what a link can be.
    """
    factors = {"down_bps": download, "up_bps": upload, "rtt_s": rtt, "jitter_s": jitter, "loss": loss}
    for name, factor in {"time": time, "download": download, "upload": upload, "rtt": rtt}.items():
        if not factor > 0:
            raise InputError(f"--{name}", f"{factor:g}; expected a factor above 0")
    if min(jitter, loss) < 0:
        raise InputError("--jitter, --loss", "expected factors from 0 on")
    out = {}
    for name, trace in traces.items():
        if isinstance(trace, Availability):
            if any(f != 1 for f in factors.values()):
                raise InputError("scale", "availability has no rates or delays; only --time applies to it")
            out[name] = replace(trace, intervals_s=trace.intervals_s * time, span_s=trace.span_s * time)
            continue
        columns = {field: getattr(trace, field) * f for field, f in factors.items()}
        for field, values in columns.items():
            if not all_possible(field, values):
                raise InputError(
                    f"{name}, {field}", f"up to {values.max():g} after scaling; expected {EXPECTED[field]}"
                )
        out[name] = replace(trace, times_s=trace.times_s * time, span_s=trace.span_s * time, **columns)
    return out

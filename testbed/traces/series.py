"""Several files: one home's log, a file a month, or a home each?"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np

from testbed.traces.links import LinkTrace
from testbed.traces.report import Report

FOLDERS = ("series", "population")
_COLUMNS = ("down_bps", "up_bps", "rtt_s", "jitter_s", "loss")
_LONGEST_GAP = 0.5  # of all files' time, that no file covers: files of one log follow each other


def one_series(traces: Mapping[str, LinkTrace], stems: Sequence[str], options, report: Report) -> dict[str, LinkTrace]:
    """The traces of several files as they are, or joined to one home's.

    They are one series where no file names its home, all have dates, and each begins after the one before has ended
    without a long gap; --folder settles it. Which was taken is noted.

    Raises:
        InputError: a series was asked for, and the files overlap or have no dates.
    """
    dated = all(trace.start_epoch_s is not None for trace in traces.values())
    ordered = sorted(traces.values(), key=lambda trace: trace.start_epoch_s or 0.0)
    # a trace ends with its last sample: what that one is held for may reach into the next file
    ends = [(t.start_epoch_s or 0.0) + float(t.times_s[-1]) for t in ordered]
    starts = [t.start_epoch_s or 0.0 for t in ordered]
    apart = dated and all(start > end for start, end in zip(starts[1:], ends))
    if options.folder == "series" and not apart:
        raise report.error(
            "can't be one series: its files overlap in time" if dated else "can't be one series: it has no dates",
            hint="--folder population reads a home a file",
        )
    gaps = sum(start - end for start, end in zip(starts[1:], ends))
    follows = apart and gaps <= _LONGEST_GAP * (ends[-1] - starts[0])
    unnamed = len(traces) == len(stems) and set(traces) <= {*stems, *traces} and all(n in stems for n in traces)
    if options.folder == "population" or not (options.folder == "series" or (unnamed and follows)):
        if len(traces) > 1:
            report.note(f"{len(stems)} files: a population of {len(traces)} homes (--folder series joins them)")
        return dict(traces)
    name = options.home or os.path.commonprefix(list(stems)).strip("-_. 0123456789") or "home"
    report.note(f"{len(stems)} files follow each other: one series, {name} (--folder population: a home each)")
    return {name: _joined(name, ordered)}


def _joined(name: str, traces: Sequence[LinkTrace]) -> LinkTrace:
    first = traces[0].start_epoch_s or 0.0
    shift = [(t.start_epoch_s or 0.0) - first for t in traces]
    columns = {c: np.concatenate([getattr(t, c) for t in traces]) for c in _COLUMNS}
    rest = {f.name: getattr(traces[0], f.name) for f in fields(LinkTrace)}
    return LinkTrace(
        **rest
        | columns
        | {
            "home": name,
            "times_s": np.concatenate([t.times_s + s for t, s in zip(traces, shift)]),
            "span_s": shift[-1] + traces[-1].span_s,
            "assumed": frozenset.intersection(*(t.assumed for t in traces)),
        }
    )

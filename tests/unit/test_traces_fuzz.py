"""Damaged files never give a traceback, never hang, and never a silently implausible value."""

import contextlib
import os
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
from mutate_traces import mutate

from testbed.errors import InputError
from testbed.traces import LinkTrace, Report
from testbed.traces.reading import read_traces
from testbed.traces.records import PLAUSIBLE_BPS, PLAUSIBLE_S

FIXTURES = sorted(
    p for p in (Path(__file__).parent / "traces").glob("*/**/*") if p.is_file() and "__pycache__" not in p.parts
)
FILES = int(os.environ.get("TESTBED_FUZZ_FILES", "2400"))  # make fuzz-traces: 10,000


def check_link(trace: LinkTrace, report: Report) -> None:
    assert trace.times_s[0] == 0
    assert (np.diff(trace.times_s) > 0).all()
    assert trace.span_s > trace.times_s[-1] or len(trace) == 1
    for name in ("down_bps", "up_bps"):
        rates = getattr(trace, name)
        assert np.isfinite(rates).all()
        assert (rates > 0).all()
        if (rates > PLAUSIBLE_BPS).any():
            assert report.warnings
    for name in ("rtt_s", "jitter_s"):
        delays = getattr(trace, name)
        assert np.isfinite(delays).all()
        assert (delays >= 0).all()
        if (delays > PLAUSIBLE_S).any():
            assert report.warnings
    assert ((trace.loss >= 0) & (trace.loss <= 1)).all()


def check_availability(trace) -> None:
    edges = trace.intervals_s.ravel()
    assert np.isfinite(edges).all()
    assert (np.diff(edges) > 0).all()
    assert not len(edges) or (edges[0] >= 0 and edges[-1] <= trace.span_s * (1 + 1e-9))
    assert 0 <= trace.fraction() <= 1 + 1e-9


@pytest.mark.parametrize("part", range(8))
def test_mutated_files(part, tmp_path):
    read, refusals = 0, []
    for seed in range(part, FILES, 8):
        original = FIXTURES[seed % len(FIXTURES)]
        file = tmp_path / original.name
        file.write_bytes(mutate(original.read_bytes(), seed))
        for options in ({},) if seed % 5 else ({}, {"strict": True}):
            report = Report()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                try:
                    traces = read_traces(file, report=report, **options)
                except InputError as error:
                    refusals.append(str(error))
                    continue
            read += 1
            for trace in traces.values():
                check_link(trace, report) if isinstance(trace, LinkTrace) else check_availability(trace)
        file.unlink()
    # were all files refused (or all read), the mutator or the readers would have lost their grip
    assert read > 50
    assert len(refusals) > 50
    assert all(str(tmp_path) in message for message in refusals)  # each names its file


@pytest.mark.parametrize("seed", range(40))
def test_forced_formats_on_foreign_files(seed, tmp_path):
    from testbed.traces.formats import all_formats

    rng = random.Random(seed)
    original = rng.choice(FIXTURES)
    file = tmp_path / original.name
    file.write_bytes(original.read_bytes())
    for chosen in all_formats():
        options = {"map": ("time=1", "download=2:Mbps")} if chosen.name == "map" else {}
        with contextlib.suppress(InputError):  # anything else is a bug
            read_traces(file, format=chosen.name, **options)


def test_mutated_parquet(tmp_path):
    import pyarrow as pa
    from mutate_traces import cut_out, flip_bytes, garbage, nul_bytes, truncate
    from pyarrow import parquet

    table = pa.table({"avg_d_kbps": range(1000, 1300), "avg_u_kbps": range(100, 400), "avg_lat_ms": [10] * 300})
    parquet.write_table(table, tmp_path / "good.parquet")
    data, file, read = (tmp_path / "good.parquet").read_bytes(), tmp_path / "tiles.parquet", 0
    for seed in range(300):
        rng = random.Random(seed)
        file.write_bytes(rng.choice((cut_out, flip_bytes, garbage, nul_bytes, truncate))(data, rng))
        report = Report()
        with contextlib.suppress(InputError):
            for trace in read_traces(file, report=report).values():
                check_link(trace, report)
            read += 1
    assert read < 100

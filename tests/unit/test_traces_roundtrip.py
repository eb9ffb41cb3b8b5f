"""What is written is read back bit for bit; converting any format keeps its quantiles."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.traces import Availability, LinkTrace, Report, read_availability, read_links
from testbed.traces.reading import read_traces
from testbed.traces.summary import summarise
from testbed.traces.write import write_availability, write_links

FIXTURES = sorted(p for p in (Path(__file__).parent / "traces").glob("*/*") if p.is_file() and p.name != "states.csv")
FIELDS = ("times_s", "down_bps", "up_bps", "rtt_s", "jitter_s", "loss")

names = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12)
starts = st.none() | st.integers(631152000 * 10**6, 4102444800 * 10**6).map(lambda us: us / 1e6)


def numbers(low, high):
    return st.floats(low, high, allow_subnormal=False)


@st.composite
def link_traces(draw):
    """A set of homes whose times begin at 0; all with one start and span, or each with its own."""
    common = draw(st.booleans())
    start, out = draw(starts), {}
    for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        n = draw(st.integers(1, 5))
        times = np.concatenate([[0.0], np.cumsum(draw(st.lists(numbers(1e-3, 1e5), min_size=n - 1, max_size=n - 1)))])
        columns = [
            np.array(draw(st.lists(numbers(low, high), min_size=n, max_size=n)))
            for low, high in ((1e-3, 1e12), (1e-3, 1e12), (0, 600), (0, 600), (0, 1))
        ]
        span = 1e7 if common else float(times[-1]) + draw(numbers(1e-2, 1e5))
        out[name] = LinkTrace(name, times, *columns, span, start)
    return out


@st.composite
def availabilities(draw):
    out = {}
    common, start = draw(st.booleans()), draw(starts)
    for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        edges = np.cumsum(draw(st.lists(numbers(1e-3, 1e5), max_size=8)))
        edges = edges[: len(edges) // 2 * 2].reshape(-1, 2)
        span = 1e7 if common else (float(edges[-1, 1]) if len(edges) else 5.0) + draw(numbers(0, 100))
        out[name] = Availability(name, edges, span, start)
    return out


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(traces=link_traces())
def test_links_are_lossless(tmp_path, traces):
    with (tmp_path / "t.csv").open("w", newline="\n") as out:
        write_links(traces, out)
    again = read_links(tmp_path / "t.csv", strict=True)
    assert list(again) == list(traces)
    for name, trace in traces.items():
        for field in FIELDS:
            assert np.array_equal(getattr(again[name], field), getattr(trace, field)), field
        assert (again[name].span_s, again[name].start_epoch_s) == (trace.span_s, trace.start_epoch_s)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(traces=availabilities())
def test_availability_is_lossless(tmp_path, traces):
    with (tmp_path / "t.csv").open("w", newline="\n") as out:
        write_availability(traces, out)
    again = read_availability(tmp_path / "t.csv", strict=True)
    assert list(again) == list(traces)
    for name, trace in traces.items():
        assert np.array_equal(again[name].intervals_s, trace.intervals_s)
        assert (again[name].span_s, again[name].start_epoch_s) == (trace.span_s, trace.start_epoch_s)


@pytest.mark.parametrize("file", FIXTURES, ids=lambda p: p.name)
def test_convert_keeps_the_quantiles(tmp_path, file):
    first = summarise(read_traces(file), Report())
    traces = read_traces(file)
    with (tmp_path / "t.csv").open("w", newline="\n") as out:
        (write_links if first["kind"] == "links" else write_availability)(traces, out)
    again = summarise(read_traces(tmp_path / "t.csv", strict=True), Report())
    del first["report"], again["report"]
    assert again == first


def test_readable_units_keep_four_digits(tmp_path):
    trace = LinkTrace(
        "a",
        np.array([0.0]),
        np.array([123456789.0]),
        np.array([9876543.0]),
        np.array([0.0123456]),
        np.array([0.00012341]),
        np.array([0.00123456]),
        60.0,
    )
    text = io.StringIO()
    write_links({"a": trace}, text, readable=True)
    assert text.getvalue() == (
        "# span_s: 60\ntime_s,home,download_mbps,upload_mbps,rtt_ms,jitter_ms,loss_pct\n"
        "0,a,123.5,9.877,12.35,0.1234,0.1235\n"
    )


def test_single_precision_of_large_files_is_lossless_too(tmp_path, monkeypatch):
    from testbed.traces import tabular

    monkeypatch.setattr(tabular, "COMPACT_ABOVE", 0)
    rows = "".join(f"{t},{1e7 + t / 7},{0.0123 + t / 1e5}\n" for t in range(200))
    (tmp_path / "a.csv").write_text("time_s,download_bps,rtt_s\n" + rows)
    trace = read_links(tmp_path / "a.csv")["a"]
    assert trace.down_bps.dtype == np.float32
    with (tmp_path / "b.csv").open("w") as out:
        write_links({"a": trace}, out)
    again = read_links(tmp_path / "b.csv")["a"]
    assert np.array_equal(again.down_bps, trace.down_bps)
    assert np.array_equal(again.rtt_s, trace.rtt_s)

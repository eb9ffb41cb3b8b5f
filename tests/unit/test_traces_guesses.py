"""What a file does not say is told on evidence or refused: nothing else than rates ever becomes a rate."""

import json
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.errors import InputError
from testbed.traces import LinkTrace, Report, read_links
from testbed.traces.reading import read_traces

START = datetime(2024, 3, 1)


def column(draw, what: str, n: int) -> list[str]:
    """n cells of that kind."""
    if what == "counts":
        return [str(draw(st.integers(0, 500))) for _ in range(n)]
    if what == "bytes":
        return [str(draw(st.integers(10**4, 10**10))) for _ in range(n)]
    if what == "ids":
        first = draw(st.integers(1, 10**9))
        return [str(first + k) for k in range(n)]
    if what == "dates":
        return [(START + timedelta(days=k)).strftime(draw(st.sampled_from(["%Y%m%d"]))) for k in range(n)]
    value, out = draw(st.floats(5, 35)), []  # temperatures
    for _ in range(n):
        value = min(max(value + draw(st.floats(-0.4, 0.4)), 1.0), 40.0)
        out.append(f"{value:.1f}")
    return out


@st.composite
def tables(draw):
    n = draw(st.integers(6, 40))
    what = draw(st.sampled_from(["counts", "bytes", "ids", "dates", "temperatures"]))
    cells = column(draw, what, n)
    times = draw(st.sampled_from(["stamp", "epoch", "relative", "none"]))
    stamps = {
        "stamp": [(START + timedelta(minutes=5 * k)).isoformat(" ") for k in range(n)],
        "epoch": [str(1_709_251_200 + 300 * k) for k in range(n)],
        "relative": [str(5 * k) for k in range(n)],
        "none": None,
    }[times]
    others = [column(draw, what, n) for _ in range(draw(st.integers(0, 2)))]
    columns = ([stamps] if stamps else []) + [cells, *others]
    names = (["time"] if stamps else []) + [
        *draw(st.permutations(["download", "upload", "value", "total"]))[: len(columns)]
    ]
    delimiter = draw(st.sampled_from([",", ";", "\t", " ", "|"]))
    if delimiter == " " and times == "stamp":
        delimiter = ","
    lines = [delimiter.join(row) for row in zip(*columns)]
    if draw(st.booleans()) and len(columns) > 1:
        lines.insert(0, delimiter.join(names[: len(columns)]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return draw(st.sampled_from(["", "\ufeff"])) + end.join(lines) + end


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=tables())
def test_no_counts_dates_ids_temperatures_or_bytes_become_a_rate(text, tmp_path_factory):
    file = tmp_path_factory.mktemp("x") / "log.csv"
    file.write_text(text, newline="")
    try:
        traces = read_traces(file, report=Report())
    except InputError:
        return
    assert not any(isinstance(t, LinkTrace) for t in traces.values()), text[:300]


def bidir(*sums) -> str:
    """An iperf3 result whose only interval has these sums, each under the key 'sum'."""
    texts = ",".join(f'"sum":{json.dumps({"start": 0, "end": 1, "omitted": False, **s})}' for s in sums)
    return (
        '{"start":{"timestamp":{"timesecs":1700000000},"test_start":{"protocol":"TCP","reverse":0,"bidir":1}},'
        f'"intervals":[{{"streams":[],{texts}}}]}}'
    )


def test_iperf3_sums_of_both_directions_under_one_key(tmp_path):
    up, down = {"bits_per_second": 20e6, "sender": True}, {"bits_per_second": 90e6, "sender": False}
    for order in ((up, down), (down, up)):
        (tmp_path / "x.json").write_text(bidir(*order))
        state = read_links(tmp_path / "x.json")["x"].at(0)
        assert (state.down_bps, state.up_bps) == (90e6, 20e6)


def test_iperf3_sums_that_nothing_tells_apart(tmp_path):
    (tmp_path / "x.json").write_text(bidir({"bits_per_second": 20e6}, {"bits_per_second": 90e6}))
    with pytest.raises(InputError, match="stands more than once"):
        read_links(tmp_path / "x.json")


@pytest.mark.parametrize(
    "text",
    [
        '{"timestamp":"2024-03-01T00:00:00Z","download":{"bandwidth":1000000},"upload":{"bandwidth":200000},'
        '"upload":{"bandwidth":300000}}',
        '{"timestamp":"2024-03-01T00:00:00Z","download":{"bandwidth":1000000,"bandwidth":5},"upload":{"bandwidth":2}}',
        '{"time":"2024-03-01T00:00:00Z","download_mbps":50,"download_mbps":60,"ping_ms":9}',
        '{"time":"2024-03-01T00:00:00Z","Download":50.1,"download":60.2,"ping_ms":9}',
        '{"metadata":{"gap_seconds":60,"gap_seconds":600},"data":[1,0,1]}',
    ],
)
def test_equal_keys_are_never_merged(tmp_path, text):
    (tmp_path / "x.json").write_text(text + "\n")
    with pytest.raises(InputError, match="times in one object|twice|different values|names 2 columns"):
        read_traces(tmp_path / "x.json")


def test_counts_beside_cells_with_units(tmp_path):
    (tmp_path / "x.csv").write_text(
        "timestamp,dns,upload,download,packketloss,min,max,average\n"
        + "".join(f"2024-03-01 00:{m:02}:00,1,4,4,0.0%,15ms,17ms,16ms\n" for m in range(9))
    )
    with pytest.raises(InputError, match="no measurement stays the same|whole numbers") as refused:
        read_links(tmp_path / "x.csv")
    assert str(refused.value).endswith("--map rtt=average --map loss=packketloss")
    assert "download=download:UNIT" in str(refused.value)
    mapped = ("time=timestamp", "download=download:Mbps", "upload=upload:Mbps", "rtt=average", "loss=packketloss")
    state = read_links(tmp_path / "x.csv", map=mapped)["x"].at(0)
    assert (state.down_bps, state.rtt_s, state.loss) == (4e6, 0.016, 0)


@pytest.mark.parametrize(
    ("header", "row", "doubt"),
    [
        ("date,download,upload", "2024-03-0{0},1{2}.{1},{2}.5", "amounts of data"),  # GB a day
        ("time,download,upload,ping", "2024-03-{:02} 12:00,{}0.5,1{}.5,12", "only rise"),
        ("time,download,upload,ping", "2024-03-{:02} 12:00,94{}12345,9{}12345,12.5", "more than one|whole numbers"),
        ("time,download,upload,ping,loss", "2024-03-{0:02} 12:00,90.{0} Mbps,9{0}.5 Mbps,1{2}.5,0.5", "a share or %"),
    ],
)
def test_without_evidence_the_map_that_settles_it_is_told(tmp_path, header, row, doubt):
    rows = [row.format(k, k, 9 - k) for k in range(1, 9)]
    (tmp_path / "x.csv").write_text("\n".join([header, *rows]) + "\n")
    with pytest.raises(InputError, match=doubt) as refused:
        read_links(tmp_path / "x.csv")
    assert "--map time=" in str(refused.value)
    assert "--map download=download" in str(refused.value)


def test_what_was_guessed_is_kept(tmp_path):
    (tmp_path / "x.csv").write_text("time,download,ping\n2024-03-01 12:00,90.5,11\n2024-03-01 13:00,80.25,12\n")
    report = Report()
    read_links(tmp_path / "x.csv", report=report)
    assert [g.partition(" ")[0] for g in report.as_dict()["guessed"]] == ["download", "ping"]

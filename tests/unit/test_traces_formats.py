"""Every format: a file in its true shape, its exact values and units, and the trap of the wrong unit."""

from pathlib import Path

import numpy as np
import pytest

from testbed.errors import InputError
from testbed.traces import Report, read_availability, read_links
from testbed.traces.formats import all_formats

LINKS = Path(__file__).parent / "traces" / "links"
AVAILABILITY = Path(__file__).parent / "traces" / "availability"

# file -> (format, home, times, download, upload, rtt, jitter, loss); None where the format lacks a quantity
EXACT = {
    "testbed.csv": (
        "testbed",
        "a",
        [0, 60],
        [50e6, 40e6],
        [8e6, 7.5e6],
        [0.020, 0.025],
        [0.0015, 0.002],
        [0.005, 0.01],
    ),
    "speedtest-cli.csv": (
        "speedtest-cli-csv",
        "speedtest-cli",
        [0, 3599.143671989441],
        [5042935.898849588, 3795661.25],
        [5660478.948113084, 5925248.5],
        [0.044386, 0.058624],
        None,
        None,
    ),
    "speedtest-cli-noheader.csv": (
        "speedtest-cli-csv",
        "speedtest-cli-noheader",
        [0, 3600],
        [5042935.898849588, 4042935.898849588],
        [5660478.948113084, 5560478.948113084],
        [0.044386, 0.045386],
        None,
        None,
    ),
    "speedtest-cli.json": (
        "speedtest-cli-json",
        "speedtest-cli",
        [0, 3600],
        [93158452.66, 80e6],
        [24979542.1, 20e6],
        [0.014705, 0.0155],
        None,
        None,
    ),
    "ookla.json": ("ookla-json", "ookla", [0], [12005673 * 8], [1319556 * 8], [0.011622], [0.000524], [0.0078125]),
    "ookla.jsonl": (
        "ookla-json",
        "ookla",
        [0, 7200],
        [12005673 * 8, 88e6],
        [1319556 * 8, 10e6],
        [0.011622, 0.013],
        [0.000524, 0.0015],
        [0.0078125, 0.0078125],
    ),
    "ookla.csv": (
        "ookla-csv",
        "ookla",
        [0, 3600],
        [11644612 * 8, 92e6],
        [2339553 * 8, 18e6],
        [0.00941, 0.00971],
        [0.00033, 0.00043],
        [0, 0],
    ),
    "ookla.tsv": ("ookla-csv", "ookla", [0], [11644612 * 8], [2339553 * 8], [0.00941], [0.00033], [0.015]),
    "ookla-dated.csv": (
        "ookla-csv",
        "ookla-dated",
        [0, 60],
        [250338 * 8, 1054885 * 8],
        [2758335 * 8, 1796130 * 8],
        [0.035978, 0.03543],
        [0.025872, 0.017364],
        [0.00334448, 0.00334448],
    ),
    "ookla-web.csv": (
        "ookla-web",
        "ookla-web",
        [0, 14400],
        [109.16e6, 105.91e6],
        [7.83e6, 8.65e6],
        [0.014, 0.015],
        None,
        None,
    ),
    "ookla-app.csv": (
        "ookla-app",
        "ookla-app",
        [0, 3540],
        [11.524e6, 12.848e6],
        [1.329e6, 1.369e6],
        [0.048, 0.039],
        None,
        None,
    ),
    "murakami-ookla.jsonl": (
        "ookla-json",
        "murakami-ookla",
        [0],
        [2005673 * 8],
        [319556 * 8],
        [0.011622],
        [0.011084],
        [0.0078125],
    ),
    "fast-cli.json": ("fast-cli-json", "fast-cli", [0], [93e6], [0.88e6], [0.012], None, None),
    "fast-cli-units.json": ("fast-cli-json", "fast-cli-units", [0], [1.2e9], [880e3], [0.009], None, None),
    "librespeed.csv": (
        "librespeed-csv",
        "librespeed",
        [0, 3600],
        [94.51e6, 90.01e6],
        [38.88e6, 37.5e6],
        [0.01355, 0.01455],
        [0.00125, 0.00175],
        None,
    ),
    "librespeed-noheader.csv": (
        "librespeed-csv",
        "librespeed-noheader",
        [0, 3600],
        [94.51e6, 90.01e6],
        [38.88e6, 37.5e6],
        [0.01355, 0.01455],
        [0.00125, 0.00175],
        None,
    ),
    "librespeed.json": ("librespeed-json", "librespeed", [0], [94.51e6], [38.88e6], [0.01355], [0.00125], None),
    "iperf3.json": ("iperf3-json", "iperf3", [0, 1, 2], None, [10e6, 8e6, 8e3], [0.0205, 0.031, 0.031], None, None),
    "iperf3-udp.json": ("iperf3-json", "iperf3-udp", [0, 1], [1e6, 2e6], None, None, [0.0005, 0.00025], [0.01, 0.02]),
    "ndt7.json": ("ndt7", "ndt7", [0], [93.907644425550366e6], [18.5534954544473233e6], [0.010583], None, [0.00129]),
    "ndt7-new.json": ("ndt7", "ndt7-new", [0], [393.5e6], [38.25e6], [0.00825], None, [0.005]),
    "ndt7-server.json": ("ndt7", "ndt7-server", [0], [10e6], None, [0.015], None, [0.005]),
    "unified_downloads.csv": (
        "mlab-unified-csv",
        "client-00001",
        [0, 3600],
        [93.5e6, 80.25e6],
        None,
        [0.01225, 0.0135],
        None,
        [0.015, 0],
    ),
    "unified_uploads.json": ("mlab-unified-json", "client-00001", [0], None, [18.5e6], [0.0125], None, None),
    "tiles.csv": ("ookla-tiles", "tile-00001", [0], [470.368e6], [19.789e6], [0.011], None, None),
    "link.down": ("mahimahi", "link", [0, 1], [144e3, 48e3], [36e3, 12e3], None, None, None),
    "link.up": ("mahimahi", "link", [0, 1], [144e3, 48e3], [36e3, 12e3], None, None, None),
    "pensieve": ("pensieve", "pensieve", [0, 1.5, 3, 4.5], [2.5e6, 0.75e6, 8e3, 1.25e6], None, None, None, None),
    "oboe.txt": ("oboe", "oboe", [0, 0.459, 0.935], [3.1685e6, 2e6, 3.18325e6], None, None, None, None),
    "generic.csv": ("table", "generic", [0, 3600], [100e6, 90e6], [8e6, 7.2e6], [0.020, 0.025], None, None),
    "simple.log": (
        "text-log",
        "simple",
        [0, 1200],
        [31.36e6, 47.06e6],
        [4.83e6, 2.21e6],
        [0.018459, 0.017821],
        None,
        None,
    ),
    "netrics.csv": (
        "netrics",
        "Hyde Park",
        [0, 3600],
        [940.5e6, 930.5e6],
        [41.5e6, 40.5e6],
        [0.0075, 0.0085],
        [0.00125, 0.0015],
        [0.005, 0.005],
    ),
    "g-nettrack.csv": (
        "g-nettrack",
        "g-nettrack",
        [0, 1, 2],
        [7e6, 8e3, 5e6],
        [100e3, 8e3, 50e3],
        [0.08, 0.08, 0.08],
        [0.004, 0.004, 0.004],
        [0, 0, 0],
    ),
    "ofcom.csv": ("ofcom-panel", "FTTC-00001", [0], [66.5e6], [18.5e6], [0.0115], [0.00025], [0.0005]),
    "tespeed.csv": ("tespeed", "tespeed", [0, 2041], [31.27e6, 29.21e6], [5.85e6, 5.81e6], None, None, None),
    "objects.json": (
        "json-table",
        "objects",
        [0, 5280],
        [0.63e6, 0.57e6],
        [1.02e6, 1.7e6],
        [0.4159, 0.4538],
        [0.1491, 0.3695],
        [0, 0.0685],
    ),
}
FIELDS = ("down_bps", "up_bps", "rtt_s", "jitter_s", "loss")
ASSUMED = ("download", "upload", "rtt", "jitter", "loss")


@pytest.mark.parametrize("name", EXACT)
def test_exact_values(name):
    format, home, times, *columns = EXACT[name]
    report = Report()
    traces = read_links(LINKS / name, report=report)
    assert report.format == format
    trace = traces[home]
    assert trace.times_s == pytest.approx(times, rel=1e-9)
    for field, quantity, expected in zip(FIELDS, ASSUMED, columns):
        if expected is None:
            assert quantity in report.assumed
        else:
            assert getattr(trace, field) == pytest.approx(expected, rel=1e-12)
            assert quantity not in report.assumed or "of" in report.assumed[quantity]


def test_every_link_format_has_a_fixture():
    covered = {format for format, *_ in EXACT.values()}
    covered |= {"map", "ookla-tiles-parquet", "speedtest-cli-table"}  # tested below
    covered |= {"pattern"}  # tested in test_traces_home_logs.py, these in test_traces_home_availability.py
    covered |= {"home-assistant-links", "ping-log", "ripe-atlas", "rtt-columns", "rtt-table"}
    covered |= {"fcc-httpgetmt", "fcc-httppostmt", "fcc-latency", "fcc-udpjitter"}
    assert {f.name for f in all_formats() if f.kind == "links"} == covered


def test_fcc_tables_are_joined_by_unit():
    report = Report()
    traces = read_links(LINKS / "fcc", report=report)
    assert set(traces) == {"386", "390"}
    one = traces["386"]
    # bytes/s to bit/s; the last row of a test counts; the failed test at 06:10 is dropped
    assert one.at(0).down_bps == 12_500_000 * 8
    assert one.at(12 * 3600).down_bps == 10_000_000 * 8
    assert one.at(7 * 3600).down_bps == 12_500_000 * 8
    assert one.at(60).up_bps == 1_250_000 * 8
    # µs to s; loss = failures / (successes + failures)
    assert one.at(3000).rtt_s == 0.0125
    assert one.at(10_200).rtt_s == 0.0126
    assert one.at(10_200).jitter_s == 0.00045
    assert one.at(3000).loss == 10 / 2000
    assert traces["390"].at(5000).down_bps == 2_500_000 * 8
    assert report.failed == 2


@pytest.mark.parametrize(
    ("file", "format", "field", "value"),
    [
        ("curr_httpgetmt.csv", "fcc-httpgetmt", "down_bps", 100e6),
        ("curr_httppostmt.csv", "fcc-httppostmt", "up_bps", 10e6),
    ],
)
def test_fcc_table_alone(file, format, field, value):
    report = Report()
    trace = read_links(LINKS / "fcc" / file, report=report)["386"]
    assert report.format == format
    assert getattr(trace.at(0), field) == value


def test_fcc_latency_alone_is_no_link_trace():
    with pytest.raises(InputError, match="but no rate"):
        read_links(LINKS / "fcc" / "curr_udplatency.csv")


def test_mlab_downloads_and_uploads_are_joined(tmp_path):
    for name in ("unified_downloads.csv", "unified_uploads.json"):
        (tmp_path / name).write_bytes((LINKS / name).read_bytes())
    traces = read_links(tmp_path)
    assert set(traces) == {"client-00001", "client-00002"}
    assert traces["client-00001"].at(40).down_bps == 93.5e6
    assert traces["client-00001"].at(40).up_bps == 18.5e6


def test_tiles_in_parquet(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(
        {
            "quadkey": ["0313", "0314", "0315"],
            "avg_d_kbps": [470368, 12906, 0],
            "avg_u_kbps": [19789, 10357, 5],
            "avg_lat_ms": [11, 71, 9],
            "tests": [1, 2, 3],
        }
    )
    parquet.write_table(table, tmp_path / "tiles.parquet")
    report = Report()
    traces = read_links(tmp_path / "tiles.parquet", report=report)
    assert report.format == "ookla-tiles-parquet"
    assert traces["tile-00001"].at(0).down_bps == 470.368e6
    assert traces["tile-00002"].at(0).up_bps == 10.357e6
    assert traces["tile-00002"].at(0).rtt_s == 0.071
    assert report.failed == 1
    assert "quadkey" in report.dropped


def test_population_is_drawn_when_large(tmp_path):
    rows = "".join(f'{i:016d},"P",{10_000 + i},2000,10,1,1\n' for i in range(500))
    (tmp_path / "t.csv").write_text("quadkey,tile,avg_d_kbps,avg_u_kbps,avg_lat_ms,tests,devices\n" + rows)
    report = Report()
    traces = read_links(tmp_path / "t.csv", report=report, most=50)
    assert len(traces) == 50
    rates = [t.at(0).down_bps for t in traces.values()]
    assert (min(rates), max(rates)) == (10_000e3, 10_499e3)
    assert any("500" in note for note in report.notes)


def test_speedtest_cli_results_as_a_table(tmp_path):
    (tmp_path / "s.csv").write_text(
        "download,upload,ping,timestamp,bytes_sent,bytes_received\n"
        "153683697.64,24094161.35,20.012,2023-03-23T18:16:47.241738Z,30818304,193146188\n"
    )
    report = Report()
    state = read_links(tmp_path / "s.csv", report=report)["s"].at(0)
    assert report.format == "speedtest-cli-table"
    assert (state.down_bps, state.up_bps) == (153683697.64, 24094161.35)
    assert state.rtt_s == pytest.approx(0.020012)


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        (("time=1", "download=2:Mbps", "upload=3:kbit/s", "rtt=4:us", "loss=5:%"), (50e6, 800e3, 0.02, 0.0, 0.01)),
        (("time=1", "download=2:MB/s", "upload=3:kB/s", "rtt=4:us", "jitter=5:ms"), (400e6, 6.4e6, 0.02, 0.001, 0.0)),
    ],
)
def test_map_of_columns(tmp_path, columns, state):
    (tmp_path / "x.txt").write_text("1709316000|50|800|20000|1\n1709316060|50|800|20000|1\n")
    got = read_links(tmp_path / "x.txt", map=columns)["x"].at(0)
    assert (got.down_bps, got.up_bps, got.rtt_s, got.jitter_s, got.loss) == pytest.approx(state)


def test_map_by_name_date_and_clock(tmp_path):
    (tmp_path / "x.csv").write_text(
        "day,clock,speed,house\n13.05.2025,01:00:46,94,north\n13.05.2025,02:00:46,90,south\n"
    )
    traces = read_links(tmp_path / "x.csv", map=("time=day+clock", "download=speed:Mbps", "home=house"))
    assert set(traces) == {"north", "south"}
    assert traces["north"].start_epoch_s == 1747098046


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("downlaod=2:Mbps", "unknown quantity 'downlaod'"),
        ("download=sped:Mbps", "did you mean 'speed'"),
        ("download=speed:MHz", "'MHz' is no unit of download"),
        ("download=9:Mbps", "expected a number from 1 to 3"),
        ("time=t:parsec", "no unit of time"),
        ("rtt=t:ms", "but no rate"),
    ],
)
def test_map_refuses(tmp_path, entry, message):
    (tmp_path / "x.csv").write_text("t,speed,ping\n0,1,2\n1,2,3\n")
    with pytest.raises(InputError, match=message):
        read_links(tmp_path / "x.csv", map=(entry,))


# file, field, the number in it, the unit's factor, and the factors of the units it is confused with
TRAPS = [
    ("testbed.csv", "up_bps", "8000", 1e3, (1, 8e3, 1e6)),  # kbps
    ("testbed.csv", "rtt_s", "20", 1e-3, (1, 1e-6)),
    ("testbed.csv", "loss", "0.5", 1e-2, (1,)),
    ("speedtest-cli.csv", "down_bps", "5042935.898849588", 1, (8, 1e3, 1e6)),  # bit/s
    ("speedtest-cli.csv", "rtt_s", "44.386", 1e-3, (1, 1e-6)),
    ("speedtest-cli-noheader.csv", "down_bps", "5042935.898849588", 1, (8,)),
    ("speedtest-cli.json", "down_bps", "93158452.66", 1, (8, 1e6)),
    ("ookla.json", "down_bps", "12005673", 8, (1, 1e3)),  # bytes/s
    ("ookla.json", "loss", "0.78125", 1e-2, (1,)),
    ("ookla.jsonl", "up_bps", "1319556", 8, (1,)),
    ("ookla.csv", "down_bps", "11644612", 8, (1,)),
    ("ookla.tsv", "up_bps", "2339553", 8, (1,)),
    ("ookla-dated.csv", "down_bps", "250338", 8, (1,)),
    ("ookla-web.csv", "down_bps", "109.16", 1e6, (1, 8e6)),
    ("ookla-app.csv", "down_bps", "11524", 1e3, (1, 8e3, 1e6)),  # kbit/s
    ("murakami-ookla.jsonl", "down_bps", "2005673", 8, (1,)),  # whatever DownloadUnit says
    ("fast-cli.json", "up_bps", "0.88", 1e6, (1e3, 8e6)),  # whatever uploadUnit says
    ("fast-cli-units.json", "up_bps", "880", 1e3, (1e6, 8e3)),
    ("librespeed.csv", "down_bps", "94.51", 1e6, (1, 8e6)),
    ("librespeed.json", "up_bps", "38.88", 1e6, (1, 8e6)),
    ("iperf3.json", "up_bps", "10000000", 1, (8, 1e3)),
    ("iperf3.json", "rtt_s", "20500", 1e-6, (1e-3, 1)),  # µs
    ("iperf3-udp.json", "jitter_s", "0.5", 1e-3, (1, 1e-6)),
    ("ndt7.json", "down_bps", "93.907644425550366", 1e6, (8e6, 1)),
    ("ndt7.json", "rtt_s", "10.583", 1e-3, (1, 1e-6)),
    ("ndt7-new.json", "up_bps", "38.25", 1e6, (8e6,)),
    ("ndt7-server.json", "rtt_s", "15000", 1e-6, (1e-3,)),
    ("unified_downloads.csv", "down_bps", "93.5", 1e6, (8e6, 1)),
    ("unified_downloads.csv", "loss", "0.015", 1, (1e-2,)),  # a share, not %
    ("unified_uploads.json", "rtt_s", "12.5", 1e-3, (1,)),
    ("tiles.csv", "down_bps", "470368", 1e3, (1, 8e3, 1e6)),  # kbps
    ("pensieve", "down_bps", "2.5", 1e6, (1e3, 8e6)),
    ("oboe.txt", "down_bps", "3168.5", 1e3, (1e6, 8e3)),
    ("generic.csv", "down_bps", "12,5", 8e6, (1e6,)),  # MB/s
    ("generic.csv", "up_bps", "1000", 8e3, (1e3, 1)),  # kB/s
    ("generic.csv", "rtt_s", "0,02", 1, (1e-3,)),  # s
    ("simple.log", "down_bps", "31.36", 1e6, (8e6,)),
    ("netrics.csv", "down_bps", "940.5", 1e6, (1, 8e6)),
    ("netrics.csv", "loss", "0.5", 1e-2, (1,)),
    ("g-nettrack.csv", "down_bps", "7000", 1e3, (1, 8e3)),
    ("ofcom.csv", "loss", "0.0005", 1, (1e-2,)),
    ("tespeed.csv", "up_bps", "5.85", 1e6, (8e6,)),
    ("objects.json", "rtt_s", "415.9", 1e-3, (1,)),
    ("fcc/curr_httpgetmt.csv", "down_bps", "12500000", 8, (1,)),
    ("fcc/curr_httppostmt.csv", "up_bps", "1250000", 8, (1,)),
]


@pytest.mark.parametrize(("name", "field", "number", "factor", "wrong"), TRAPS)
def test_wrong_unit_trap(name, field, number, factor, wrong):
    assert number in (LINKS / name).read_text()
    trace = next(iter(read_links(LINKS / name).values()))
    value, plain = getattr(trace, field)[0], float(number.replace(",", "."))
    assert value == pytest.approx(plain * factor, rel=1e-12)
    assert all(value != pytest.approx(plain * other, rel=1e-3) for other in wrong)


@pytest.mark.parametrize(
    "text",
    [
        "0 3168.5\n1 2000\n2 3183\n3 3000\n".replace(" 3168.5", " 31685")
        .replace("2000", "20000")
        .replace("3183", "31830")
        .replace("3000", "30000"),  # seconds and kbit/s
        "0 2.5\n400 3.5\n900 2.5\n1400 1.25\n",  # ms and Mbit/s
    ],
)
def test_two_columns_in_mixed_units_are_not_guessed(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(InputError, match="columns can't be told"):
        read_links(tmp_path / "x")


def test_forcing_the_wrong_two_column_format_warns(tmp_path):
    report = Report()
    read_links(LINKS / "oboe.txt", format="pensieve", report=report)
    assert any("right" in warning for warning in report.warnings)


def test_rates_of_unknown_unit_are_refused_where_two_fit(tmp_path):
    (tmp_path / "x.csv").write_text(
        "timestamp,download,upload,ping\n2024-01-01 00:00:00,90000,9000\n2024-01-01 01:00:00,80000,8000\n"
    )  # kbit/s, or bytes/s?
    with pytest.raises(InputError, match="could be more than one"):
        read_links(tmp_path / "x.csv")


def test_rates_of_unknown_unit_are_told_with_a_warning(tmp_path):
    (tmp_path / "x.csv").write_text(
        "timestamp,download,upload,ping\n2024-01-01 00:00:00,90,9.5,11\n2024-01-01 01:00:00,80.5,8,12.5\n"
    )
    report = Report()
    assert read_links(tmp_path / "x.csv", report=report)["x"].at(0).down_bps == 90e6
    assert any("'download' is not stated: read as Mbit/s" in w for w in report.warnings)
    with pytest.raises(InputError, match="--strict refuses"):
        read_links(tmp_path / "x.csv", strict=True)


# file -> (format, device -> intervals, span)
INTERVALS = {
    "testbed.csv": ("testbed-availability", {"a": [[0, 3600], [7200, 10800]], "b": [[100, 200.5]], "never": []}, 86400),
    "unix.csv": ("testbed-availability", {"unix": [[0, 5921], [6398, 23048]]}, 23048),
    "outages.csv": ("testbed-availability", {"home1": [[600, 1200]]}, 1800),
    "events.csv": ("events", {"a": [[0, 20], [50, 100]], "b": [[0, 10], [60, 100]]}, 100),
    "preemptions.csv": ("events", {"node1": [[0, 60], [120, 180]], "node2": [[0, 180]]}, 180),  # ms
    "preemptions.jsonl": ("events-json", {"node-0": [[0, 180]], "node-1": [[0, 120]]}, 180),
    "status.csv": ("events", {"host1": [[0, 480], [720, 960], [8040, 8520]]}, 8520),
    "counts.txt": ("node-counts", {"node-1": [[0, 240]], "node-2": [[0, 120], [180, 240]], "node-3": [[60, 120]]}, 240),
    "counts-hours.csv": ("node-counts", {"node-1": [[108, 5292]], "node-2": [[108, 1800]]}, 5292),
    "counts-ms.csv": ("node-counts", {"node-1": [[0, 240]], "node-2": [[0, 60], [120, 240]]}, 240),
    "spot.json": ("spot-trace", {"spot": [[300, 900], [1200, 1500]]}, 1500),
    "spot-counts.json": ("spot-trace", {"node-1": [[0, 900]], "node-2": [[0, 600]], "node-3": [[300, 600]]}, 1200),
    "fedscale.csv": ("fedscale-csv", {"7": [[0, 300], [600, 900]]}, 1000),
    "flash.json": ("flash", {"17": [[1800, 5400], [7200, 9000]], "18": []}, 10800),
    "stunner.log": ("stunner", {"dev-1": [[0, 1200], [2400, 3000]]}, 3000),
    "event_trace.tab": ("failure-trace-archive", {"node-655": [[150900, 154500]], "node-656": [[0, 150900]]}, 154500),
    "slots.json": ("probe-slots", {"slots": [[0, 900], [1800, 2700]]}, 2700),
}


@pytest.mark.parametrize("name", INTERVALS)
def test_exact_intervals(name):
    format, devices, span = INTERVALS[name]
    report = Report()
    traces = read_availability(AVAILABILITY / name, report=report)
    assert report.format == format
    assert {d: t.intervals_s.tolist() for d, t in traces.items()} == devices
    assert {t.span_s for t in traces.values()} == {span}


def test_every_availability_format_has_a_fixture():
    covered = {format for format, *_ in INTERVALS.values()} | {"fedscale-json"}
    # tested in test_traces_home_availability.py
    covered |= {"home-assistant", "last-reboot", "prometheus", "toggles", "uptimerobot"}
    assert {f.name for f in all_formats() if f.kind == "availability"} == covered


def test_fedscale_devices_have_spans_of_their_own():
    traces = read_availability(AVAILABILITY / "fedscale.json")
    assert traces["0"].intervals_s.tolist() == [[0, 300], [600, 900]]
    assert traces["1"].intervals_s.tolist() == [[0, 50], [400, 500]]  # active until finish_time
    assert (traces["0"].span_s, traces["1"].span_s) == (1000, 500)
    assert not traces["1"].available(520 + 50)


def test_pickles_are_never_loaded(tmp_path):
    import pickle

    (tmp_path / "client_behave_trace").write_bytes(pickle.dumps({1: {"active": [0], "inactive": [5]}}))
    with pytest.raises(InputError, match="Python pickle.*\n.*never read"):
        read_availability(tmp_path / "client_behave_trace")


def test_rules_decide_what_is_available():
    charging = read_availability(AVAILABILITY / "flash.json", rule="charging")["17"]
    assert charging.intervals_s.tolist() == [[600, 9000]]
    battery = read_availability(AVAILABILITY / "stunner.log", rule="battery >= 60 and not mobile")["dev-1"]
    assert battery.intervals_s.tolist() == [[600, 1800], [2400, 3000]]
    states = read_availability(AVAILABILITY / "states.csv", rule="state = charging")
    assert {d: t.intervals_s.tolist() for d, t in states.items()} == {"p1": [[0, 100]], "p2": [[200, 300]]}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("charging and", "ends too early"),
        ("charging wifi", "unexpected 'wifi'"),
        ("(charging", "ends too early"),
        ("charging & wifi", "can't read '& wifi'"),
        ("chargin", "did you mean 'charging'"),
        ("not " * 60 + "wifi", "nested too deeply"),
    ],
)
def test_bad_rules(rule, message):
    with pytest.raises(InputError, match=message):
        read_availability(AVAILABILITY / "flash.json", rule=rule)


def test_states_need_a_rule():
    with pytest.raises(InputError, match="states charging, wifi; which one is available"):
        read_availability(AVAILABILITY / "states.csv")


def test_time_unit_of_counts_can_be_stated():
    traces = read_availability(AVAILABILITY / "counts-hours.csv", map=("time=1:s",))
    assert traces["node-1"].span_s == pytest.approx(1.47)


def test_kinds_are_not_mixed_up():
    with pytest.raises(InputError, match="which holds availability; expected links"):
        read_links(AVAILABILITY / "testbed.csv")
    with pytest.raises(InputError, match="which holds links; expected availability"):
        read_availability(LINKS / "ookla.json")
    with pytest.raises(InputError, match="did you mean 'ookla-json'"):
        read_links(LINKS / "ookla.json", format="ookla-jsn")
    with pytest.raises(InputError, match="format 'flash' is for availability"):
        read_links(LINKS / "ookla.json", format="flash")


def test_directory_of_files_gives_a_home_each(tmp_path):
    for k in range(3):
        (tmp_path / f"trace_{k}.log").write_text("".join(f"{t}\t{k + 1 + t / 10:.4f}\n" for t in range(5)))
    (tmp_path / "README.md").write_text("about")
    traces = read_links(tmp_path)
    assert {n: t.at(0).down_bps for n, t in traces.items()} == {"trace_0": 1e6, "trace_1": 2e6, "trace_2": 3e6}
    assert np.isclose(traces["trace_2"].span_s, 5)


def test_text_log_of_one_line_entries(tmp_path):
    (tmp_path / "x.log").write_text(
        "24-10-2017 14:01:25 - INFO (Line: 148) - Internet speeds were: Up = 23.4, Down = 39.8\n"
        "24-10-2017 14:01:30 - INFO (Line: 139) - Low speeds measured - message sent with image\n"
        "24-10-2017 14:02:24 - INFO (Line: 148) - Internet speeds were: Up = 24.0, Down = 36.4\n"
    )
    report = Report()
    trace = read_links(tmp_path / "x.log", report=report)["x"]
    assert trace.down_bps.tolist() == [39.8e6, 36.4e6]  # up comes first in the line
    assert trace.up_bps.tolist() == [23.4e6, 24e6]
    assert not report.failed


def test_documentation_names_every_format():
    text = (Path(__file__).resolve().parents[2] / "docs" / "trace-formats.md").read_text()
    assert all(f"`{f.name}`" in text for f in all_formats())

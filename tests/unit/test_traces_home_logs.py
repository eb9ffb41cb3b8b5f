"""What people have at home: each shape, with values of its own."""

import json

import pytest

from testbed.errors import InputError
from testbed.traces import Report, read_availability, read_links
from testbed.traces.times import Clock, iso


def links(tmp_path, text, name="log.csv", **options):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    report = Report()
    return next(iter(read_links(tmp_path / name, report=report, **options).values())), report


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tue  4 Apr 16:41:56 CEST 2023", "2023-04-04T14:41:56Z"),
        ("Tue Apr  4 16:41:56 UTC 2023", "2023-04-04T16:41:56Z"),
        ("Tue Apr 4 16:41:56 2023", "2023-04-04T16:41:56Z"),
        ("Tue, 04 Apr 2023 16:41:56 +0200", "2023-04-04T14:41:56Z"),
        ("04/Apr/2023:16:41:56 -0500", "2023-04-04T21:41:56Z"),
        ("Apr 4, 2023, 4:41 PM", "2023-04-04T16:41:00Z"),
        ("4 Apr 2023 16:41", "2023-04-04T16:41:00Z"),
        ("Di 4. Okt 16:41:56 CEST 2022", "2022-10-04T14:41:56Z"),
        ("Jun 30 14:37:36", "2000-06-30T14:37:36Z"),
    ],
)
def test_dates_with_a_month_name(text, expected):
    assert iso(Clock(Report()).epoch(text)) == expected


def test_dates_without_a_year_go_on_over_new_year():
    clock = Clock(Report())
    assert clock.epoch("Jan 1 00:10:00") - clock.epoch("Jan 1 00:00:00") == 600
    before, after = clock.epoch("Dec 31 23:50:00"), clock.epoch("Jan 1 00:00:00")
    assert after - before == 600


def test_a_column_added_later_is_told_with_the_map_that_reads_it(tmp_path):
    text = "Date,Time,Ping (ms),Download (Mbps),Upload (Mbps)\n02/13/21,13:13,12.42,702.15,23.61\n" + "".join(
        f"02/{d}/21,21:19,12.5,0.5%,617.5,24.25\n" for d in range(14, 24)
    )
    with pytest.raises(InputError, match="5 names, most rows have 6 cells") as refused:
        links(tmp_path, text)
    maps = [part.split()[0] for part in str(refused.value).split("--map ")[1:]]
    assert maps == ["time=1+2", "download=5:Mbps", "upload=6:Mbps", "rtt=3:ms", "loss=4"]
    trace, report = links(tmp_path, text, map=tuple(maps))
    assert (trace.down_bps[0], trace.up_bps[0], trace.rtt_s[0], trace.loss[0]) == (617.5e6, 24.25e6, 0.0125, 0.005)
    assert report.repairs["unreadable rows dropped"].count == 1


@pytest.mark.parametrize("change", [str.lower, str.upper, lambda s: s.replace(" - ", "_").replace(" ", "_").lower()])
def test_names_are_compared_without_case_and_blanks(tmp_path, change):
    header = "unit_id,ISP,Technology,Download - 24 (ave),Upload - 24 (ave),Latency - 24h,Packet Loss - 24h"
    trace, report = links(tmp_path, change(header) + "\n7,Some,Cable,100.5,10.5,12.5,0.01\n")
    assert report.format == "ofcom-panel"
    assert (trace.down_bps[0], trace.rtt_s[0], trace.loss[0]) == (100.5e6, 0.0125, 0.01)


def test_a_unit_in_the_name_goes_before_the_format_s(tmp_path):
    text = "server name,server id,packet loss,latency,download (Mbps),upload (Mbps),download bytes,upload bytes,time\n"
    trace, _ = links(tmp_path, text + "a,1,0.5,9.5,90.5,9.5,1000,1000,2024-03-01 00:00:00\n")
    assert (trace.down_bps[0], trace.up_bps[0]) == (90.5e6, 9.5e6)


def test_key_value_lines(tmp_path):
    text = "".join(
        f'[Tue  4 Apr {h}:41:56 CEST 2023] Ping="44.5 ms" Download="{h}2.25 Mbit/s" Upload="10.75 Mbit/s"\n'
        for h in range(10, 14)
    )
    trace, _ = links(tmp_path, text, "log.txt")
    assert trace.down_bps.tolist() == [102.25e6, 112.25e6, 122.25e6, 132.25e6]
    assert (trace.rtt_s[0], iso(trace.start_epoch_s)) == (0.0445, "2023-04-04T08:41:56Z")


@pytest.mark.parametrize(
    "line",
    [
        "time=2024-03-01T10:{}0:00Z ping_ms=12.5 download_mbps=90.5 upload_mbps=9.5",
        "2024-03-01T10:{}0:00Z level=info ping=12.5ms download=90.5Mbps upload=9.5Mbps",
        "2024-03-01 10:{}0:00 Latency: 12.5 ms, Down: 90.5 Mbit/s, Up: 9500 kbit/s",
        "2024-03-01 10:{}0:00 | ping -> 12.5 ms | download -> 90.5 Mbps | upload -> 9.5 Mbps",
    ],
)
def test_other_lines_of_keys_and_values(tmp_path, line):
    trace, _ = links(tmp_path, "".join(line.format(k) + "\n" for k in range(5)), "log.txt")
    assert (trace.down_bps[0], trace.up_bps[0], trace.rtt_s[0]) == (90.5e6, 9.5e6, 0.0125)
    assert trace.times_s.tolist() == [0, 600, 1200, 1800, 2400]


def test_a_pattern_reads_any_line(tmp_path):
    text = "".join(f"@{1709251200 + 60 * k} <<{k + 1}000/500>> took 12.5\nnoise\n" for k in range(4))
    pattern = r"@(?P<time>\d+) <<(?P<download_kbps>\d+)/(?P<upload_kbps>\d+)>> took (?P<rtt_ms>[\d.]+)"
    trace, report = links(tmp_path, text, "x.log", pattern=pattern)
    assert trace.down_bps.tolist() == [1e6, 2e6, 3e6, 4e6]
    assert (trace.up_bps[0], trace.rtt_s[0], report.format) == (5e5, 0.0125, "pattern")
    assert any("4 of 8 lines" in note for note in report.notes)
    for wrong, why in (
        ("(?P<time>", "is no regular expression"),
        (r"(?P<time>\d+)", "names no quantity"),
        (r"(?P<time>\d+) (?P<speed>\d+)", "'speed'"),
        (r"(?P<time>\d+) <(?P<download>\d+)", "no line matches"),
    ):
        with pytest.raises(InputError, match=why):
            links(tmp_path, text, "x.log", pattern=wrong)


def test_a_syslog_date_and_one_comma(tmp_path):
    text = "".join(f"Jun 30 14:3{k}:36 ,58{k}85.000\n" for k in range(5))
    trace, _ = links(tmp_path, text, map=("time=1", "download=2:kbit/s"))
    assert trace.down_bps[0] == 58.085e6
    assert trace.times_s.tolist() == [0, 60, 120, 180, 240]


def test_a_message_glued_to_a_row_loses_that_row_alone(tmp_path):
    rows = "".join(f"2016-03-20 {h}:25:01;12.5;9{h}.25;9.5\n" for h in range(10, 24))
    text = "Congratulations! You are tested. 2016-03-20 09:25:01;12.5;90.25;9.5\n" + rows
    maps = ("time=1", "rtt=2:ms", "download=3:Mbps", "upload=4:Mbps")
    for content in (text, "when;ping_ms;download_mbps;upload_mbps\n" + text):
        trace, report = links(tmp_path, content, map=maps)
        assert len(trace) == 14
        assert {k: r.count for k, r in report.repairs.items()} == {"unreadable rows dropped": 1}
        with pytest.raises(InputError, match="line [12]"):
            links(tmp_path, content, map=maps, strict=True)


def test_rows_without_a_time_are_named_as_such(tmp_path):
    rows = [f"2024-03-01 {h}:00:00,9{h}.5,12.5" for h in range(10, 20)] + [",91.5,12"] * 5
    trace, report = links(tmp_path, "timestamp,download_mbps,ping_ms\n" + "\n".join(rows) + "\n")
    assert len(trace) == 10
    assert {k: r.count for k, r in report.repairs.items()} == {"rows without a time: dropped": 5}
    assert report.failed == 0
    assert any("5 of 15 rows have no time" in w for w in report.warnings)


def test_iperf3_stream_and_error(tmp_path):
    events = [
        {"event": "start", "data": {"test_start": {"protocol": "TCP", "reverse": 1}, "timestamp": {"timesecs": 1.7e9}}},
        *({"event": "interval", "data": {"sum": {"start": k, "bits_per_second": (5 + k) * 1e7}}} for k in range(3)),
        {"event": "end", "data": {}},
    ]
    trace, _ = links(tmp_path, "\n".join(map(json.dumps, events)), "x.json")
    assert trace.down_bps.tolist() == [5e7, 6e7, 7e7]
    text = '{"start":{},"intervals":[],"end":{},"error":"unable to connect to server: Connection refused"}'
    with pytest.raises(InputError, match="unable to connect to server: Connection refused"):
        links(tmp_path, text, "x.json")
    with pytest.raises(InputError, match="unable to connect"):
        links(tmp_path, '{"error": "unable to connect to server"}', "x.json")


@pytest.mark.parametrize(
    ("prefix", "timed"),
    [
        ("Stdout: ", False),
        ("2023-04-04T1{}:41:56.5Z stdout F ", True),
        ("Apr 04 1{}:41:56 box speed[12]: ", True),
        ("[2023-04-04 1{}:41:56] result ", True),
        ("speed-1  | ", False),
    ],
)
def test_results_behind_a_prefix(tmp_path, prefix, timed):
    result = '{"downloadSpeed":%s.5,"uploadSpeed":9.25,"latency":11}'
    text = "".join(prefix.format(k) + result % (50 + k) + "\n" for k in range(4))
    trace, report = links(tmp_path, text, "x.log")
    assert trace.down_bps.tolist() == [50.5e6, 51.5e6, 52.5e6, 53.5e6]
    assert trace.times_s.tolist() == [0, 3600, 7200, 10800]
    assert (trace.start_epoch_s is not None) is timed
    assert ("time" in report.assumed) is not timed


def test_a_document_behind_a_prefix(tmp_path):
    text = "Stdout: " + json.dumps(
        {
            "timestamp": "2024-03-01T00:00:00Z",
            "download": {"bandwidth": 125000},
            "upload": {"bandwidth": 12500},
            "ping": {"latency": 9},
        },
        indent=2,
    )
    trace, _ = links(tmp_path, text, "x.log")
    assert (trace.down_bps[0], trace.up_bps[0]) == (1e6, 1e5)


def test_state_records_broken_over_two_lines(tmp_path):
    record = '{},AbC=\n;app;{{"timeStamp":{},"batteryDTO":{{"pluggedState":{}}},"connectionMode":1}}\n'
    text = "".join(
        record.format(str(t) + ";X", t, p).replace(",AbC", "AbC")
        for t, p in ((1600000000000, 1), (1600000600000, 1), (1600001200000, 0))
    )
    (tmp_path / "x.log").write_text(text)
    report = Report()
    traces = read_availability(tmp_path / "x.log", report=report)
    assert [t.intervals_s.tolist() for t in traces.values()] == [[[0, 1200]]]
    assert report.repairs["records broken over several lines: put together"].count == 3

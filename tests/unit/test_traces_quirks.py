"""What real files have wrong: repaired and counted, or refused by --strict with file, line and value."""

import bz2
import gzip
import lzma
import zipfile
from pathlib import Path

import numpy as np
import pytest

from testbed.errors import InputError
from testbed.traces import Report, read_availability, read_links
from testbed.traces.bulk import BulkReader
from testbed.traces.times import Clock, iso

LINKS = Path(__file__).parent / "traces" / "links"
HEADER = "timestamp,download_mbps,upload_mbps,ping_ms\n"
ROWS = "2024-03-01 18:00:00,50,10,20\n2024-03-01 19:00:00,40,9,25\n2024-03-01 20:00:00,45,8,22\n"


def read(tmp_path, content, name="log.csv", **options):
    """(trace, report) of a file with that content."""
    file = tmp_path / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    report = Report()
    return next(iter(read_links(file, report=report, **options).values())), report


def same_as_clean(trace):
    assert trace.down_bps.tolist() == [50e6, 40e6, 45e6]
    assert trace.up_bps.tolist() == [10e6, 9e6, 8e6]
    assert trace.times_s.tolist() == [0, 3600, 7200]


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (HEADER + ROWS, None),
        ("\ufeff" + HEADER + ROWS, "byte order mark"),
        ((HEADER + ROWS).replace("\n", "\r\n"), "CR LF"),
        ((HEADER + ROWS).replace("\n", "\r"), "CR alone"),
        ((HEADER + ROWS).replace("\n", "\r\r\n"), "CR LF"),
        ((HEADER + ROWS).encode("utf-16"), "UTF-16"),
        ((HEADER + ROWS).encode("utf-32"), "UTF-32"),
        ((HEADER + ROWS).replace(",", ";"), None),
        ((HEADER + ROWS).replace(",", "\t"), None),
        ((HEADER + ROWS).replace(",", "|"), None),
        ((HEADER + ROWS).replace(",", " , "), None),
        ("# made by a logger\n\n" + HEADER + "\n" + ROWS, None),
        ((HEADER + ROWS).replace(",50,", ',"50",'), None),
        ((HEADER + ROWS).replace(",50,", ",['50'],"), None),
        ((HEADER + ROWS).replace(",50,", ",50 Mbit/s,"), None),
        ((HEADER + ROWS).replace(",50,", ",50000 kbps,"), None),
        ((HEADER + ROWS).replace(",50,", ",+5.0e1,"), None),
    ],
    ids=lambda x: None,
)
def test_harmless_variations(tmp_path, content, note):
    trace, report = read(tmp_path, content, strict=True)
    same_as_clean(trace)
    assert note is None or any(note in n for n in report.notes)


def test_decimal_commas(tmp_path):
    text = (
        "Datum;Uhrzeit;Download (Mbit/s);Upload (Mbit/s);Laufzeit (ms)\n"
        '"13.05.2025";"01:00:46";"94,73";"90,59";"8,5"\n"14.05.2025";"01:00:46";"1.5";"2";"9"\n'
    )
    trace, report = read(tmp_path, text.replace('"1.5"', '"1,5"'), strict=True)
    assert trace.down_bps.tolist() == [94.73e6, 1.5e6]
    assert trace.rtt_s.tolist() == [0.0085, 0.009]
    assert trace.times_s.tolist() == [0, 86400]


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("log.csv.gz", gzip.compress),
        ("log.csv.bz2", bz2.compress),
        ("log.csv.xz", lzma.compress),
        ("log.csv", gzip.compress),  # told by content, whatever the name
    ],
)
def test_compressed(tmp_path, name, pack):
    trace, _ = read(tmp_path, pack((HEADER + ROWS).encode()), name, strict=True)
    same_as_clean(trace)
    assert trace.home == "log"


def test_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "log.zip", "w") as archive:
        archive.writestr("inner.csv", HEADER + ROWS)
    same_as_clean(read_links(tmp_path / "log.zip")["log"])
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.csv", HEADER + ROWS)
        archive.writestr("b.csv", HEADER + ROWS)
    with pytest.raises(InputError, match=r"holds 2 files \(a.csv, b.csv\); expected one"):
        read_links(tmp_path / "two.zip")
    with zipfile.ZipFile(tmp_path / "book.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "<x/>")
    with pytest.raises(InputError, match="is an Excel workbook"):
        read_links(tmp_path / "book.xlsx")


REPAIRS = [
    # content, kind of repair, its count, what the message of --strict names
    (HEADER + ROWS + HEADER, "header repeated", 1, "line 5"),
    (HEADER + ROWS + "Cannot retrieve speedtest configuration\n", "failed tests", 1, "Cannot retrieve"),
    (HEADER + ROWS + "2024-03-01 21:00:00,0,0,0\n", "failed tests", 1, "download_mbps is 0"),
    (HEADER + ROWS + "2024-03-01 21:00:00,-1,-1,-1\n", "failed tests", 1, "line 5"),
    (HEADER + ROWS + "2024-03-01 21:00:00,,,\n", "failed tests", 1, "no value"),
    (HEADER + ROWS + "2024-03-01 21:00:00,error,error,error\n", "failed tests", 1, "'error' is not a number"),
    (HEADER + ROWS + "2024-03-01 21:00:00,5x0,9,20\n", "unreadable rows", 1, "column download_mbps: '5x0'"),
    (HEADER + ROWS + "not a time 7,50,9,20\n", "unreadable rows", 1, "column timestamp"),
    (HEADER + ROWS + "2024-13-45 99:00:00,50,9,20\n", "unreadable rows", 1, "line 5"),
    (HEADER + ROWS + "2024-03-01 21:00:00,50,9,20,7\n", "unreadable rows", 1, "5 cells; expected 4"),
    (HEADER + ROWS + "2024-03-01 21:00:00,5", "last line cut short", 1, "line 5"),
    (HEADER + "".join(reversed(ROWS.splitlines(keepends=True))), "out of time order", 2, "log"),
    (HEADER + ROWS + "2024-03-01 20:00:00,45,8,22\n", "several rows at one time", 1, "log"),
    ((HEADER + ROWS).replace(",45,8", "\0\0\0,45,8"), "NUL bytes", 1, "3 bytes"),
    (
        (HEADER + ROWS).replace("22\n", "22\nÜbereinstimmungen in Binärdatei\n").encode("latin-1"),
        "not UTF-8",
        1,
        "line 5",
    ),
    (HEADER + ROWS + "2024-03-01 21:00:00,55,8,\n", "missing rtt_s", 1, "log"),
]


@pytest.mark.parametrize(("content", "kind", "count", "named"), REPAIRS)
def test_repairs_are_counted_and_strict_refuses_them(tmp_path, content, kind, count, named):
    trace, report = read(tmp_path, content)
    assert trace.down_bps[:3].tolist() == [50e6, 40e6, 45e6]
    found = {k: r.count for k, r in report.repairs.items() if k.startswith(kind) or kind in k}
    assert list(found.values()) == [count], report.repairs
    with pytest.raises(InputError) as refusal:
        read(tmp_path, content, strict=True)
    assert named in str(refusal.value)
    assert str(tmp_path) in str(refusal.value)


def test_truncated_gzip_is_read_up_to_the_damage(tmp_path):
    rows = "".join(f"2024-03-01 {h:02d}:{m:02d}:00,{50 + m % 7},10,20\n" for h in range(24) for m in range(60))
    packed = gzip.compress((HEADER + rows).encode())
    trace, report = read(tmp_path, packed[: len(packed) // 2], "log.csv.gz")
    assert 10 < len(trace) < 1440
    assert any("compressed data damaged" in kind for kind in report.repairs)
    with pytest.raises(InputError, match="damaged or cut short"):
        read(tmp_path, packed[: len(packed) // 2], "log.csv.gz", strict=True)


IMPOSSIBLE = [
    (
        "time_s,download_mbps,rtt_ms\n0,50,20\n60,0,20\n",
        r"line 3, column download_mbps: 0 bit/s; expected a rate above 0",
    ),
    ("time_s,download_mbps,rtt_ms\n0,-50,20\n", r"line 2, column download_mbps: -5e\+07 bit/s"),
    ("time_s,download_mbps,rtt_ms\n0,50,-20\n", "line 2, column rtt_ms: -0.02 s; expected a delay of 0 to 600 s"),
    ("time_s,download_mbps,loss\n0,50,1.5\n", "line 2, column loss: 1.5; expected a share of 0 to 1"),
    ("time_s,download_mbps,loss_pct\n0,50,101\n", "line 2, column loss_pct: 1.01; expected a share"),
    ("time_s,download_mbps\n0,50\n60,nan\n-1,3\n", "negative time"),
    ("time_s,download_mbps\n0,fast\n", "line 2, column download_mbps: 'fast' is not a number"),
    ("time_s,download_mbps\n0,50\n60,40,3\n", "line 3: 3 cells; expected 2"),
    ("time_s,download_mbps\n,50\n", "line 2, column time_s: is empty; expected a time"),
    ("time_s,download_mbps\n0,9999999\n", "expected a rate above 0 and below 1 Tbit/s"),
    ("time_s,download_mbps,download_kbps\n0,1,1\n", "gives down_bps twice"),
    ("time_s,rtt_ms\n0,1\n", "has delays or losses but no rate"),
    ("# span_s: 30\ntime_s,download_mbps\n0,50\n60,40\n", "states span_s 30 but has a row at 60 s"),
    ("# span_s: -3\ntime_s,download_mbps\n0,50\n", "span_s: '-3'; expected seconds above 0"),
    ("time_s,download_mbps\n", "no usable measurement"),
]


@pytest.mark.parametrize(("content", "message"), IMPOSSIBLE)
def test_impossible_values_are_refused_with_their_place(tmp_path, content, message):
    with pytest.raises(InputError, match=message) as refusal:
        read(tmp_path, content)
    assert "log.csv" in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("device,start_s,end_s\na,10,5\n", "line 2, column end_s: 5 is not after the start, 10"),
        ("device,start_s,end_s\na,-1,5\n", "line 2, column start_s: '-1'; expected seconds from 0 on"),
        ("device,start_s,end_s\na,x,5\n", "line 2, column start_s: 'x' is not a number"),
        ("device,start_s,end_s\n,1,5\n", "line 2, column device: is empty"),
        ("device,start_s,end_s\na,1\nb,1,2\n", "line 2: has 2 cells; the header has 3"),
        ("# span_s: 4\ndevice,start_s,end_s\na,1,5\n", "states span_s 4 but has an interval that ends at 5 s"),
        ("device,start_s,end_s\na,,\n", "has no interval at all"),
    ],
)
def test_impossible_intervals_are_refused_with_their_place(tmp_path, content, message):
    (tmp_path / "a.csv").write_text(content)
    with pytest.raises(InputError, match=message):
        read_availability(tmp_path / "a.csv")


def test_overlapping_intervals_are_united(tmp_path):
    (tmp_path / "a.csv").write_text("device,start_s,end_s\na,20,30\na,0,10\na,5,12\na,12,15\n")
    report = Report()
    traces = read_availability(tmp_path / "a.csv", report=report)
    assert traces["a"].intervals_s.tolist() == [[0, 15], [20, 30]]
    assert {k: r.count for k, r in report.repairs.items()} == {
        "intervals out of time order: sorted": 1,
        "overlapping intervals: united": 1,
    }
    with pytest.raises(InputError, match="out of time order"):
        read_availability(tmp_path / "a.csv", strict=True)


def test_all_failed_file(tmp_path):
    text = "Server ID,Sponsor,Server Name,Timestamp,Distance,Ping,Download,Upload\n" + "Cannot retrieve\n" * 5
    with pytest.raises(InputError, match="no usable measurement .5 rows, 5 failed tests"):
        read(tmp_path, text)


def test_file_of_another_format_is_refused_rather_than_dropped_row_by_row(tmp_path):
    with pytest.raises(InputError, match="rows can't be read as table: line 2: .* cells; expected 4"):
        read(tmp_path, HEADER + "".join(f"2024-03-01 {h}:00:00,1,2,3,4,5\n" for h in range(10, 20)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (bytes(range(256)) * 20, "is not text"),
        (b"\x89PNG\r\n\x1a\n" + b"x" * 100, "is an image"),
        (b"%PDF-1.4", "is a PDF"),
        (b"SQLite format 3\0", "SQLite"),
        (b"\x80\x04\x95", "pickle"),
        (b"hello world\nhow are you\n", "no format that is known"),
    ],
)
def test_what_is_no_trace(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, content)


def test_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "speedtest.csv").write_text(HEADER + ROWS)
    with pytest.raises(InputError, match=r"no such file\n.*did you mean 'speedtest.csv'"):
        read_links(tmp_path / "speedtst.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="folder without files"):
        read_links(tmp_path / "empty")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2018-04-01T18:42:03.020515", "2018-04-01T18:42:03.020515Z"),
        ("2023-03-23T18:16:47.241738Z", "2023-03-23T18:16:47.241738Z"),
        ("2021-06-30 18:50:28.262038+00:00", "2021-06-30T18:50:28.262038Z"),
        ("2020-10-01T12:34:56.123456789+02:00", "2020-10-01T10:34:56.123456Z"),
        ("2014-09-01T00:05+0200", "2014-08-31T22:05:00Z"),
        ("2019.12.14_10.16.30", "2019-12-14T10:16:30Z"),
        ("01/13/2021, 10:22 AM", "2021-01-13T10:22:00Z"),
        ("2/23/2020 12:30 AM", "2020-02-23T00:30:00Z"),
        ("26/11/2015 21:10", "2015-11-26T21:10:00Z"),
        ("24-10-2017 14:01:25", "2017-10-24T14:01:25Z"),
        ("13.05.2025 01:00:46", "2025-05-13T01:00:46Z"),
        ("1410625600", "2014-09-13T16:26:40Z"),
        ("1656622594.003106", "2022-06-30T20:56:34.003106Z"),
        ("1452153533224", "2016-01-07T07:58:53.224000Z"),
        ("1452153533224000", "2016-01-07T07:58:53.224000Z"),
        ("1452153533224000000", "2016-01-07T07:58:53.224000Z"),
        ("2024-02-29 23:59:60", "2024-03-01T00:00:00Z"),
    ],
)
def test_time_stamps(text, expected):
    assert iso(Clock(Report()).epoch(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "12.5",
        "2024-02-30",
        "2024-01-01 25:00",
        "1/2/3",
        "0",
        "99999999999999999999",
        "1850-01-01",
        "13/13/2020",
        "2024-01-01 13:00 PM",
    ],
)
def test_what_is_no_time(text):
    with pytest.raises(ValueError):
        Clock(Report()).epoch(text)


def test_order_of_dates_is_told_by_values_by_order_or_by_the_user(tmp_path):
    rows = "date,download_mbps\n{}\n"
    march_april = rows.format("\n".join(f"{m:02d}/{d:02d}/2021 10:00,5" for m, d in ((3, 30), (3, 31), (4, 1))))
    assert read(tmp_path, march_april)[0].times_s.tolist() == [0, 86400, 172800]
    rising = rows.format("\n".join(f"{d:02d}/{m:02d}/2021 10:00,5" for d, m in ((11, 2), (12, 2), (1, 3))))
    assert read(tmp_path, rising)[0].times_s.tolist() == [0, 86400, 17 * 86400 + 86400]
    unclear = rows.format("02/03/2021 10:00,5\n02/04/2021 10:00,5")
    trace, report = read(tmp_path, unclear, dates="dmy")
    assert trace.times_s.tolist() == [0, 31 * 86400]
    trace, report = read(tmp_path, rows.format("02/03/2021 10:00,5"))
    assert any("day/month or month/day" in kind for kind in report.repairs)
    with pytest.raises(InputError, match="did you mean 'dmy'"):
        read(tmp_path, unclear, dates="dmyy")


def test_daylight_saving(tmp_path):
    # in Berlin 02:00 to 03:00 came twice on 29 October 2023, and never on 26 March
    stamps = [
        "2023-10-29 01:30",
        "2023-10-29 02:15",
        "2023-10-29 02:45",
        "2023-10-29 02:15",
        "2023-10-29 02:45",
        "2023-10-29 03:15",
    ]
    text = "time,download (Mbit/s)\n" + "".join(f"{s},{k + 1}\n" for k, s in enumerate(stamps))
    trace, report = read(tmp_path, text, zone="Europe/Berlin")
    assert np.diff(trace.times_s).tolist() == [2700, 1800, 1800, 1800, 1800]
    assert not report.repairs
    assert iso(trace.start_epoch_s) == "2023-10-28T23:30:00Z"
    trace, report = read(tmp_path, text)  # as UTC the hour overlaps
    assert any("out of time order" in kind for kind in report.repairs)
    skipped = "time,download (Mbit/s)\n2023-03-26 01:30,1\n2023-03-26 02:30,2\n2023-03-26 03:45,2\n"
    _, report = read(tmp_path, skipped, zone="Europe/Berlin")
    assert any("daylight saving skips" in kind for kind in report.repairs)
    with pytest.raises(InputError, match="did you mean 'Europe/Berlin'"):
        read(tmp_path, text, zone="Europe/Berln")


def test_missing_zone_is_noted(tmp_path):
    _, report = read(tmp_path, HEADER + ROWS)
    assert any("read as UTC" in note for note in report.notes)
    _, report = read(tmp_path, (HEADER + ROWS).replace(":00,", ":00Z,"))
    assert not report.notes


def test_homes_share_a_clock_unless_told_otherwise(tmp_path):
    text = "time,home,download_mbps\n2024-03-01T00:00:00Z,a,5\n2024-03-01T06:00:00Z,b,6\n2024-03-01T12:00:00Z,a,7\n"
    (tmp_path / "x.csv").write_text(text)
    clock = read_links(tmp_path / "x.csv")
    assert clock["b"].times_s.tolist() == [0, 6 * 3600]
    assert clock["a"].at(7 * 3600).down_bps == 5e6
    assert clock["b"].start_epoch_s == clock["a"].start_epoch_s
    own = read_links(tmp_path / "x.csv", align="home")
    assert own["b"].times_s.tolist() == [0]
    assert own["b"].start_epoch_s - own["a"].start_epoch_s == 6 * 3600


def test_implausible_values_warn(tmp_path):
    trace, report = read(tmp_path, "time_s,download_mbps,upload_mbps,rtt_ms\n0,50000,10,20\n60,50,10,20000\n")
    assert trace.down_bps[0] == 50e9
    assert [w.split(":")[0] for w in report.warnings] == ["down_bps", "rtt_s"]
    _, report = read(tmp_path, "time_s,download_bps,upload_mbps,rtt_s\n0,50,10,0.00002\n")
    assert len(report.warnings) == 2


def test_personal_data_is_left_behind_and_said_so(tmp_path):
    text = (
        "timestamp,download_mbps,upload_mbps,client_ip,isp,latitude,longitude,share_url,ssid,user\n"
        "2024-03-01 18:00:00,50,10,192.0.2.1,Example,53.8,-1.5,https://example.net/r/1,home,Alice\n"
        "2024-03-01 18:00:00,50,10,192.0.2.2,Example,53.9,-1.5,https://example.net/r/2,home,Bob\n"
    )
    (tmp_path / "x.csv").write_text(text)
    report = Report()
    traces = read_links(tmp_path / "x.csv", report=report)
    assert set(traces) == {"home-00001", "home-00002"}
    assert set(report.dropped) == {"client_ip", "isp", "latitude", "longitude", "share_url", "ssid", "user"}


@pytest.mark.parametrize(
    "file",
    [
        "testbed.csv",
        "fcc/curr_httpgetmt.csv",
        "fcc/curr_udplatency.csv",
        "speedtest-cli.csv",
        "netrics.csv",
        "ookla-app.csv",
    ],
)
def test_bulk_and_line_by_line_read_the_same(tmp_path, monkeypatch, file):
    """A longer file of the format, in pieces of which some have failures, by both readers."""
    lines = (LINKS / file).read_text().splitlines(keepends=True)
    header = [line for line in lines if line[0].isalpha() or line.startswith("#")][:1]
    body = [line for line in lines if line not in header and not line.startswith("#")]
    out, k = header, 0
    for k in range(3000):
        line = body[k % len(body)]
        out = [*out, line.replace("2022-07-01", f"2022-07-{k // 200 + 1:02d}")] if k % 7 else [*out, line]
    content = "".join(out)
    (tmp_path / Path(file).name).write_text(content)
    if file == "fcc/curr_udplatency.csv":
        (tmp_path / "curr_httpgetmt.csv").write_bytes((LINKS / "fcc/curr_httpgetmt.csv").read_bytes())
    reports = [Report(), Report()]
    fast = read_links(tmp_path, report=reports[0])
    monkeypatch.setattr(BulkReader, "take", lambda self, block: 0)
    slow = read_links(tmp_path, report=reports[1])
    assert list(fast) == list(slow)
    for home in fast:
        for name in ("times_s", "down_bps", "up_bps", "rtt_s", "jitter_s", "loss"):
            assert np.array_equal(getattr(fast[home], name), getattr(slow[home], name)), (home, name)
    assert reports[0].as_dict() == reports[1].as_dict()


def test_a_name_that_no_system_takes_is_refused():
    with pytest.raises(InputError, match="File name too long"):
        read_links("x" * 400)

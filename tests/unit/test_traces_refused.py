"""Tables that can't mean anything are refused with file, line, column, what was found and what was expected."""

import pytest

from testbed.emulation.cross_traffic import read_rates
from testbed.errors import InputError
from testbed.traces.reading import read_traces

LINKS = {
    "testbed": "time_s,home,download_mbps,rtt_ms\n0,a,50,20\n",
    "table": "# a log\nTime (s),Download (Mbit/s),Ping (ms)\n0,50,20\n",
    "dated table": "Date,Download (Mbit/s),Ping (ms)\n2024-03-01 18:00:00,50,20\n",
    "netrics": "# a log\n\ntime,speedtest_ookla_download,speedtest_ookla_upload,speedtest_ookla_latency\n",
}
DEVICES = {
    "testbed-availability": "device,start_s,end_s\na,0,60\n",
    "intervals": "# a log\nname,from,to\na,0,60\n",
    "events": "time_s,node,event\n0,a,up\n60,a,down\n",
    "fedscale-csv": 'id,active,inactive,finish_time\na,"[0]","[60]",100\n',
}


def refusal(tmp_path, content, **options) -> str:
    path = tmp_path / "log.csv"
    path.write_text(content)
    with pytest.raises(InputError) as refused:
        read_traces(path, **options)
    message = str(refused.value)
    assert message.startswith(f"{path} line ") or message.startswith("--map")
    return message.removeprefix(f"{path} ")


def cases():
    for name, content in {**LINKS, **DEVICES}.items():
        number, header = next((n, t) for n, t in enumerate(content.splitlines(), 1) if t and not t.startswith("#"))
        for k, column in enumerate(header.split(",")):
            yield pytest.param(content, number, header, k, column, id=f"{name}: {column}")


@pytest.mark.parametrize(("content", "number", "header", "k", "column"), list(cases()))
def test_a_name_over_two_columns(tmp_path, content, number, header, k, column):
    rows = [line for line in content.splitlines() if line]
    doubled = content.replace(header, f"{header},{column.upper()}")
    for row in rows[rows.index(header) + 1 :]:
        doubled = doubled.replace(row + "\n", row + "," + row.split(",")[k] + "\n")
    names = header.count(",") + 1
    said = refusal(tmp_path, doubled)
    if "twice" in said or "expected one named" in said:  # our own table's columns are known by what they mean, too
        assert said.startswith(f"line {number}")
        return
    assert said.startswith(f"line {number}, column ")
    assert f"names 2 columns (numbers {k + 1}, {names + 1}); expected one" in said


def test_a_name_over_two_columns_that_no_one_reads_is_kept(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("Date,Download (Mbit/s),note,note\n2024-03-01 18:00:00,50,a,b\n")
    assert read_traces(path)["log"].down_bps.tolist() == [50e6]


def test_a_map_takes_one_of_them_by_its_number(tmp_path):
    content = "when,speed,speed\n0,50,20\n60,50,20\n"
    said = refusal(tmp_path, content, map=("time=when:s", "download=speed:Mbps"))
    assert said.startswith("line 1, column speed: names 2 columns (numbers 2, 3); expected one\n")
    traces = read_traces(tmp_path / "log.csv", map=("time=when:s", "download=3:Mbps"))
    assert traces["log"].down_bps[0] == 20e6


@pytest.mark.parametrize("time", ["1e300", "inf", "-inf", "Infinity", "nan", "NaN", '"1e300"'])
@pytest.mark.parametrize("name", ["testbed", "table", "dated table", "testbed-availability", "intervals", "events"])
def test_a_time_that_is_none(tmp_path, name, time):
    content = {**LINKS, **DEVICES}[name]
    last = content.splitlines()[-1]
    at = 1 if name in ("testbed-availability", "intervals") else 0
    cells = last.split(",")
    cells[at] = time
    said = refusal(tmp_path, content + last + "\n" + ",".join(cells) + "\n" + last + "\n")
    line = content.count("\n") + 2
    column = next(t for t in content.splitlines() if not t.startswith("#")).split(",")[at]
    assert said.startswith(f"line {line}, column {column}: ")
    assert time.strip('"').lower() in said.lower() or "1e+300 s" in said
    assert "expected " in said


def test_such_a_time_in_a_long_file_read_in_bulk(tmp_path):
    rows = [f"{t},50,20" for t in range(5000)]
    rows[3000] = "1e300,50,20"
    said = refusal(tmp_path, "time_s,download_mbps,rtt_ms\n" + "\n".join(rows) + "\n")
    assert said.startswith("line 3002, column time_s: 1e+300 s; expected a time of less than a century")


@pytest.mark.parametrize(("content", "options", "expected"), [
    ("0 2.5\n1 2.5\n2 2.5\n1e300 2.5\n4 2.5\n" + "".join(f"{t} 2.5\n" for t in range(5, 60)), {}, "line 4, column time: 1e"),
    ("10,3\n20,4\n30,4\n1e300,4\n50,3\n", {"format": "node-counts"}, "line 4, column time: found '1e300'; expected a time"),
    ("1\n2\n3\ninf\n5\n", {"format": "mahimahi"}, "line 4: found 'inf'; expected a time"),
    ("# span_s: 1e300\ntime_s,download_mbps\n0,50\n", {}, "line 1: span_s: '1e300'; expected seconds above 0, at most"),
])
def test_such_times_in_other_formats(tmp_path, content, options, expected):
    assert refusal(tmp_path, content, **options).startswith(expected)


@pytest.mark.parametrize("time", ["1e300", "inf", "nan"])
def test_such_a_time_of_cross_traffic(tmp_path, time):
    path = tmp_path / "rates.csv"
    path.write_text(f"time_s,rate_mbps\n0,1\n{time},2\n")
    with pytest.raises(InputError, match=f"rates.csv line 3, column time: '{time}"):
        read_rates(path)


def test_a_row_without_a_time_is_still_left_out(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("Date,Download (Mbit/s)\n2024-03-01 18:00:00,50\n,\n-,7\n2024-03-01 19:00:00,40\n")
    assert len(read_traces(path)["log"].down_bps) == 2

"""Tables that can't mean anything are refused with file, line, column, what was found and what was expected."""

import pytest

from testbed.errors import InputError
from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import run_setup
from testbed.scenario.cross_traffic import read_rates
from testbed.traces import Report
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


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (
            "0 2.5\n1 2.5\n2 2.5\n1e300 2.5\n4 2.5\n" + "".join(f"{t} 2.5\n" for t in range(5, 60)),
            {"format": "pensieve"},
            "line 4, column time: 1e",
        ),
        (
            "10,3\n20,4\n30,4\n1e300,4\n50,3\n",
            {"format": "node-counts"},
            "line 4, column time: found '1e300'; expected a time",
        ),
        ("1\n2\n3\ninf\n5\n", {"format": "mahimahi"}, "line 4: found 'inf'; expected a time"),
        (
            "# span_s: 1e300\ntime_s,download_mbps\n0,50\n",
            {},
            "line 1: span_s: '1e300'; expected seconds above 0, at most",
        ),
    ],
)
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


GOOD = "time_s,home,download_mbps,rtt_ms\n0,{},50,20\n60,{},40,20\n"


def folder(tmp_path, **files):
    for name, content in files.items():
        (tmp_path / f"{name}.csv").write_text(content.replace("{}", name))
    return tmp_path


def test_all_bad_files_of_a_folder_are_named_at_once(tmp_path):
    bad = GOOD.replace("40", "-4")
    path = folder(tmp_path, a=GOOD, b=bad, c=GOOD, d="time_s,download_mbps\ninf,3\n", e=GOOD.replace("20\n", "x\n"))
    with pytest.raises(InputError) as refused:
        read_traces(path)
    said = str(refused.value).splitlines()
    assert said[0].startswith(f"{path}/b.csv line 3, column download_mbps: -4e+06 bit/s; expected")
    assert said[1].startswith(f"  {path}/d.csv line 2, column time_s: found 'inf'; expected")
    assert said[2].startswith(f"  {path}/e.csv line 2, column rtt_ms: 'x' is not a number")
    assert len(said) == 3


def test_of_very_many_bad_files_twenty_are_named(tmp_path):
    path = folder(tmp_path, **{f"n{k:02}": GOOD.replace("40", "-4") for k in range(30)})
    with pytest.raises(InputError) as refused:
        read_traces(path)
    said = str(refused.value).splitlines()
    assert all(f"{path}/n{k:02}.csv line 3, " in line for k, line in enumerate(said[:20]))
    assert said[20:] == ["  … and 10 more"]


def test_files_that_are_joined_are_all_named_too(tmp_path):
    head = "unit_id,dtime,target,address,fetch_time,bytes_total,bytes_sec,bytes_sec_interval,warmup_time,warmup_bytes,"
    head += "sequence,threads,successes,failures\n"
    row = "7,2024-03-01 18:00:00,t,a,1,1,{},1,1,1,0,8,1,0\n"
    path = folder(
        tmp_path, curr_httpgetmt=head + row.replace("{}", "1e300"), curr_httppostmt=head + row.replace("{}", "-7")
    )
    with pytest.raises(InputError) as refused:
        read_traces(path)
    assert all(
        f"{path}/{name}.csv line 2, column" in str(refused.value) for name in ("curr_httpgetmt", "curr_httppostmt")
    )


def test_what_is_no_trace_is_left_out_of_a_folder_but_not_of_files_that_are_named(tmp_path):
    path = folder(tmp_path, a=GOOD, b=GOOD, notes="nothing of the kind\n")
    report = Report()
    assert [*read_traces(path, report=report)] == ["a", "b"]
    assert report.warnings == ["1 files are no traces and left out: notes.csv"]
    with pytest.raises(InputError, match=r"(?s)notes.csv: is in no format.*gone.csv: no such file"):
        read_traces([path / "a.csv", path / "notes.csv", path / "gone.csv"])
    (tmp_path / "only").mkdir()
    only = folder(tmp_path / "only", x="none\n", y="none\n")
    with pytest.raises(
        InputError, match=r"(?s)none of 2 files is a trace\n.*x.csv: is in no format.*y.csv: is in no format"
    ):
        read_traces(only)


def test_a_run_tells_what_the_readers_of_its_traces_did(tmp_path):
    for name, content in (("links", GOOD), ("away", "time,node,event\n0,h1,up\nx,h1,up\n60,h1,down\n")):
        (tmp_path / name).mkdir()
        folder(tmp_path / name, h1=content, notes="nothing of the kind\n")
    (tmp_path / "e.yaml").write_text(
        "name: e\ntopology: {homes: 2}\nlinks: {trace: links}\navailability: {trace: away}\n"
        "training: {stages: 1}\nmodel: {layers: 1}\n"
    )
    warnings = run_setup(load_experiment(tmp_path / "e.yaml")).warnings
    for name in ("links", "away"):
        assert f"{name}: 1 files are no traces and left out: notes.csv" in warnings
    assert any(w.startswith("away: 1 repairs when reading (unreadable rows dropped)") for w in warnings)

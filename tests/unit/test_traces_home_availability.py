"""Availability and delays that people have at home, with values of their own."""

import json

import numpy as np
import pytest

from testbed.errors import InputError
from testbed.traces import Report, read_availability, read_links
from testbed.traces.assemble import Defaults

RATES = Defaults(down_bps=50e6, up_bps=10e6)


def on(tmp_path, text, name="log.csv", **options):
    """{device: intervals} and the report."""
    (tmp_path / name).write_text(text)
    report = Report()
    traces = read_availability(tmp_path / name, report=report, **options)
    return {n: t.intervals_s.tolist() for n, t in traces.items()}, report


HISTORY = """entity_id,state,last_changed
person.anna,home,2024-03-01T00:00:00.000Z
person.anna,not_home,2024-03-01T01:00:00.000Z
person.anna,home,2024-03-01T02:00:00.000Z
person.anna,unavailable,2024-03-01T02:30:00.000Z
binary_sensor.pc,off,2024-03-01T00:00:00.000Z
binary_sensor.pc,on,2024-03-01T01:00:00.000Z
sensor.speedtest_download,unavailable,2024-03-01T00:00:00.000Z
sensor.speedtest_download,88.25,2024-03-01T00:30:00.000Z
sensor.speedtest_download,91.5,2024-03-01T01:30:00.000Z
sensor.speedtest_upload,9.5,2024-03-01T00:30:00.000Z
sensor.speedtest_ping,12.5,2024-03-01T00:30:00.000Z
"""


def test_home_assistant(tmp_path):
    found, report = on(tmp_path, HISTORY)
    assert found == {"person.anna": [[0, 3600], [7200, 9000]], "binary_sensor.pc": [[3600, 9000]]}
    assert report.format == "home-assistant"
    trace = read_links(tmp_path / "log.csv", report=report)["log"]
    assert trace.down_bps.tolist() == [88.25e6, 91.5e6]
    assert (trace.up_bps.tolist(), trace.rtt_s.tolist()) == ([9.5e6] * 2, [0.0125] * 2)


def test_home_assistant_json(tmp_path):
    rows = [line.split(",") for line in HISTORY.splitlines()[1:]]
    entities = dict.fromkeys(e for e, _, _ in rows)
    history = [[{"entity_id": e, "state": s, "last_changed": t} for e, s, t in rows if e == x] for x in entities]
    history[2][1]["attributes"] = {"unit_of_measurement": "kbit/s"}
    found, _ = on(tmp_path, json.dumps(history), "history.json")
    assert found["person.anna"] == [[0, 3600], [7200, 9000]]
    assert read_links(tmp_path / "history.json")["history"].down_bps.tolist() == [88.25e3, 91.5e3]


def test_prometheus(tmp_path):
    def series(instance, values):
        return {"metric": {"__name__": "up", "instance": instance}, "values": values}

    values = [[1_700_000_000 + 60 * k, v] for k, v in enumerate("1101")]
    held = [[1_700_000_000, "1"], [1_700_000_060, "1"], [1_700_000_180, "0"]]  # a scrape is missing
    text = json.dumps(
        {
            "status": "success",
            "data": {"resultType": "matrix", "result": [series("a:9100", values), series("b:9100", held)]},
        }
    )
    found, _ = on(tmp_path, text, "up.json")
    assert found == {"a:9100": [[0, 120], [180, 240]], "b:9100": [[0, 120]]}
    with pytest.raises(InputError, match="series a:9100: 7; expected 0 or 1"):
        on(tmp_path, text.replace('"1"', '"7"'), "up.json")


LAST = """reboot   system boot  6.1.0-18-amd64   Wed Apr  5 10:00:00 2023   still running
reboot   system boot  6.1.0-18-amd64   Tue Apr  4 20:00:00 2023 - Tue Apr  4 23:00:00 2023  (03:00)
reboot   system boot  6.1.0-18-amd64   Tue Apr  4 08:00:00 2023 - crash                     (12:00)

wtmp begins Tue Apr  4 08:00:00 2023
"""


def test_last_reboot(tmp_path):
    found, report = on(tmp_path, LAST, "box.txt")
    assert found == {"box": [[0, 15 * 3600], [26 * 3600, 29 * 3600]]}  # the crash lasted until the next boot
    assert any("still running" in g for g in report.guessed)
    short = "reboot   system boot  5.4.0  Tue Apr  4 08:00 - 10:30  (02:30)\n" * 1
    found, _ = on(tmp_path, short + short.replace("Apr  4 08:00 - 10:30", "Apr  5 08:00 - 09:30"), "box.txt")
    assert found["box"][0][0] == 0


def test_uptimerobot(tmp_path):
    text = (
        '"Event","Monitor","Date-Time","Reason","Duration","Duration (in mins.)"\n'
        '"Up","router","2024-03-01 03:00:00","OK","1 hrs, 0 mins","60"\n'
        '"Down","router","2024-03-01 02:00:00","Connection Timeout","1 hrs, 0 mins","60"\n'
        '"Started","router","2024-03-01 00:00:00","","2 hrs, 0 mins","120"\n'
    )
    for content in (text, text.replace('"', ""), text.lower()):
        content = (
            content
            if "Reason,Dur" not in content
            else content.replace("1 hrs, 0", "1 hrs 0").replace("2 hrs, 0", "2 hrs")
        )
        found, report = on(tmp_path, content)
        assert found == {"router": [[0, 7200], [10800, 14400]]}
        assert not report.repairs


TOGGLES = {"1": [[0, 54], [890, 2042]], "2": [[100, 300]]}


@pytest.mark.parametrize(
    "text",
    [
        "1: on, [54, 890, 2042]\n2: off, [100, 300]\n",
        "- 1: on, [54, 890, 2042]\n- 2: off, [100, 300]\n",
        "- [1, on, [54, 890, 2042]]\n- [2, off, [100, 300]]\n",
        "1: [on, [54, 890, 2042]]\n2: [off, [100, 300]]\n",
        "- {device: 1, state: on, times: [54, 890, 2042]}\n- {device: 2, state: off, times: [100, 300]}\n",
        "- device: 1\n  state: on\n  times: [54, 890, 2042]\n- device: 2\n  state: off\n  times:\n    - 100\n    - 300\n",
        "# devices\n'1': ON, [54,890,2042]\n\n'2': OFF, [100,300]\n",
        "1: 1, [54, 890, 2042]\r\n2: 0, [100, 300]\r\n",
        '[["1", "on", [54, 890, 2042]],\n ["2", "off", [100, 300]]]\n',
    ],
)
@pytest.mark.parametrize("name", ["a.yaml", "a.txt"])
def test_toggle_lists(tmp_path, text, name):
    found, report = on(tmp_path, text, name)
    assert found == TOGGLES
    assert report.format == "toggles"


def test_toggle_lists_that_are_wrong_name_their_line(tmp_path):
    for text, why in (
        ("1: on, [54, 9]\n", "line 1: device 1: 9 comes after 54"),
        ("1: on, [54]\n1: off, [9]\n", "line 2: device 1 stands twice"),
        ("1: on, [54]\n2: on, [1e300]\n", "line 2: device 2: 1e300; expected seconds"),
    ):
        with pytest.raises(InputError, match=why.replace("[", r"\[")):
            on(tmp_path, text, "a.txt")


FPING = "".join(
    f"[{1700000000 + k}.5] 192.0.2.1 : [{k}], 64 bytes, {12 + k}.5 ms (12.5 avg, 0% loss)\n" for k in range(4)
)
PING = "PING x (192.0.2.1) 56(84) bytes of data.\n" + "".join(
    f"[{1700000000 + k}.5] 64 bytes from 192.0.2.1: icmp_seq={k} ttl=57 time={12 + k}.5 ms\n" for k in range(4)
)


@pytest.mark.parametrize(
    ("text", "format"),
    [
        (FPING, "ping-log"),
        (PING, "ping-log"),
        ("192.0.2.1 : 12.5 13.5 14.5 15.5\n", "ping-log"),
        ("".join(f"{1700000000 + k} {k + 7} {12.5 + k % 4}\n" for k in range(8)), "rtt-columns"),
        ("".join(f"{1700000000 + k},{k + 7},{12.5 + k % 4}\n" for k in range(8)), "rtt-columns"),
        ("timestamp,latency_ms\n" + "".join(f"{1700000000 + k},{12.5 + k}\n" for k in range(4)), "rtt-table"),
        ("time;ping\n" + "".join(f"2024-03-01 00:00:0{k};{12.5 + k} ms\n" for k in range(4)), "rtt-table"),
        (
            json.dumps(
                [
                    {"msm_id": 1, "prb_id": 7, "timestamp": 1700000000 + k, "type": "ping", "sent": 1, "rcvd": 1,
                     "avg": 12.5 + k, "result": [{"rtt": 12.5 + k}]}
                    for k in range(4)
                ]
            ),
            "ripe-atlas",
        ),
    ],
)  # fmt: skip
def test_logs_of_delays_alone(tmp_path, text, format):
    (tmp_path / "rtt.txt").write_text(text)
    report = Report()
    trace = next(iter(read_links(tmp_path / "rtt.txt", report=report, defaults=RATES).values()))
    assert report.format == format
    assert trace.rtt_s[:4].tolist() == [0.0125, 0.0135, 0.0145, 0.0155]
    assert np.diff(trace.times_s)[:3].tolist() == [1, 1, 1]
    assert (set(trace.down_bps), set(trace.up_bps)) == ({50e6}, {10e6})
    assert {"download", "upload"} <= trace.assumed
    with pytest.raises(InputError, match="has delays or losses but no rate") as refused:
        read_links(tmp_path / "rtt.txt")
    assert "--down" in str(refused.value)


def test_unanswered_probes_are_losses(tmp_path):
    lines = FPING.splitlines()
    lines[1] = "[1700000001.5] 192.0.2.1 : [1], timed out (12.5 avg, 50% loss)"
    (tmp_path / "a.txt").write_text("\n".join(lines))
    assert read_links(tmp_path / "a.txt", defaults=RATES)["a"].loss.tolist() == [0.25] * 4
    rows = [f"{1700000000 + k} {k} 12.5" for k in range(40) if k % 4]
    (tmp_path / "b.txt").write_text("\n".join(rows))
    loss = read_links(tmp_path / "b.txt", defaults=RATES)["b"].loss
    assert np.isclose(loss.mean(), 0.25, atol=0.02)


def test_ripe_atlas_losses(tmp_path):
    results = [{"msm_id": 1, "prb_id": 7, "timestamp": 1700000000 + 240 * k, "sent": 4, "rcvd": 3, "avg": 12.0, "result":
                [{"rtt": 11.0}, {"rtt": 12.0}, {"x": "*"}, {"rtt": 13.0}]} for k in range(3)]  # fmt: skip
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, results)))
    trace = read_links(tmp_path / "a.json", defaults=RATES)["probe-7"]
    assert (trace.rtt_s[0], trace.jitter_s[0], trace.loss[0]) == (0.012, 0.001, 0.25)

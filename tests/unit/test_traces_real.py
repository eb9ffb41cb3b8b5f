"""Real files, where they are at hand: each is read, or refused for the reason given here."""

import fnmatch
import math
import os
from pathlib import Path

import numpy as np
import pytest

from testbed.errors import InputError
from testbed.traces import LinkTrace, Report
from testbed.traces.reading import read_traces

REAL = Path(os.environ.get("TESTBED_REAL_TRACES", Path(__file__).resolve().parents[3] / "shared" / "traces"))
FILES = sorted(p for p in REAL.glob("**/*") if p.is_file()) if REAL.is_dir() else []

# pattern -> what the refusal must say, and why that is right
REFUSED = {
    "*amadeuspzs_broadband-monitor/latency.csv": "has delays or losses but no rate",
    "*starlink_on_the_road/ping.csv": "has delays or losses but no rate",
    "*starlink_mmsys24/isl-ping*": "but no rate",  # epoch, number, RTT
    "*ripe_atlas_ping/*": "but no rate",
    "*last-mile-congestion/*": "JSON of no format",  # a survey of providers, no series
    "*johannesbrandenburger_speedtestWG/error.log": "no format that is known",  # messages of failed tests
    "*briantomillo_ISP-Monitoring/*": "6 cells; expected 5",  # rows wider than the header: which is which?
    "*lumos5g/*": "columns can't be told",  # whole numbers in two bare columns could be counts
    "*devcybiko_fast-cli/*": "columns can't be told",
    "*h0lik_speedtest/*": "columns can't be told",
    "*jeffrlynn_bandwidth-monitor/*": "columns can't be told",
    "*converted/stunner_state_intervals.csv": "which one is available",
    "*home_link_outages/analysis.txt": "columns can't be told",  # counts of probes by hour, from `uniq -c`
    "*home_link_outages/offline_15min.txt": "no format",  # counts of lost probes by ten minutes
    "*published_fits/*": "no format",
    "*daily_charge_lock_minutes.csv": "no format",  # parameters; totals
    "*stunner_distributions/*": "columns can't be told",  # histograms
    "*combos_boinc_hosts/*": "columns can't be told",  # numbers of hosts by speed
    "*D_device_capacity/flash/*": "no format",
    "*.md": "no format",
    "*STATS.txt": "no format",
    "*MANIFEST.csv": "no format",
}
# what a statement of columns or states makes readable
STATED = {
    "*lumos5g/*": {"format": "pensieve"},
    "*briantomillo_ISP-Monitoring/*": {"map": ("time=1+2", "rtt=3:ms", "download=5:Mbps", "upload=6:Mbps")},
    "*devcybiko_fast-cli/*": {"map": ("time=1", "download=4:Mbps")},
    "*h0lik_speedtest/*": {"map": ("time=1", "download=2:Mbps", "upload=3:Mbps", "rtt=4:ms")},
    "*jeffrlynn_bandwidth-monitor/*": {"map": ("time=1+2", "rtt=3:ms", "download=4:Mbps", "upload=5:Mbps")},
    "*converted/stunner_state_intervals.csv": {"rule": "state = charging+wifi"},
}
# medians [Mbit/s] of whole logs, computed apart from these readers
MEDIANS = {
    "links/amadeuspzs--speedtest.csv": (5.7, 5.9),
    "collection/A_speedtest/d4ndo_unitymedia/speedtest.log": (31.6, 3.0),
    "collection/A_speedtest/johannesbrandenburger_speedtestWG/speedtest.csv": (10.7, 11.5),
    "collection/A_speedtest/klimburg_InternetSpeedDash/speedtest.csv": (78.7, 23.3),
    "collection/A_speedtest/joswald250_network-warden/network_monitor.csv": (39.7, 22.5),
    "collection/A_speedtest/brokentrace_speedtester/speedtest.csv": (79.3, 11.3),
    "collection/A_speedtest/nurseyandoaktall_internet-status/speedtest.json": (2.4, 30.9),
    "collection/A_speedtest/ookla_open_data_tiles/oahu_2023Q4_fixed_tiles.csv": (249.7, 58.0),
    "collection/A_speedtest/ofcom_panellist_2023-03/panellist_2023-03.csv": (69.3, 18.5),
}


def _refusal(file: Path) -> str | None:
    return next((why for pattern, why in REFUSED.items() if fnmatch.fnmatch(str(file), pattern)), None)


def _checked(traces) -> None:
    for trace in traces.values():
        if isinstance(trace, LinkTrace):
            assert (np.diff(trace.times_s) > 0).all()
            assert (trace.down_bps > 0).all()
            assert (trace.up_bps > 0).all()
        else:
            assert 0 <= trace.fraction() <= 1


@pytest.mark.skipif(not FILES, reason="the real traces (../shared/traces) are not here")
def test_every_real_file_is_read_or_refused_for_the_right_reason():
    wrong = []
    for file in FILES:
        why, message = _refusal(file), None
        try:
            _checked(read_traces(file, report=Report()))
        except InputError as error:
            message = str(error)
        if message is None and fnmatch.fnmatch(str(file), "*lumos5g/*"):
            continue  # those with fractions are read
        if (why is None) != (message is None) or (why and why not in message):
            wrong.append(f"{file.relative_to(REAL)}: expected {why or 'to be read'}, got {message or 'read'}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.skipif(not FILES, reason="the real traces (../shared/traces) are not here")
@pytest.mark.parametrize("pattern", STATED)
def test_what_was_refused_is_read_once_stated(pattern):
    for file in FILES:
        if fnmatch.fnmatch(str(file), pattern):
            _checked(read_traces(file, **STATED[pattern]))


@pytest.mark.skipif(not FILES, reason="the real traces (../shared/traces) are not here")
@pytest.mark.parametrize("name", MEDIANS)
def test_medians_of_real_files(name):
    traces = read_traces(REAL / name)
    for field, expected in zip(("down_bps", "up_bps"), MEDIANS[name]):
        median = float(np.median(np.concatenate([getattr(t, field) for t in traces.values()]))) / 1e6
        assert math.isclose(median, expected, rel_tol=0.02), field

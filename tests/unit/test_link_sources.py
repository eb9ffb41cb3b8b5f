"""Links whose rates, delays and losses come from several sources, each stated."""

import pytest

from testbed.errors import InputError
from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import run_setup

RTT = "".join(f"{1700000000 + k} {k} {12 + k}.5\n" for k in range(8))
RATES = "time_s,download_mbps,upload_mbps,rtt_ms\n0,50,10,99\n4,40,8,98\n"


def setup(tmp_path, links):
    (tmp_path / "rtt.txt").write_text(RTT)
    (tmp_path / "rates.csv").write_text(RATES)
    (tmp_path / "e.yaml").write_text(
        f"name: e\ntopology: {{homes: 1}}\nlinks: {links}\ntraining: {{stages: 1}}\nmodel: {{layers: 1}}\n"
        "time_limit: 7 s\n"
    )
    found = run_setup(load_experiment(tmp_path / "e.yaml"))
    return found.network.link_changes["h1"], found.network.link_source["h1"], found.warnings


def test_a_log_of_round_trips_with_constant_rates(tmp_path):
    changes, source, warnings = setup(tmp_path, "{trace: rtt.txt, download: 50 Mbit/s, upload: 10 Mbit/s}")
    assert [(t, s.rtt_s) for t, s in changes] == [(k, (12.5 + k) / 1e3) for k in range(7)]
    assert {(s.down_bps, s.up_bps) for _, s in changes} == {(50e6, 10e6)}
    assert source == (
        "rtt.txt: rtt; download 50 Mbit/s, constant; upload 10 Mbit/s, constant; jitter assumed; loss assumed"
    )
    assert any("rtt.txt: guessed, not stated in the file: three columns" in w for w in warnings)


def test_rates_from_one_file_and_delays_from_another(tmp_path):
    changes, source, _ = setup(tmp_path, "{trace: rates.csv, delays: {trace: rtt.txt}, loss: 0.01}")
    assert [(s.down_bps, s.rtt_s) for _, s in changes] == [
        (50e6 if k < 4 else 40e6, (12.5 + k) / 1e3) for k in range(7)
    ]
    assert {s.loss for _, s in changes} == {0.01}
    assert "rtt from rtt.txt: rtt" in source
    assert "loss 0.01, constant" in source


def test_delays_from_a_preset(tmp_path):
    changes, source, _ = setup(tmp_path, "{trace: rates.csv, delays: {preset: satellite}}")
    assert changes[0][1].rtt_s != 0.099
    assert changes[0][1].jitter_s > 0
    assert changes[0][1].down_bps == 50e6
    assert "rtt, jitter, loss from preset satellite" in source


def test_what_a_file_lacks_is_drawn_from_a_preset_when_asked(tmp_path):
    plain, source, _ = setup(tmp_path, "{trace: rates.csv}")
    assert (plain[0][1].jitter_s, plain[0][1].loss) == (0, 0)
    assert "jitter assumed; loss assumed" in source
    drawn, source, _ = setup(tmp_path, "{trace: rates.csv, fill: preset, preset: lte}")
    assert drawn[0][1].jitter_s > 0
    assert (drawn[0][1].down_bps, drawn[0][1].rtt_s) == (50e6, 0.099)
    assert "jitter, loss from preset lte" in source
    assert setup(tmp_path, "{trace: rates.csv, fill: preset, preset: lte}")[0] == drawn


@pytest.mark.parametrize(
    ("links", "why"),
    [
        ("{trace: rates.csv, download: 5 Mbit/s}", "download of its own"),
        ("{trace: rates.csv, rtt: 5 ms}", "rtt of its own"),
        ("{trace: rates.csv, preset: lte}", "add fill: preset"),
        ("{trace: rates.csv, delays: {}}", "expected either trace or preset"),
        ("{trace: rtt.txt}", "but no rate"),
        ("{trace: rates.csv, delays: {preset: lt}}", "did you mean 'lte'"),
        ("{trace: rates.csv, delays: {trace: gone.txt}}", "gone.txt"),
    ],
)
def test_what_can_not_be_meant(tmp_path, links, why):
    with pytest.raises(InputError, match=why):
        setup(tmp_path, links)

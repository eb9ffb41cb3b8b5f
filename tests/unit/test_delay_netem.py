"""The netem backend's commands, as data; what they do is tested on a kernel that has netem."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from testbed.emulation.delay import netem
from testbed.emulation.delay.base import DelayBackend
from testbed.scenario.link_model import PathDelay


def host(index: int) -> SimpleNamespace:
    return SimpleNamespace(
        name=f"h{index}", port=f"p{index}", bridge_port=f"y{index}", ifb=f"i{index}", net_netns="/run/netns/tb-1-net"
    )


HOSTS = {"a": host(1), "b": host(2)}
EAST = SimpleNamespace(
    name="east", members=("a",), delay_s=0.004, up_interface="u1", down_interface="d1", net_netns="/run/netns/tb-1-net"
)
DELAYS = {"a": PathDelay(0.010, 0.0052, up_jitter_s=0.0015, up_loss=0.0125)}


def line(lines: list[str], start: str) -> str:
    (found,) = [text for text in lines if text.startswith(start)]
    return found


def test_each_direction_gets_its_own_values_and_zeros_are_left_out():
    _, tc = netem.start_commands(HOSTS, DELAYS, {}, None)
    assert line(tc, "qdisc add dev i1") == (
        "qdisc add dev i1 root handle de: netem limit 1000000 delay 10000us 1500us distribution normal "
        "loss random 1.250000% rate 100gbit"
    )
    assert line(tc, "qdisc add dev p1") == (
        "qdisc add dev p1 root handle de: netem limit 1000000 delay 5200us rate 100gbit"
    )
    assert line(tc, "qdisc add dev p2") == "qdisc add dev p2 root handle de: netem limit 1000000 rate 100gbit"


def test_the_uplink_is_delayed_behind_its_bottleneck_on_an_ifb():
    ip, tc = netem.start_commands(HOSTS, DELAYS, {}, None)
    assert ip[0] == "link add i1 up numtxqueues 1 numrxqueues 1 type ifb"
    redirect = line(tc, "filter add dev y1")
    assert redirect.endswith("u32 match u32 0 0 action mirred egress redirect dev i1")
    assert tc.index(line(tc, "qdisc add dev i1")) < tc.index(redirect)  # no packet without its delay


def test_a_shared_link_is_delayed_in_both_directions_where_it_ends():
    ip, tc = netem.start_commands(HOSTS, DELAYS, {"east": EAST}, None)
    for end in ("u1", "d1"):
        assert f"link add i{end} up numtxqueues 1 numrxqueues 1 type ifb" in ip
        assert "delay 4000us" in line(tc, f"qdisc add dev i{end}")
        assert line(tc, f"filter add dev {end}").endswith(f"redirect dev i{end}")


def test_a_change_is_in_place_and_resets_what_became_zero():
    lines = netem.change_commands(HOSTS, {"a": PathDelay(down_delay_s=0.001)}, None, 1)
    assert lines == [
        "qdisc change dev p1 root handle de: netem limit 1000000 delay 1000us rate 100gbit",
        "qdisc change dev i1 root handle de: netem limit 1000000 rate 100gbit",
    ]


def test_order_is_kept_unless_reordering_is_asked_for():
    assert "rate 100gbit" in netem.options(0.01, 0.002)
    assert "rate 0bit" in netem.options(0.01, 0.002, reorder=True)
    changed = netem.change_commands(HOSTS, {"a": PathDelay(0.01, 0.01, reorder=0.1)}, None, 1)
    assert all("rate 0bit" in text for text in changed)


def test_every_netem_and_every_change_has_a_seed_of_its_own():
    def seeds(lines):
        return [text.rpartition(" seed ")[2] for text in lines if " netem " in text]

    _, tc = netem.start_commands(HOSTS, DELAYS, {}, 7)
    first = seeds(tc)
    assert len(set(first)) == 4
    assert seeds(netem.start_commands(HOSTS, DELAYS, {}, 7)[1]) == first
    later = [seeds(netem.change_commands(HOSTS, DELAYS, 7, n)) for n in (1, 2)]
    assert len({*first, *later[0], *later[1]}) == 8
    assert all(int(seed) < 2**63 for seed in first)


def test_stop_removes_what_start_made():
    ip, tc = netem.start_commands(HOSTS, DELAYS, {"east": EAST}, None)
    tc_gone, ip_gone = netem.stop_commands(HOSTS, {"east": EAST})
    made = {text.split()[2] for text in ip}
    assert {text.split()[2] for text in ip_gone} == made
    kept = {text.split()[3] for text in tc if text.startswith("qdisc add")} - made  # ifbs take theirs along
    assert {text.split()[3] for text in tc_gone} == kept


def test_a_backend_that_never_started_stops_and_reports():
    backend = netem.NetemBackend()
    assert isinstance(backend, DelayBackend)
    backend.stop()
    assert backend.stats().packets == 0
    assert backend.pid is None
    with pytest.raises(ValueError, match="no hosts"):
        backend.start({}, {}, {}, 1)


@pytest.mark.parametrize(
    ("said", "knows"),
    [
        ("tc utility, iproute2-6.1.0, libbpf 1.1.2", False),
        ("tc utility, iproute2-6.6.0", True),
        ("tc utility, iproute2-6.10.0", True),
        ("tc utility, iproute2-ss200127", False),
        ("", False),
    ],
)
def test_seeding_needs_iproute2_6_6(monkeypatch, said, knows):
    monkeypatch.setattr(netem.subprocess, "run", lambda *a, **k: SimpleNamespace(stdout=said))
    assert netem.tc_knows_seed() is knows

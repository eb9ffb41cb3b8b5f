"""The plan of a whole network, read without root."""

from __future__ import annotations

import re

import pytest

from testbed.cluster import Link, SharedLink, Topology
from testbed.emulation.network import openvswitch
from testbed.emulation.network.plan import make_plan, plan_commands
from testbed.errors import InputError
from testbed.scenario.network import NetworkSettings

LINK = Link(20e6, 100e6)
SERVER = Link(1e9, 1e9)
OVS = NetworkSettings(switch="ovs", delay_backend="netem")


def star(homes: int) -> tuple[Topology, dict[str, Link]]:
    names = tuple(f"h{i}" for i in range(1, homes + 1))
    return Topology(names, SERVER), dict.fromkeys(names, LINK)


def test_every_interface_name_fits_and_is_unique():
    plan = make_plan("abcdef", *star(1000), NetworkSettings())
    found = [name for line in plan.ip_lines for name in re.findall(r"(?:link add|peer name) (\S+)", line)]
    assert len(found) == len(set(found)) == 1 + 4 * 1001
    assert max(map(len, found)) <= 15


def test_addresses_and_names_are_distinct():
    plan = make_plan("abcdef", *star(1000), NetworkSettings())
    for field in ("ip", "mac", "netns", "interface", "index"):
        assert len({getattr(host, field) for host in plan.hosts.values()}) == 1001


def test_the_dry_run_is_what_is_applied_but_for_the_run_id():
    shown = plan_commands(*star(3), NetworkSettings())
    applied = make_plan("abcdef", *star(3), NetworkSettings()).commands()
    assert [line.replace("xxxxxx", "abcdef") for line in shown] == applied


def test_nothing_goes_into_the_root_namespace():
    for line in plan_commands(*star(3), NetworkSettings()):
        assert re.match(r"(ip netns add|ip netns exec|ip -n|bridge -n|tc -n) tb-xxxxxx-", line), line


def test_first_made_then_shaped_then_addressed():
    lines = plan_commands(*star(1), NetworkSettings())
    order = [
        next(i for i, line in enumerate(lines) if mark in line)
        for mark in ("netns add", "link add", "fdb replace", "qdisc add", "addr add", "neigh replace")
    ]
    assert order == sorted(order)


def test_a_home_behind_a_shared_link_hangs_on_its_bridge():
    shared = (SharedLink("north", ("h2",), 50e6, 200e6, 0.002),)
    topology, links = Topology(("h1", "h2"), SERVER, shared), {"h1": LINK, "h2": LINK}
    plan = make_plan("abcdef", topology, links, NetworkSettings())
    core, north = plan.bridges
    assert (core.ports, north.ports) == (["d1", "y0", "y1"], ["u1", "y2"])
    assert core.macs[plan.hosts["h2"].mac] == "d1"
    assert north.macs == {plan.hosts["h2"].mac: "y2"}
    assert plan.hosts["h2"].shared_link == "north"
    assert plan.shared["north"].up_interface == "u1"
    assert plan.shapes["u1"].rate_bps == pytest.approx(50e6 * 1514 / 1448, rel=1e-6)
    assert plan.shapes["d1"].rate_bps == pytest.approx(200e6 * 1514 / 1448, rel=1e-6)
    assert plan.shared["north"].delay_s == 0.002


def test_open_vswitch_takes_the_bridges_place():
    topology, links = star(2)
    lines = plan_commands(topology, links, OVS)
    assert not any("type bridge" in line or " master " in line for line in lines)
    assert any(line.startswith("ovs-vsctl") for line in lines)
    flows = openvswitch.flows(make_plan("abcdef", topology, links, OVS).bridges[0])
    assert "dl_dst=02:00:0a:00:00:02,actions=output:y2" in " ".join(flows)


@pytest.mark.parametrize(
    ("homes", "links", "message"),
    [
        (("h1", "h1"), ("h1",), "home 'h1': the name is taken"),
        (("server",), ("server",), "home 'server': the name is taken"),
        (("core",), ("core",), "home 'core': the name is taken"),
        (("h1", "h2"), ("h1",), "home 'h2' has none; expected one for each home"),
        (("h1",), ("h1", "h11"), "unknown home 'h11'"),
    ],
)
def test_bad_topologies_and_links_are_refused(homes, links, message):
    with pytest.raises(InputError) as error:
        make_plan("abcdef", Topology(homes, SERVER), dict.fromkeys(links, LINK), NetworkSettings())
    assert message in str(error.value)


def test_a_rate_of_zero_names_the_home_and_direction():
    with pytest.raises(InputError, match="link of h1, uplink"):
        make_plan("abcdef", Topology(("h1",), SERVER), {"h1": Link(0, 1e6)}, NetworkSettings())


def test_more_homes_than_a_bridge_has_ports():
    topology, links = star(1023)
    with pytest.raises(InputError, match="expected 1023 at most"):
        make_plan("abcdef", topology, links, NetworkSettings())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"switch": "bridges"}, "did you mean 'bridge'"),
        ({"buffer_s": 0}, "expected more than 0"),
        ({"mtu": 100}, "expected 576 to 9000"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError) as error:
        NetworkSettings(**settings)
    assert message in str(error.value)

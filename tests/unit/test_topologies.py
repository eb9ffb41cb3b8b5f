"""Topology files, and the same topologies for stock Mininet."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from testbed.cluster import SharedLink
from testbed.cluster.topology_file import load_topology
from testbed.errors import InputError

TOPOLOGIES = Path(__file__).parents[2] / "topologies"

TWO_LEVEL = """\
kind: two-level
homes: [a, b, c]
server: {uplink: 500 Mbit/s, rtt: 4 ms}
neighbourhoods:
  - {name: north, homes: [a, b], uplink: 50 Mbit/s, downlink: 200 Mbit/s, delay: 2 ms}
"""


@pytest.fixture
def load(tmp_path):
    def from_text(text: str):
        path = tmp_path / "t.yaml"
        path.write_text(text)
        return load_topology(path)

    return from_text


def test_the_files_that_ship_are_valid():
    star, two_level = load_topology(TOPOLOGIES / "star.yaml"), load_topology(TOPOLOGIES / "two-level.yaml")
    assert (star.name, len(star.homes), star.shared_links) == ("star", 6, ())
    assert star.server_link.uplink_delay_s == 0.001
    assert [link.members for link in two_level.shared_links] == [("h1", "h2", "h3"), ("h4", "h5", "h6")]


def test_values_are_read_in_si_units_and_defaults_filled_in(load):
    topology = load(TWO_LEVEL)
    assert (topology.name, topology.homes) == ("t", ("a", "b", "c"))
    server = topology.server_link
    assert (server.uplink_bps, server.downlink_bps) == (5e8, 1e9)
    assert (server.uplink_delay_s, server.downlink_delay_s) == (0.002, 0.002)
    assert topology.shared_links == (SharedLink("north", ("a", "b"), 5e7, 2e8, 0.002),)


def test_neighbourhoods_may_count_the_homes_that_are_free(load):
    link = "uplink: 50 Mbit/s, downlink: 200 Mbit/s"
    topology = load(
        f"kind: two-level\nhomes: 5\nneighbourhoods:\n  - {{name: n, homes: [h2], {link}}}\n"
        f"  - {{name: m, homes: 3, {link}}}\n"
    )
    assert [link.members for link in topology.shared_links] == [("h2",), ("h1", "h3", "h4")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("kind: two-level", "kind: stra"), "line 1, kind: unknown kind 'stra'; expected one of: star"),
        (("kind: two-level", "knd: star"), "line 1: unknown key 'knd'"),
        (("kind: two-level", "kind: star"), "neighbourhoods: found them in a star; expected kind: two-level"),
        (("kind: two-level\n", ""), "no 'kind'"),
        (("homes: [a, b, c]", "homes: 0"), "line 2, homes: found '0'; expected 1 to 100000 homes"),
        (("homes: [a, b, c]", "homes: many"), "found 'many'; expected how many homes, or a list"),
        (("homes: [a, b, c]", "homes: [a, b, a]"), "homes[2]: home 'a' is there twice"),
        (("homes: [a, b, c]", "homes: [a, b, 9c]"), "homes[2]: found '9c'; expected a letter"),
        (("homes: [a, b, c]", "homes: [a, b, server]"), "found 'server'; expected another name"),
        (("homes: [a, b, c]", "homes: [a, b, core]"), "found 'core'; expected another name"),
        (("homes: [a, b]", "homes: [a, d]"), "homes[1]: unknown home 'd'; expected one of: a, b, c"),
        (("homes: [a, b]", "homes: 4"), "found '4'; expected 1 to 3"),
        (("homes: [a, b]", "homes: [a, a]"), "home 'a' is in neighbourhood 'this one' already"),
        (("homes: [a, b]", "homes: []"), "found no home"),
        (("500 Mbit/s", "500"), "line 3, server.uplink: '500' has no unit; expected a rate such as"),
        (("500 Mbit/s", "0"), "server.uplink: found '0'; expected more than 0"),
        (("500 Mbit/s", "5 ms"), "unknown unit 'ms' for a rate"),
        (("rtt: 4 ms", "rtt: -4 ms"), "server.rtt: found '-4 ms'; expected 0 or more"),
        (("rtt: 4 ms", "delay: 4 ms"), "line 3, server: unknown key 'delay'"),
        (("name: north", "name: a"), "found 'a'; expected a name that no home"),
        (("name: north", "nme: north"), "neighbourhoods[0]: unknown key 'nme'"),
        (("uplink: 50 Mbit/s, ", ""), "line 5, neighbourhoods[0]: no 'uplink'"),
        (("delay: 2 ms", "delay: [2 ms]"), "found a list; expected one value"),
        (("- {name", "- {homes: 1, name"), "key 'homes' is there twice"),
        (("kind: two-level", "kind: [two-level"), "is not valid YAML"),
    ],
)
def test_errors_name_line_key_value_and_expectation(load, change, message):
    assert change[0] in TWO_LEVEL
    with pytest.raises(InputError) as error:
        load(TWO_LEVEL.replace(*change, 1))
    assert message in str(error.value)
    assert "t.yaml" in str(error.value)


def test_nearest_name_is_suggested(load):
    with pytest.raises(InputError) as error:
        load(TWO_LEVEL.replace("server:", "sever:"))
    assert error.value.hint == "did you mean 'server'?"


def test_two_level_needs_neighbourhoods(load):
    with pytest.raises(InputError, match="no 'neighbourhoods'"):
        load("kind: two-level\nhomes: 3\n")


def test_missing_empty_and_foreign_files(load, tmp_path):
    with pytest.raises(InputError, match="can't be read: No such file"):
        load_topology(tmp_path / "nowhere.yaml")
    with pytest.raises(InputError, match="is empty"):
        load("")
    with pytest.raises(InputError, match="expected a mapping with kind, homes"):
        load("- a\n- b\n")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError):
        load_topology(tmp_path / "b.yaml")


def topo_module(name: str):
    pytest.importorskip("mininet.topo", reason="Mininet isn't installed")
    spec = importlib.util.spec_from_file_location(f"mn_{name}", TOPOLOGIES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_star_for_stock_mininet():
    topo = topo_module("star").topos["star"](4, 20, 100)
    assert topo.hosts() == ["h1", "h2", "h3", "h4", "server"]
    assert topo.switches() == ["s1"]
    info = topo.linkInfo("h1", "s1")
    assert (info["params1"], info["params2"]) == ({"bw": 20}, {"bw": 100})


def test_two_level_for_stock_mininet():
    topo = topo_module("two_level").topos["two-level"](2, 2, rtt=30)
    assert topo.hosts() == ["h1", "h2", "h3", "h4", "server"]
    assert topo.switches() == ["s1", "s2", "s3"]
    assert {frozenset(link) for link in topo.links()} >= {frozenset(("h3", "s3")), frozenset(("s3", "s1"))}
    assert topo.linkInfo("h1", "s2")["params1"] == {"bw": 20, "delay": "15.0ms"}
    assert topo.linkInfo("s2", "s1")["params1"] == {"bw": 50}

"""Names and addresses."""

from __future__ import annotations

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.kernel import names


def test_run_ids_are_six_hex_characters():
    assert names.is_run_id(names.new_run_id())
    assert not names.is_run_id("abc")
    assert not names.is_run_id("../../etc")


@given(st.text(min_size=1, max_size=200))
def test_any_home_name_gives_a_name_that_a_file_can_have(name):
    netns = names.namespace("abcdef", name)
    assert re.fullmatch(r"tb-abcdef-[A-Za-z0-9][A-Za-z0-9_.-]{0,39}", netns) or netns.startswith("tb-abcdef-")
    assert "/" not in netns
    assert len(netns) < 80
    assert netns != names.net_namespace("abcdef")


def test_plain_names_stay_readable():
    assert names.namespace("abcdef", "h12") == "tb-abcdef-h12"
    assert names.namespace("abcdef", "grandma_2.flat") == "tb-abcdef-grandma_2.flat"


def test_odd_names_are_told_apart():
    odd = ["net", "a/b", "a b", "ä", "h" * 50, "h" * 51]
    assert len({names.namespace("abcdef", name) for name in odd}) == len(odd)


def test_interface_names_fit_for_as_many_homes_as_there_are_addresses():
    for make in (names.host_interface, names.port, names.inner, names.bridge_port, names.ifb):
        assert len(make(names.MAX_HOMES)) <= names.INTERFACE_NAME_MAX


def test_addresses_are_distinct_hosts_of_the_subnet():
    subnet = ipaddress.ip_network(f"10.0.0.0/{names.SUBNET_BITS}")
    addresses = [ipaddress.ip_address(names.ip(i)) for i in range(3000)]
    assert len(set(addresses)) == 3000
    assert all(address in subnet and address.packed[3] not in (0, 255) for address in addresses)
    assert ipaddress.ip_address(names.ip(names.MAX_HOMES)) in subnet
    with pytest.raises(ValueError):
        names.ip(names.MAX_HOMES + 1)


def test_a_mac_address_holds_the_ip_address():
    assert names.ip(1) == "10.0.0.1"
    assert names.mac(1) == "02:00:0a:00:00:01"
    assert names.mac(0) == "02:00:0a:00:ff:fe"


def test_a_namespace_is_given_by_name_or_path():
    assert names.netns_path("tb-abcdef-h1") == "/run/netns/tb-abcdef-h1"
    assert names.netns_path("/proc/1/ns/net") == "/proc/1/ns/net"

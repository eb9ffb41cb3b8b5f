"""What `testbed doctor` says, and which delay backend is chosen, for machines of many kinds."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace

import pytest

from testbed.emulation.kernel.trying import Found
from testbed.emulation.machine import capabilities as c
from testbed.emulation.machine.capabilities import (
    Capabilities,
    can_run,
    choose_delay_backend,
    delay_needs,
    require_switch,
    rows,
)
from testbed.errors import CapabilityError, InputError

YES, NO = Found(True, "tried"), Found(False, "Specified qdisc kind is unknown.", "modprobe it")


def machine(**differences) -> Capabilities:
    """A machine that has everything, but for the differences."""
    found = {f.name: YES for f in fields(Capabilities) if f.type == "Found"}
    found["delay"] = {key: differences.pop(key, YES) for key in delay_needs()}
    return Capabilities(
        **found
        | {
            "cgroup_version": 2,
            "iproute2_version": "6.1.0",
            "congestion_controls": ("reno", "cubic"),
            "kernel": "6.1.0",
            "python": "3.11.2",
            "torch_version": "2.13.0",
            "cores": 2,
            "memory_bytes": 8 << 30,
            "available_memory_bytes": 4 << 30,
        }
        | differences
    )


def test_netem_is_chosen_where_it_works():
    assert choose_delay_backend(machine()) == "netem"
    assert choose_delay_backend(machine(netem=NO)) == "nfqueue"
    assert choose_delay_backend(machine(ifb=NO)) == "nfqueue"
    assert choose_delay_backend(machine(), "nfqueue") == "nfqueue"


def test_a_backend_that_does_not_work_is_refused_with_the_one_that_does():
    with pytest.raises(CapabilityError, match="kind is unknown") as error:
        choose_delay_backend(machine(netem=NO), "netem")
    assert "network.delay_backend=nfqueue" in error.value.hint
    assert "modprobe it" in error.value.hint
    with pytest.raises(CapabilityError, match="netem: Specified qdisc kind is unknown.; nfqueue: Specified"):
        choose_delay_backend(machine(netem=NO, nfqueue=NO))
    with pytest.raises(InputError, match="did you mean 'netem'"):
        choose_delay_backend(machine(), "netm")


def test_the_switch_decides_too():
    assert choose_delay_backend(machine(), switch="ovs") == "netem"
    with pytest.raises(CapabilityError, match="nothing can delay packets behind switch 'ovs': netem: "):
        choose_delay_backend(machine(netem=NO), switch="ovs")
    with pytest.raises(InputError, match="'ovs' with delay backend 'nfqueue', which works with bridge; .*: netem"):
        choose_delay_backend(machine(), "nfqueue", "ovs")


def test_a_machine_with_everything_can_run():
    assert can_run(machine()) == (True, [])
    assert all(row.ok for row in rows(machine()))


@pytest.mark.parametrize("lacking", ["openvswitch", "netem", "netem_seed", "memory_cgroup", "uml", "nfqueue"])
def test_what_has_a_substitute_is_not_needed(lacking):
    assert can_run(machine(**{lacking: NO}))[0]


@pytest.mark.parametrize("lacking", ["network_namespaces", "veth", "htb", "mirred", "mininet", "torch"])
def test_what_every_run_needs_is_named_with_its_remedy(lacking):
    fine, reasons = can_run(machine(**{lacking: NO}))
    assert not fine
    assert "modprobe it" in reasons[0]


def test_without_any_delay_backend_nothing_runs():
    fine, reasons = can_run(machine(netem=NO, nfqueue=NO))
    assert not fine
    assert "no delay backend" in reasons[0]


def test_rows_show_what_is_missing():
    row = next(row for row in rows(machine(netem=NO)) if row.name == "netem")
    assert (row.ok, row.detail, row.remedy) == (False, NO.how, NO.remedy)
    assert row.needed_for == "delay backend netem"


def test_a_switch_that_does_not_work_is_refused():
    require_switch(machine(openvswitch=NO), "bridge")
    with pytest.raises(CapabilityError) as error:
        require_switch(machine(openvswitch=NO), "ovs")
    assert error.value.hint == "modprobe it"


def test_without_root_nothing_is_tried_and_the_reason_is_root_alone(monkeypatch):
    monkeypatch.setattr(c.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(c.kernel_probes, "network", lambda attempts: pytest.fail("tried without root"))
    found = c.probe()
    fine, reasons = can_run(found)
    assert not fine
    assert len(reasons) == 1
    assert "sudo" in reasons[0]
    assert "vagrant up" in reasons[0]
    json.dumps(asdict(found))


@pytest.mark.parametrize(("ids", "fine"), [("0 0 4294967295", True), ("0 1000 1", False), ("0 100000 65536", False)])
def test_root_of_a_user_namespace_is_not_enough(ids, fine, tmp_path, monkeypatch):
    monkeypatch.setattr(c.os, "geteuid", lambda: 0)
    (tmp_path / "uid_map").write_text("  ".join(ids.split()) + "\n")
    assert c._root(tmp_path / "uid_map").available == fine
    assert c._root(tmp_path / "none").available


def test_a_missing_program_is_named(monkeypatch):
    monkeypatch.setattr(c.shutil, "which", lambda name: None if name == "tc" else f"/bin/{name}")
    monkeypatch.setattr(c.os, "geteuid", lambda: 1000)
    found = c.probe()
    assert not found.iproute2.available
    assert found.iproute2.how == "no tc"
    assert "apt install iproute2" in found.iproute2.remedy


def test_open_vswitch_names_what_is_missing(monkeypatch):
    monkeypatch.setattr(c.shutil, "which", lambda name: None)
    assert c._openvswitch(YES).how == "no ovsdb-server"
    assert "a kernel" in c._openvswitch(NO).remedy
    monkeypatch.setattr(c.shutil, "which", lambda name: f"/bin/{name}")
    assert "modprobe openvswitch" in c._openvswitch(replace(NO, remedy="")).remedy

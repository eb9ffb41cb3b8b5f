"""Open vSwitch instead of the Linux bridge, and the shipped topologies in stock Mininet."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from steady import measured
from traffic import Flow, ping_ms

from testbed.cluster import SharedLink
from testbed.errors import CapabilityError

pytestmark = [pytest.mark.emulation, measured]
TOPOLOGIES = Path(__file__).parents[2] / "topologies"


def test_a_kernel_without_open_vswitch_is_told_the_remedy(build, capabilities):
    if capabilities.openvswitch.available:
        pytest.skip("this kernel has Open vSwitch")
    with pytest.raises(CapabilityError) as error:
        build(1, switch="ovs", delay_backend="netem")
    assert "apt install openvswitch-switch" in error.value.hint
    assert "switch: bridge" in error.value.hint


def test_open_vswitch_carries_the_network(build, capabilities):
    if not capabilities.openvswitch.available:
        pytest.skip(f"no Open vSwitch: {capabilities.openvswitch.how}")
    north = SharedLink("north", ("h1", "h2"), 8e6, 60e6)
    network = build(3, 10, 10, switch="ovs", delay_backend="netem", shared=(north,))
    assert network.net.pingAll() == 0.0
    with Flow(network, "h3", "server") as flow:
        assert flow.goodput_bps(2, warm_up_s=1.5) == pytest.approx(10e6, rel=0.1)
    network.link_down("h1")
    assert not ping_ms(network, "h1", "server", 1)
    assert ping_ms(network, "h2", "server", 1)
    network.link_up("h1")
    assert ping_ms(network, "h1", "server", 1)


@pytest.mark.parametrize(("file", "topo", "pairs"), [("star.py", "star,3", 12), ("two_level.py", "two-level,2,1", 6)])
def test_stock_mininet_builds_the_shipped_topologies(file, topo, pairs):
    """In namespaces of its own: Mininet cleans up by patterns, and after an error kills what matches."""
    if not shutil.which("mn"):
        pytest.skip("Mininet's mn isn't installed")
    mn = f"mn --custom /mnt/{file} --topo {topo} --switch lxbr --controller none --link tc --test pingall"
    done = subprocess.run(
        [
            "unshare",
            "--net",
            "--pid",
            "--mount",
            "--fork",
            "--mount-proc",
            "sh",
            "-c",
            f"mount --bind {TOPOLOGIES} /mnt && mount -t tmpfs tmpfs /tmp && mount -o bind,ro /proc/sys /proc/sys && ip link set lo up && {mn}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert f"0% dropped ({pairs}/{pairs} received)" in done.stdout + done.stderr

"""Start and stop of emulated networks, against stock Mininet on the same machine in the same run.

    sudo python tests/bench/bench_network.py            # 64, 256 and 1,000 homes both ways; takes four minutes
    sudo python tests/bench/bench_network.py --hosts 64

Prints one JSON object a line: measurements, then ratios. Both networks are a star with 20 Mbit/s up and
100 Mbit/s down for each home; stock Mininet uses its Linux bridge and TCLink. After a stop the kernel goes on
removing namespaces in the background, so `start_again_s` is a start right after it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

TARGET = 1 / 5  # of stock Mininet's times
UP_MBPS, DOWN_MBPS, SERVER_MBPS = 20, 100, 1000


def ours(homes: int) -> dict:
    """Start and stop an EmulatedNetwork with `homes` homes."""
    from testbed.cluster import Link, Topology
    from testbed.emulation import cleanup
    from testbed.emulation.network.emulated import EmulatedNetwork
    from testbed.emulation.state import RunState

    names = tuple(f"h{i}" for i in range(1, homes + 1))
    server = Link(SERVER_MBPS * 1e6, SERVER_MBPS * 1e6)
    links = dict.fromkeys(names, Link(UP_MBPS * 1e6, DOWN_MBPS * 1e6))
    import mininet.net  # noqa: F401  the import is in neither's time

    state = RunState.create(command="bench_network")
    times = [time.perf_counter()]

    def lap() -> float:
        times.append(time.perf_counter())
        return times[-1] - times[-2]

    try:
        network = EmulatedNetwork(state, Topology(names, server), links)
        network.start()
        start_s = lap()
        ping = ["ping", "-c1", "-W2", network.hosts["server"].ip]
        reached = "1 received" in network.run(names[-1], ping).stdout
        slower = dict.fromkeys(names, Link(UP_MBPS * 5e5, DOWN_MBPS * 5e5))
        lap()
        network.set_links(slower)
        set_links_s = lap()
        network.counters()
        counters_s = lap()
        network.stop()
        stop_s = lap()
        network = EmulatedNetwork(state, Topology(names, server), links)
        network.start()
        start_again_s = lap()
        network.stop()
    finally:
        cleanup.teardown(state)
    return {
        "what": "testbed",
        "homes": homes,
        "reached": reached,
        "start_s": start_s,
        "stop_s": stop_s,
        "start_again_s": start_again_s,
        "set_links_ms_a_home": set_links_s / homes * 1e3,
        "counters_ms": counters_s * 1e3,
    }


def stock(homes: int) -> dict:
    """The same star by stock Mininet. Call it in namespaces of its own."""
    from mininet.link import TCLink
    from mininet.log import setLogLevel
    from mininet.net import Mininet
    from mininet.nodelib import LinuxBridge
    from mininet.topo import Topo

    class Star(Topo):
        def build(self, n: int) -> None:
            core = self.addSwitch("s1")
            self.addLink(self.addHost("server"), core, bw=SERVER_MBPS)
            for i in range(1, n + 1):
                self.addLink(self.addHost(f"h{i}"), core, params1={"bw": UP_MBPS}, params2={"bw": DOWN_MBPS})

    setLogLevel("critical")
    start = time.perf_counter()
    network = Mininet(Star(homes), switch=LinuxBridge, link=TCLink, controller=None)
    network.start()
    started = time.perf_counter()
    last = network.get(f"h{homes}")
    reached = "1 received" in last.cmd(f"ping -c1 -W2 {network.get('server').IP()}")
    stopping = time.perf_counter()
    network.stop()
    stopped = time.perf_counter()
    return {
        "what": "stock Mininet",
        "homes": homes,
        "reached": reached,
        "start_s": started - start,
        "stop_s": stopped - stopping,
    }


def stock_apart(homes: int) -> dict:
    """`stock` in namespaces of its own: it can't change the machine's settings, nor leave anything."""
    inside = (  # stock Mininet gets a /tmp of its own; what of ours lies in it is kept, at its place
        'mount --bind "$1" /mnt && mount --bind "$2" /media && mount -t tmpfs tmpfs /tmp && mkdir -p "$1" '
        '&& mount --bind /mnt "$1" && mkdir -p "$2" && mount --bind /media "$2" '
        '&& mount -o bind,ro /proc/sys /proc/sys && ip link set lo up && cd "$1" && shift 2 && exec "$@"'
    )
    ours = [str(Path(__file__).resolve().parents[2]), sys.prefix]
    again = [sys.executable, str(Path(__file__).resolve()), "--stock-only", str(homes)]
    done = subprocess.run(
        ["unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc", "sh", "-c", inside, "sh", *ours, *again],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"stock Mininet failed:\n{done.stdout}{done.stderr}")
    return json.loads(lines[-1])


def show(result: dict) -> dict:
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in result.items()}), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--hosts", default="64,256,1000", help="how many homes, one after the other (default %(default)s)"
    )
    parser.add_argument("--stock-only", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.stock_only:
        show(stock(asked.stock_only))
        return
    for homes in map(int, asked.hosts.split(",")):
        mine = show(ours(homes))
        theirs = show(stock_apart(homes))
        show(
            {
                "bench": "network",
                "homes": homes,
                "start_ratio": mine["start_s"] / theirs["start_s"],
                "stop_ratio": mine["stop_s"] / theirs["stop_s"],
                "target": TARGET,
                "ok": all(mine[k] <= TARGET * theirs[k] for k in ("start_s", "stop_s"))
                and mine["reached"]
                and theirs["reached"],
            }
        )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()

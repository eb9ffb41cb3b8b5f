"""Neighbourhoods of homes that share a link on the way to the server: for Mininet alone, without the testbed.

    sudo mn --custom topologies/two_level.py --topo two-level,2,3 --switch lxbr --controller none --link tc

Rates in Mbit/s, rtt in ms (it needs netem). Mininet shapes each direction where it is sent, the uplink in the
home itself; `testbed shell` builds the same network with the shaping that docs/network.md describes.
"""

from mininet.topo import Topo


def link(towards_core, from_core, rtt):
    """Link parameters: each end's own sending rate, and half of the delay."""
    delay = {"delay": f"{rtt / 2}ms"} if rtt else {}
    return {"params1": {"bw": towards_core, **delay}, "params2": {"bw": from_core, **delay}}


class TwoLevelTopo(Topo):
    """h1 … hN in order on their neighbourhoods' switches s2, s3, …; these and `server` on the core, s1."""

    def build(
        self, neighbourhoods=2, homes=3, uplink=20, downlink=100, rtt=0, shared_up=50, shared_down=200, server=1000
    ):
        core = self.addSwitch("s1")
        self.addLink(self.addHost("server"), core, **link(server, server, 0))
        for n in range(neighbourhoods):
            aggregation = self.addSwitch(f"s{n + 2}")
            self.addLink(aggregation, core, **link(shared_up, shared_down, 0))
            for i in range(n * homes + 1, (n + 1) * homes + 1):
                self.addLink(self.addHost(f"h{i}"), aggregation, **link(uplink, downlink, rtt))


topos = {"two-level": TwoLevelTopo}

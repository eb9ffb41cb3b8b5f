"""Homes behind access links of their own, and a server: for Mininet alone, without the testbed.

    sudo mn --custom topologies/star.py --topo star,6 --switch lxbr --controller none --link tc
    sudo mn --custom topologies/star.py --topo star,homes=6,uplink=20,downlink=100,rtt=30 … --link tc

Rates in Mbit/s, rtt in ms (it needs netem). Mininet shapes each direction where it is sent, the uplink in the
home itself; `testbed shell` builds the same network with the shaping that docs/network.md describes.
"""

from mininet.topo import Topo


def access_link(uplink, downlink, rtt):
    """Link parameters of a host's access link: each end's own sending rate, and half of the delay."""
    delay = {"delay": f"{rtt / 2}ms"} if rtt else {}
    return {"params1": {"bw": uplink, **delay}, "params2": {"bw": downlink, **delay}}


class StarTopo(Topo):
    """h1 … hN and `server`, all on the switch s1."""

    def build(self, homes=6, uplink=20, downlink=100, rtt=0, server=1000):
        core = self.addSwitch("s1")
        self.addLink(self.addHost("server"), core, **access_link(server, server, 0))
        for i in range(1, homes + 1):
            self.addLink(self.addHost(f"h{i}"), core, **access_link(uplink, downlink, rtt))


topos = {"star": StarTopo}

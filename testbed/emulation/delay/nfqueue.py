"""Delay by NFQUEUE: for kernels without netem. Packets wait at the receiving host's ingress, see `daemon`."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from testbed.emulation.delay import netfilter, protocol, shared_stats
from testbed.emulation.delay.base import DelayStats, HostPort, PathDelay, SharedPort
from testbed.errors import CapabilityError, TestbedError

_STUCK_S = 2.0


class NfqueueBackend:
    """See `testbed.emulation.delay.base.DelayBackend`.

    Args:
        log: where the daemon's error output goes (a path), or None to throw it away.
    """

    name = "nfqueue"
    seeded = True

    def __init__(self, log: str | os.PathLike | None = None):
        self._log = log
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._reader: shared_stats.Reader | None = None
        self._hosts: dict[str, HostPort] = {}
        self._last = DelayStats()
        self.scheduler = ""

    @property
    def pid(self) -> int | None:
        """The daemon's process id, while it should be running."""
        return self._process.pid if self._process else None

    def start(self, hosts: Mapping[str, HostPort], delays: Mapping[str, PathDelay],
              shared: Mapping[str, SharedPort], seed: int) -> None:
        if self._process:
            raise RuntimeError("already started")
        areas = {member: link.name for link in shared.values() for member in link.members}
        ours, theirs = socket.socketpair()
        fd = shared_stats.create()
        log = open(self._log, "ab") if self._log else subprocess.DEVNULL  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "testbed.emulation.delay.daemon", str(theirs.fileno()), str(fd)],
                pass_fds=(theirs.fileno(), fd), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )
            self._reader = shared_stats.Reader(fd)
        finally:
            theirs.close()
            os.close(fd)
            if self._log:
                log.close()
        self._control, self._hosts = ours, dict(hosts)
        try:
            ours.settimeout(10.0 + 0.05 * len(hosts))
            protocol.send(ours, protocol.Start(
                [protocol.Host(h.name, h.mac, h.netns, h.interface, areas.get(h.name)) for h in hosts.values()],
                dict(delays), {link.name: link.delay_s for link in shared.values()}, seed,
            ))
            answer = self._answer()
            ours.settimeout(_STUCK_S)
        except BaseException:
            self.stop()
            raise
        if isinstance(answer, protocol.Failed):
            self.stop()
            raise _failure(answer)
        self.scheduler = answer.scheduler

    def _answer(self) -> protocol.Ready | protocol.Failed:
        inbox = protocol.Inbox()
        while True:
            try:
                data = self._control.recv(1 << 16)
            except TimeoutError:
                raise TestbedError("the delay daemon did not start in time") from None
            if not data:
                where = f"; see {self._log}" if self._log else ""
                raise TestbedError(f"the delay daemon ended at its start{where}")
            for message in inbox.feed(data):
                return message

    def set(self, changes: Mapping[str, PathDelay]) -> None:
        for name in changes:
            self._hosts[name]  # KeyError here, not in the daemon
        if not self._control:
            raise RuntimeError("not started")
        try:
            protocol.send(self._control, protocol.Change(dict(changes)))
        except OSError as error:
            raise TestbedError(f"the delay daemon does not listen: {error}") from error

    def stats(self) -> DelayStats:
        if self._reader:
            self._last = self._reader.read()
        return self._last

    @property
    def alive(self) -> bool:
        """Whether the daemon runs (a stuck one does too: see DelayStats.age_s)."""
        return bool(self._process) and self._process.poll() is None

    def stop(self) -> None:
        process, control = self._process, self._control
        if not process:
            return
        clean = False
        try:
            control.settimeout(0.2)
            protocol.send(control, protocol.Stop())
        except OSError:
            pass
        try:
            clean = process.wait(_STUCK_S + 0.005 * len(self._hosts)) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self.stats()
        control.close()
        if not clean:
            self._remove_rules()
        self._process = self._control = self._reader = None

    def _remove_rules(self) -> None:
        """For a daemon that could not; namespaces that are gone took their rules along."""
        for host in self._hosts.values():
            try:
                with netfilter.inside(host.netns), netfilter.open_socket() as sock:
                    netfilter.remove_rule(sock)
            except OSError:
                continue

    def commands(self) -> list[str]:
        return [
            f"nsenter --net={h.netns} iptables -t mangle -A PREROUTING -i {h.interface} -j NFQUEUE --queue-num 0"
            "  # applied over netlink, in a table of its own: " + netfilter.TABLE.decode()
            for h in self._hosts.values()
        ]


def _failure(answer: protocol.Failed) -> TestbedError:
    message = f"NFQUEUE can't be set up at {answer.where}: {answer.text}"
    if answer.code == errno.EBUSY:
        return TestbedError(message, hint="another process reads queue 0 of that namespace")
    if answer.code in (errno.ENOENT, errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EINVAL):
        return CapabilityError(message, hint="the kernel lacks NFQUEUE (NETFILTER_NETLINK_QUEUE, and nf_tables with "
                                             "NFT_COMPAT or NFT_QUEUE); load the modules or use the netem backend")
    if answer.code == errno.EPERM:
        return CapabilityError(message, hint="run as root")
    return TestbedError(message)

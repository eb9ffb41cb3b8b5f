"""Delay by NFQUEUE: for kernels without netem. Packets wait at the bridge that leads to their receiver."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping

from testbed.emulation.delay import netfilter, protocol, shared_stats
from testbed.emulation.delay.base import Declaration, DelayStats, HostPort, Need, SharedPort
from testbed.emulation.kernel.namespaces import enter_namespace, in_thread
from testbed.emulation.kernel.trying import UML_HINT, Found
from testbed.errors import CapabilityError, TestbedError
from testbed.scenario.link_model import PathDelay

_START_S = 20.0
_STUCK_S = 2.0


class NfqueueBackend:
    """See `testbed.emulation.delay.base.DelayBackend`.

    Args:
        log: where the daemon's error output goes (a path), or None to throw it away.
    """

    name = "nfqueue"
    seeded = True
    declares = Declaration(
        needs=(
            Need(
                "nfqueue",
                "NFQUEUE",
                lambda: _try_queue(),
                f"modprobe -a nfnetlink_queue xt_NFQUEUE nft_compat{UML_HINT}",
            ),
        ),
        order=20,
    )

    def __init__(self, log: str | os.PathLike | None = None):
        self._log = log
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._reader: shared_stats.Reader | None = None
        self._hosts: dict[str, HostPort] = {}
        self._netns = ""
        self._last = DelayStats()
        self.rule = self.scheduler = ""

    @property
    def pid(self) -> int | None:
        """The daemon's process id, while it should be running."""
        return self._process.pid if self._process else None

    def start(
        self,
        hosts: Mapping[str, HostPort],
        delays: Mapping[str, PathDelay],
        shared: Mapping[str, SharedPort],
        seed: int,
    ) -> None:
        if self._process:
            raise RuntimeError("already started")
        if not hosts:
            raise ValueError("no hosts")
        namespaces = {h.net_netns for h in hosts.values()}
        if len(namespaces) > 1:
            raise ValueError(f"hosts' bridges are in several namespaces: {sorted(namespaces)}")
        (self._netns,) = namespaces
        prefix = common_prefix(hosts.values(), shared.values())
        _need_linux_bridge(next(iter(hosts.values())))
        areas = {member: link.name for link in shared.values() for member in link.members}
        ours, theirs = socket.socketpair()
        fd = shared_stats.create()
        log = open(self._log, "ab") if self._log else subprocess.DEVNULL  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "testbed.emulation.delay.daemon", str(theirs.fileno()), str(fd)],
                pass_fds=(theirs.fileno(), fd),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
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
            ours.settimeout(_START_S)
            protocol.send(
                ours,
                protocol.Start(
                    self._netns,
                    prefix,
                    [protocol.Host(h.name, h.mac, h.port, h.bridge_port, areas.get(h.name)) for h in hosts.values()],
                    dict(delays),
                    {link.name: link.delay_s for link in shared.values()},
                    seed,
                ),
            )
            answer = self._answer()
            ours.settimeout(_STUCK_S)
            if isinstance(answer, protocol.Failed):
                raise _failure(answer)
        except BaseException:
            self.stop()
            raise
        self.rule, self.scheduler = answer.rule, answer.scheduler

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
        reader = self._reader
        if reader:
            self._last = reader.read()
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
            clean = process.wait(_STUCK_S) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self.stats()
        control.close()
        if not clean:
            self._remove_rule()
        self._process = self._control = self._reader = None

    def _remove_rule(self) -> None:
        """For a daemon that could not; a namespace that is gone took its rule along."""

        def there() -> None:
            enter_namespace(self._netns)
            with netfilter.open_socket() as sock:
                netfilter.remove_rule(sock)

        with contextlib.suppress(OSError):
            in_thread(there)

    def commands(self) -> list[str]:
        return [f"# {self._netns}: {self.rule}; read by testbed.emulation.delay.daemon ({self.scheduler})"]


def common_prefix(hosts: Iterable[HostPort], shared: Iterable[SharedPort]) -> str:
    """By which the rule knows the last port on a packet's way, so that none is delayed twice."""
    prefix = os.path.commonprefix([h.bridge_port for h in hosts]).rstrip("0123456789")
    others = [name for s in shared for name in (s.up_interface, s.down_interface) if name.startswith(prefix)]
    if not prefix or others:
        raise ValueError(f"hosts' ports need a prefix of their own; {prefix!r} is also that of {others}")
    return prefix


def _need_linux_bridge(host: HostPort) -> None:
    """Other switches' packets don't pass netfilter's hooks, and so would not be delayed.

    Raises CapabilityError.
    """

    def bridged() -> bool:
        enter_namespace(host.net_netns)
        argv = ["bridge", "link", "show", "dev", host.bridge_port]
        done = subprocess.run(argv, capture_output=True, check=False)
        return bool(done.stdout.strip())

    if not in_thread(bridged):
        raise CapabilityError(
            f"{host.bridge_port}, the port of {host.name}, is not on a Linux bridge: NFQUEUE can't delay its packets",
            hint="use network.switch: bridge, or network.delay_backend: netem",
        )


def _failure(answer: protocol.Failed) -> TestbedError:
    message = f"NFQUEUE can't be set up: {answer.text}"
    if answer.code == errno.EBUSY:
        return TestbedError(message, hint="another process reads the namespace's queues")
    if answer.code == errno.EPERM:
        return CapabilityError(message, hint="run as root")
    return CapabilityError(
        message,
        hint="the kernel needs NETFILTER_NETLINK_QUEUE and, for bridged packets, NF_TABLES with NFT_QUEUE, "
        "or BRIDGE_NETFILTER with NFT_COMPAT: modprobe -a nfnetlink_queue nft_queue, or use netem",
    )


def _try_queue() -> Found:
    """Read a queue and send bridged packets to it, as the delay line does."""
    try:
        with contextlib.closing(netfilter.open_socket()) as sock:
            netfilter.bind_queue(sock, 0, 16)
            rule = netfilter.add_rule(sock, "y", 1)
            netfilter.remove_rule(sock)
    except OSError as error:
        return Found(False, str(error))
    return Found(True, rule)

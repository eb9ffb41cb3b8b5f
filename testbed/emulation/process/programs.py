"""Any program, unmodified, in hosts of a network: with ranks, a hosts file and a host name of its own.

Each program gets namespaces for mounts (its /etc/hosts lists the emulated hosts), host name (so that a name
looked up, as gloo does, is the emulated address) and processes: when its first process ends, the kernel ends
all that it started, whatever sessions they made for themselves. Nothing is written to the machine's file
system.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol

from testbed.emulation.state import RunState, process_value
from testbed.errors import InputError, TestbedError, unknown

MASTER_PORT = 29500  # torchrun's default
TIMED_OUT = 124  # exit code, as of timeout(1)
_GRACE_S = 3.0  # between SIGTERM and SIGKILL
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

# $1: the host's name. The hosts file goes into a file system of its own, which is visible in this mount
# namespace only and stays alive through the bind mount. So does the instruction to look up names there and nowhere
# else: a name server that nobody answers for would be waited for. The shell stays: as first process of its namespace it
# would be immune to signals that it doesn't handle, which the program itself must not be.
_SCRIPT = """
hostname "$1" && mount -t tmpfs testbed-hosts /mnt && printf '%s' "$TESTBED_HOSTS_FILE" > /mnt/hosts &&
mount --bind /mnt/hosts /etc/hosts &&
{ [ ! -e /etc/nsswitch.conf ] || {
    sed 's/^hosts:.*/hosts: files/' /etc/nsswitch.conf > /mnt/nsswitch.conf &&
    mount --bind /mnt/nsswitch.conf /etc/nsswitch.conf; }
} && umount /mnt || exit 125
unset TESTBED_HOSTS_FILE
shift
"$@"
exit $?
"""


class Host(Protocol):
    """What is needed of `testbed.emulation.network.hosts.HostPort`."""

    name: str
    netns_path: str
    ip: str
    interface: str


class Network(Protocol):
    hosts: Mapping[str, Any]


def hosts_file(network: Network) -> str:
    """An /etc/hosts with all hosts of the network.

    The second line of each is for programs that listen on IPv6 sockets, as c10d does, and look up who has called. Its
    name is another one, so that a host's own name is its IPv4 address and nothing else.
    """
    lines = ["127.0.0.1 localhost"]
    for name, h in network.hosts.items():
        lines += [f"{h.ip} {name} {name}.testbed", f"::ffff:{h.ip} {name}.testbed"]
    return "\n".join(lines) + "\n"


def environment(network: Network, hosts: Sequence[str], rank: int) -> dict[str, str]:
    """What is set for the program of that rank among `hosts`; the first of them is the master."""
    host = network.hosts[hosts[rank]]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": network.hosts[hosts[0]].ip,
        "MASTER_PORT": str(MASTER_PORT),
        "GLOO_SOCKET_IFNAME": host.interface,
        "NCCL_SOCKET_IFNAME": host.interface,
        "TP_SOCKET_IFNAME": host.interface,
        "OMP_NUM_THREADS": "1",
        "TESTBED_HOST": hosts[rank],
    }


def default_hosts(network: Network, *, server: bool = False) -> list[str]:
    """All homes in the network's order, then the server if asked for: the ranks of `exec --all`."""
    homes = [name for name in network.hosts if name != "server"]
    return homes + (["server"] if server else [])


def worst(codes: Mapping[str, int]) -> int:
    """One exit code for several programs: the largest; a signal counts as 128 and its number."""
    return max((128 - c if c < 0 else c for c in codes.values()), default=0)


@dataclass
class Program:
    """A program that runs in a host."""

    host: str
    process: subprocess.Popen
    recorded: str

    def end(self, state: RunState | None = None, grace_s: float = _GRACE_S) -> int:
        """SIGTERM to its group, SIGKILL to all of it after `grace_s`; gives its exit code. Idempotent."""
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self.process.wait()
        if state is not None:
            state.forget("process", self.recorded)
        return self.process.returncode

    def _signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signum)


def start_program(
    network: Network, hosts: Sequence[str], rank: int, argv: Sequence[str], *, state: RunState | None = None,
    env: Mapping[str, str] | None = None, cwd: str | None = None, stdin: Any = None, stdout: Any = None,
    stderr: Any = None,
) -> Program:  # fmt: skip
    """Start `argv` in host `hosts[rank]`; for programs beside others. `end` it in the same thread that
    started it.

    Args:
        env: beside the calling process's environment and `environment`; overrides both.
        state: where the process is recorded.

    Raises:
        InputError: an unknown host; TestbedError: nsenter or unshare are missing.
    """
    name = hosts[rank]
    if name not in network.hosts:
        raise unknown("host", "host", name, network.hosts)
    host = network.hosts[name]
    command = [
        "nsenter", f"--net={host.netns_path}", "--",
        "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "--",
        "sh", "-c", _SCRIPT, "sh", name, *argv,
    ]  # fmt: skip
    variables = {
        **os.environ, **environment(network, hosts, rank), **(env or {}),
        "TESTBED_HOSTS_FILE": hosts_file(network),
    }  # fmt: skip
    terminal = stdin is None and stdout is None and sys.stdin is not None and _is_terminal(0)

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if terminal:  # a group of its own in the foreground, as a shell starts it: Ctrl-C is the program's
            os.setpgid(0, 0)
            before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            os.tcsetpgrp(0, os.getpid())
            signal.signal(signal.SIGTTOU, before)
        else:
            os.setsid()
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(s, signal.SIG_DFL)

    try:
        process = subprocess.Popen(
            command, env=variables, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, preexec_fn=prepare
        )  # noqa: PLW1509
    except FileNotFoundError as error:
        if error.filename == cwd:
            raise InputError("cwd", f"no directory {cwd}") from None
        raise TestbedError("nsenter is missing", hint="apt-get install util-linux") from None
    recorded = process_value(process.pid)
    if state is not None:
        state.record("process", recorded)
    return Program(name, process, recorded)


def run_program(
    network: Network, hosts: Sequence[str], argv: Sequence[str], *, state: RunState | None = None,
    env: Mapping[str, str] | None = None, cwd: str | None = None, prefix: bool = True,
    timeout: float | None = None, out: IO[str] | None = None, err: IO[str] | None = None,
) -> dict[str, int]:  # fmt: skip
    """Run `argv` in each of `hosts` at once, ranked in that order, and wait for all of them.

    Args:
        prefix: print each line with its host's name before it; False: the programs have our own stdin and
            stdout, terminal included.
        timeout: real seconds; then what still runs is ended, with exit code 124.
        out, err: where prefixed lines go; sys.stdout and sys.stderr by default.

    Returns:
        Exit code of each; negative: the signal that ended it; 125: its namespaces could not be set up.

    Raises:
        InputError: an unknown host, or one named twice; KeyboardInterrupt and the like end all programs
            first.
    """
    hosts = list(hosts)
    for name in hosts:
        if name not in network.hosts:
            raise unknown("host", "host", name, network.hosts)
        if hosts.count(name) > 1:
            raise InputError("hosts", f"{name} is named {hosts.count(name)} times; expected once")
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    deadline = None if timeout is None else time.monotonic() + timeout
    programs: list[Program] = []
    late: set[str] = set()
    with _terminal_kept(not prefix):
        try:
            for rank in range(len(hosts)):
                programs.append(start_program(
                    network, hosts, rank, argv, state=state, env=env, cwd=cwd, **(pipes if prefix else {})
                ))  # fmt: skip
            if prefix:
                width = max(map(len, hosts))
                readers = _Printer(programs, width, out or sys.stdout, err or sys.stderr)
                readers.run(deadline)
            for program in programs:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    program.process.wait(left)
                except subprocess.TimeoutExpired:
                    late.add(program.host)
        finally:
            for program in programs:
                if program.process.poll() is None:
                    program._signal(signal.SIGTERM)
            for program in programs:
                program.end(state)
    return {p.host: TIMED_OUT if p.host in late else p.process.returncode for p in programs}


class _Printer:
    """Lines of many programs, each with its host's name, until all have closed their output."""

    def __init__(self, programs: Sequence[Program], width: int, out: IO[str], err: IO[str]):
        self._selector = selectors.DefaultSelector()
        self._rest: dict[int, bytes] = {}
        for p in programs:
            for stream, to in ((p.process.stdout, out), (p.process.stderr, err)):
                os.set_blocking(stream.fileno(), False)
                self._rest[stream.fileno()] = b""
                self._selector.register(stream, selectors.EVENT_READ, (f"{p.host:{width}} | ", to))

    def run(self, deadline: float | None) -> None:
        while self._selector.get_map():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            for key, _ in self._selector.select(left):
                head, to = key.data
                data = os.read(key.fd, 65536)
                lines = (self._rest[key.fd] + data).split(b"\n")
                self._rest[key.fd] = lines.pop() if data else b""
                if not data:
                    self._selector.unregister(key.fileobj)
                    key.fileobj.close()
                    lines = [line for line in lines if line]  # a last one without an end
                for line in lines:
                    to.write(f"{head}{line.decode(errors='replace')}\n")
                to.flush()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False


@contextlib.contextmanager
def _terminal_kept(wanted: bool) -> Iterator[None]:
    """Whatever program took the terminal's foreground, it is ours again afterwards."""
    if not wanted or not _is_terminal(0) or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        yield
    finally:
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            os.tcsetpgrp(0, os.getpgrp())
        signal.signal(signal.SIGTTOU, before)

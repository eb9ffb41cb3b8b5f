"""The first process in the second kernel: mounts what a system needs, runs one program and relays its streams.

Runs by its path, with the standard library alone. Argument: the folder with request.json, made by session.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pty
import resource
import select
import signal
import socket
import struct
import sys
import termios
import time
import traceback
import tty

import frames

LINE = "/dev/ttyS0"
PRIVATE = "/run/testbed-uml"  # modprobe for this kernel
TEMPORARY = "/run/tmp"  # where temporary files go: they end with this kernel
_POWER_OFF = 0x4321FEDC  # LINUX_REBOOT_CMD_POWER_OFF
_DRAIN_S = 1.0  # for output of a program that has ended while others still hold its terminal
_libc = ctypes.CDLL(None, use_errno=True)


def mount(kind: str, at: str, options: str = "") -> None:
    os.makedirs(at, exist_ok=True)
    if _libc.mount(kind.encode(), at.encode(), kind.encode(), 0, options.encode()):
        code = ctypes.get_errno()
        if code != errno.EBUSY:  # the kernel mounts /dev itself
            raise OSError(code, os.strerror(code), at)


def prepare(modules: str, hostname: str) -> None:
    """File systems of this kernel, its modules, its loopback interface."""
    for kind, at, options in (
        ("proc", "/proc", ""),
        ("sysfs", "/sys", ""),
        ("devtmpfs", "/dev", ""),
        ("tmpfs", "/run", "mode=755"),
        ("devpts", "/dev/pts", "mode=620,ptmxmode=666"),
        ("tmpfs", "/dev/shm", "mode=1777"),
        ("cgroup2", "/sys/fs/cgroup", ""),
    ):
        mount(kind, at, options)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        with contextlib.suppress(FileExistsError):
            os.symlink(f"/proc/self/{target}", f"/dev/{name}")
    os.makedirs(TEMPORARY)
    os.chmod(TEMPORARY, 0o1777)
    os.makedirs("/run/lock", exist_ok=True)
    # /lib/modules is the machine's own; kmod takes another root by -d, but not by the environment
    os.makedirs(f"{PRIVATE}/lib")
    os.symlink(modules, f"{PRIVATE}/lib/modules")
    with open(f"{PRIVATE}/modprobe", "w") as file:
        file.write(f'#!/bin/sh\nexec /sbin/modprobe -d {PRIVATE} "$@"\n')
    os.chmod(f"{PRIVATE}/modprobe", 0o755)
    with open("/proc/sys/kernel/modprobe", "w") as file:
        file.write(f"{PRIVATE}/modprobe")
    socket.sethostname(hostname)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:  # SIOCSIFFLAGS: IFF_UP | IFF_RUNNING
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x41))


def send(line: int, kind: bytes, payload: bytes = b"") -> None:
    rest = memoryview(frames.frame(kind, payload))
    while rest:
        rest = rest[os.write(line, rest) :]


def start(request: dict) -> tuple[int, int | None, dict[int, bytes]]:
    """Start the program. Returns its pid, the descriptor of its input, and the type of message for each output.

    Streams that are terminals outside share one terminal here, the others are pipes.
    """
    terminals = request["terminals"]
    master = slave = None
    if any(terminals):
        master, slave = pty.openpty()
        if request["attributes"]:
            attributes = request["attributes"]
            attributes[6] = [bytes([c]) if isinstance(c, int) else c for c in attributes[6]]
            termios.tcsetattr(slave, termios.TCSANOW, attributes)
        set_size(slave, *request["size"])
    pipes = [None if terminal else os.pipe() for terminal in terminals]
    inside = [slave if terminals[n] else pipes[n][0 if n == 0 else 1] for n in range(3)]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Python's own handler would swallow it before the exec
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            if slave is not None:
                fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
            for number, fd in enumerate([os.dup(fd) for fd in inside]):
                os.dup2(fd, number)
            for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
            signal.set_wakeup_fd(-1)
            resource.setrlimit(resource.RLIMIT_NOFILE, request["open_files"])
            os.umask(request["umask"])
            os.execvpe(request["argv"][0], request["argv"], request["environment"])
        except OSError as error:
            os.write(2, f"{request['argv'][0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for fd in {fd for fd in inside if fd is not None}:
        os.close(fd)
    outputs = {pipes[n][0]: kind for n, kind in ((1, frames.OUT), (2, frames.ERR)) if pipes[n]}
    if master is not None:
        outputs[master] = frames.TERMINAL
    for fd in outputs:
        os.set_blocking(fd, False)
    given = master if terminals[0] else pipes[0][1]
    os.set_blocking(given, False)
    return pid, given, outputs


def set_size(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


class Relay:
    """Moves bytes between the line and the program until the program has ended."""

    def __init__(self, line: int, pid: int, given: int | None, outputs: dict[int, bytes]):
        self._line, self._pid, self._given, self._outputs = line, pid, given, outputs
        self._decoder = frames.Decoder()
        self._pending = bytearray()
        self._end_of_input = False
        self._woken, wake = os.pipe()
        for fd in (self._woken, wake):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def run(self) -> int:
        """The program's exit code, negative for a signal."""
        while True:
            status = self._reap()  # before waiting: it may have ended before there was a handler
            if status is not None:
                break
            writing = [self._given] if self._pending and self._given is not None else []
            readable, writable, _ = select.select([self._line, self._woken, *self._outputs], writing, [])
            if self._woken in readable:
                os.read(self._woken, 4096)
            if self._line in readable:
                for kind, payload in self._decoder.feed(os.read(self._line, 4096)):
                    self._take(kind, payload)
            if writable:
                self._give()
            for fd in [fd for fd in readable if fd in self._outputs]:
                self._pass_on(fd)
        deadline = time.monotonic() + _DRAIN_S
        while self._outputs and (left := deadline - time.monotonic()) > 0:
            for fd in select.select(list(self._outputs), [], [], left)[0]:
                self._pass_on(fd)
        return os.waitstatus_to_exitcode(status)

    def _reap(self) -> int | None:
        """Take in everyone who has ended; the status of the program if it is among them."""
        found = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == self._pid:
                found = status

    def _take(self, kind: bytes, payload: bytes) -> None:
        if kind == frames.INPUT:
            self._pending += payload
            self._end_of_input = self._end_of_input or not payload
            self._give()
        elif kind == frames.SIGNAL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, frames.UINT.unpack(payload)[0])
        elif kind == frames.SIZE:
            for fd, stream in self._outputs.items():
                if stream == frames.TERMINAL:
                    set_size(fd, *frames.ROWS_COLUMNS.unpack(payload))
        elif kind == frames.CLOSED:
            for fd in [fd for fd, stream in self._outputs.items() if stream == payload]:
                self._close(fd)

    def _give(self) -> None:
        if self._pending:
            done = len(self._pending)
            if self._given is not None:
                try:
                    done = os.write(self._given, self._pending)
                except BlockingIOError:
                    done = 0
                except OSError:  # nobody reads it: taken as read
                    pass
            del self._pending[:done]
            send(self._line, frames.ACK, frames.UINT.pack(done))
        if self._end_of_input and not self._pending and self._given is not None:
            if self._given not in self._outputs:
                os.close(self._given)
            self._given = None

    def _pass_on(self, fd: int) -> None:
        try:
            data = os.read(fd, frames.LARGEST)
        except BlockingIOError:
            return
        except OSError:  # EIO: nobody has the terminal any more
            data = b""
        if data:
            send(self._line, self._outputs[fd], data)
        else:
            self._close(fd)

    def _close(self, fd: int) -> None:
        del self._outputs[fd]
        if fd == self._given:
            self._given = None
        os.close(fd)


def serve(folder: str) -> None:
    prepared, request = None, {}
    try:
        with open(f"{folder}/request.json") as file:
            request = json.load(file)
        prepare(request["modules"], request["hostname"])
    except Exception:
        prepared = traceback.format_exc()
    line = os.open(LINE, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(line)
    send(line, frames.HELLO)
    try:
        if prepared:
            raise OSError(prepared)
        os.chdir(request["folder"])
    except OSError as error:
        send(line, frames.FAILED, str(error).encode()[: frames.LARGEST])
    else:
        code = Relay(line, *start(request)).run()
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # whoever is left writes no more, so that all is on the disk after `sync`
        os.sync()
        send(line, frames.EXIT, frames.INT.pack(code))
    select.select([line], [], [], 10)  # BYE: what was sent has arrived


if __name__ == "__main__":
    try:
        serve(sys.argv[1])
    except BaseException:
        traceback.print_exc()  # on the console, which the host shows when no exit code came
        time.sleep(0.2)
    os.sync()
    _libc.reboot(_POWER_OFF)

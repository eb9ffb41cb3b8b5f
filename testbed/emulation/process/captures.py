"""Captures packets in hosts with tcpdump: one process a host, in its network namespace, without root's rights.

tcpdump opens its socket, then becomes the user `tcpdump` (-Z); its output is a file that we opened. The file's size is
limited by the kernel (RLIMIT_FSIZE), so that neither `most` nor a full disk ends anything but the capture.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from testbed.capture.writing import complete
from testbed.emulation.kernel.namespaces import argv_in
from testbed.emulation.state import RunState, process_value
from testbed.errors import CapabilityError, InputError
from testbed.processes import stat_fields
from testbed.scenario.captures import CaptureSettings

FOLDER = "captures"
_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 10.0
_DRAIN_S = 1.2  # the kernel hands packets on within a second: tcpdump asks for that
_BUFFER_KIB = 16384  # of the kernel, for packets that tcpdump has not read yet
_SPARE_BYTES = 200_000_000  # left free on the disk
_FULL = "it met its limit of size, or a full disk"
_LEAST_BYTES = 1_000_000
_USER_TIME, _SYSTEM_TIME = 11, 12  # places in `stat_fields`


def require_capturer() -> None:
    """Raises CapabilityError where there is no tcpdump."""
    if shutil.which("tcpdump") is None:
        raise CapabilityError("captures need tcpdump, which is not installed", hint="apt install tcpdump")


def command(interface: str, settings: CaptureSettings) -> list[str]:
    """tcpdump's command line; it writes a classic pcap to standard output."""
    argv = ["tcpdump", "-i", interface, "-n", "-p", "-s", str(settings.snaplen), "-B", str(_BUFFER_KIB)]
    argv += ["--time-stamp-precision=nano", "-U", "-w", "-"]  # -U: a killed run has its packets in the file
    with contextlib.suppress(KeyError):
        pwd.getpwnam("tcpdump")
        argv += ["-Z", "tcpdump"]
    return argv


def described(settings: CaptureSettings) -> list[str]:
    """For a dry run: the commands, with placeholders for what only a run knows."""
    argv = " ".join(command("<its interface>", settings))
    return [f"ip netns exec tb-<run>-{host} {argv} > {FOLDER}/{host}.pcap" for host in settings.hosts]


@dataclass
class _Running:
    host: str
    process: subprocess.Popen
    recorded: str
    raw: Path
    began_s: float
    said: list[str] = field(default_factory=list)
    listening: threading.Event = field(default_factory=threading.Event)
    reader: threading.Thread | None = None


class Captures:
    """The captures of one run. A context manager: leaving ends them and completes their files.

    Args:
        hosts: of a network, by name, with netns, interface and ip.
        comments: of the files; `zero_comment` adds one later.
        on_end: called for each file as (host, fields of a `capture` event).
    """

    def __init__(
        self,
        state: RunState,
        hosts: Mapping[str, Any],
        settings: CaptureSettings,
        folder: Path,
        *,
        comments: Sequence[str] = (),
        tdf: float = 1.0,
        on_end: Callable[[str, dict[str, Any]], None] = lambda host, fields: None,
    ):
        self._state, self._hosts, self._settings, self._folder = state, hosts, settings, folder
        self.comments, self._tdf, self._on_end = list(comments), tdf, on_end
        self._running: list[_Running] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._go = threading.Event()
        self._began = self._ended = False
        self._waiter: threading.Thread | None = None
        self._t0 = 0.0

    def __enter__(self) -> Captures:
        if self._settings.from_s is None and self._settings.from_step is None:
            self._start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        self._go.set()
        if self._waiter is not None:
            self._waiter.join()
        self._end()

    def begin(self, t0_monotonic: float) -> None:
        """Emulated time 0 is at that moment of CLOCK_MONOTONIC."""
        self._t0 = t0_monotonic
        zero = time.time_ns() + int((t0_monotonic - time.monotonic()) * 1e9)
        self.comments.append(f"emulated time 0: {zero} ns since 1970; time dilation {self._tdf:g}")
        self._waiter = threading.Thread(target=self._follow, name="captures", daemon=True)
        self._waiter.start()

    def step_done(self, step: int) -> None:
        """A step of training has ended."""
        if self._settings.from_step is not None and step >= self._settings.from_step - 1:
            self._go.set()

    def _follow(self) -> None:
        s = self._settings
        if s.from_s is not None:
            self._over.wait(self._t0 + s.from_s * self._tdf - time.monotonic())
        elif s.from_step is not None and s.from_step > 0:
            self._go.wait()
        if self._over.is_set():
            return
        if not self._began:
            try:
                self._start()
            except (CapabilityError, OSError) as error:  # the run goes on without
                for host in s.hosts:
                    self._on_end(host, {"text": f"nothing was captured: {error}"})
                return
        if s.for_s is not None:
            since = self._t0 if s.from_s is None and s.from_step is None else time.monotonic()
            self._over.wait(since + s.for_s * self._tdf - time.monotonic())
            self._end()

    def _start(self) -> None:
        require_capturer()
        self._began = True
        self._folder.mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(self._folder)
        # twice: a file is written anew when it is complete
        room = (disk.f_bavail * disk.f_frsize - _SPARE_BYTES) // (2 * len(self._settings.hosts))
        limit = min(self._settings.most_bytes, room)
        if limit < _LEAST_BYTES:
            raise CapabilityError(f"{self._folder}: too little space on the disk for captures", hint="free some space")
        with self._lock:
            for name in self._settings.hosts:
                self._running.append(self._capture(name, limit))
        for running in self._running:
            if not running.listening.wait(_START_TIMEOUT_S) or running.process.poll() is not None:
                raise CapabilityError(f"tcpdump in {running.host} did not start: {' '.join(running.said) or 'silent'}")

    def _capture(self, name: str, limit: int) -> _Running:
        host = self._hosts[name]
        raw = self._folder / f"{name}.pcap"
        argv = ["prlimit", f"--fsize={limit}", "--", *argv_in(host.netns, command(host.interface, self._settings))]
        with raw.open("wb") as out:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
                restore_signals=False,  # SIGXFSZ stays ignored: tcpdump meets its limit as an error of write
                cwd="/",
            )
        recorded = process_value(process.pid)
        self._state.record("process", recorded)
        running = _Running(name, process, recorded, raw, time.monotonic())
        running.reader = threading.Thread(target=_listen, args=(running, process.stderr), daemon=True)
        running.reader.start()
        return running

    def _end(self) -> None:
        with self._lock:
            running, self._running = self._running, []
        if any(r.process.poll() is None for r in running):
            time.sleep(_DRAIN_S)
        cpu = {r.host: _cpu_s(r.process.pid) for r in running}
        early = {r.host: r.process.poll() is not None for r in running}
        for r in running:
            if not early[r.host]:
                r.process.send_signal(signal.SIGTERM)
        for r in running:
            try:
                r.process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                r.process.kill()
                r.process.wait()
            r.reader.join(1.0)
            self._state.forget("process", r.recorded)
            self._on_end(r.host, self._completed(r, cpu[r.host], early[r.host]))

    def _completed(self, r: _Running, cpu_s: float | None, early: bool) -> dict[str, Any]:
        said = " ".join(r.said)
        lost = re.search(r"(\d+) packets? dropped by kernel", said)
        dropped = int(lost.group(1)) if lost else None
        seconds = time.monotonic() - r.began_s
        fields: dict[str, Any] = {"seconds": seconds / self._tdf}
        if dropped is not None:
            fields["dropped"] = dropped
        if cpu_s is not None:
            fields["cpu"] = cpu_s / max(seconds, 1e-3)
        if early:
            last = next((t for t in reversed(r.said) if "packet" not in t), "no reason given")
            fields["text"] = f"the capture ended early: {last}"
        host = self._hosts[r.host]
        try:
            fields["packets"] = complete(
                r.raw,
                r.raw.with_suffix(".pcapng"),
                host=r.host,
                interface=host.interface,
                names={h.ip: name for name, h in self._hosts.items()},
                comments=self.comments,
                snaplen=self._settings.snaplen,
                dropped=dropped,
            )
            seen = re.search(r"(\d+) packets? captured", said)
            if seen and fields["packets"] < int(seen.group(1)) and not early:
                fields["text"] = f"the file holds {fields['packets']} of {seen.group(1)} packets: {_FULL}"
        except (OSError, InputError) as error:
            fields["text"] = f"{r.raw.name} stays as tcpdump wrote it: {error}"
        return fields


def _listen(running: _Running, stream: IO[str]) -> None:
    with stream:
        for line in stream:
            running.said = [*running.said[-20:], line.strip()]
            if "listening on" in line:
                running.listening.set()
    running.listening.set()


def _cpu_s(pid: int) -> float | None:
    fields = stat_fields(pid)
    if fields is None or len(fields) <= _SYSTEM_TIME:
        return None
    return (int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME])) / os.sysconf("SC_CLK_TCK")

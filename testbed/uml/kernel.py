"""Which second kernel there is, with which modules, and what this processor needs on top."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import CapabilityError

MODULES = Path("/usr/lib/uml/modules")
BINARIES = ("linux.uml", "linux")
INSTALL = "apt install user-mode-linux"
COMPILER = "apt install gcc libc6-dev"
_SHIM = Path(__file__).with_name("xsave_shim.c")
# Before Linux 6.13, UML reserves so much for a process's extended registers, whatever the processor has.
UML_REGISTER_BYTES = 2696
_REGISTERS_OF_ANY_SIZE = (6, 13)
_PTRACE_TRACEME, _PTRACE_GETREGSET, _NT_X86_XSTATE = 0, 0x4204, 0x202


@dataclass(frozen=True)
class Availability:
    """Can the second kernel run here? If not, `lacking` says what is missing and `remedy` how to get it.

    binary: its path. modules: the folder of its modules. shim: does it need the work-around for large registers?
    """

    binary: str = ""
    version: str = ""
    modules: str = ""
    shim: bool = False
    lacking: str = ""
    remedy: str = ""

    @property
    def available(self) -> bool:
        return not self.lacking


def availability() -> Availability:
    """What is there, without booting it; some milliseconds."""
    if platform.machine() != "x86_64":
        return Availability(
            lacking=f"user-mode-linux runs on x86_64 only, not on {platform.machine()}",
            remedy="vagrant up, on an x86_64 machine",
        )
    binary = next((path for path in map(shutil.which, BINARIES) if path), None)
    if binary is None:
        return Availability(lacking="no linux.uml: user-mode-linux isn't installed", remedy=INSTALL)
    version = kernel_version(binary)
    if not version:
        return Availability(binary, lacking=f"{binary} --version names no Linux version", remedy=INSTALL)
    modules = MODULES / version
    if not (modules / "modules.dep").is_file():
        return Availability(
            binary,
            version,
            lacking=f"no kernel modules for {version} in {MODULES}: netem, Open vSwitch and others would be missing",
            remedy=INSTALL,
        )
    shim = _numbers(version) < _REGISTERS_OF_ANY_SIZE and register_bytes() > UML_REGISTER_BYTES
    found = Availability(binary, version, str(MODULES), shim)
    if shim and not shutil.which("cc"):
        return Availability(
            binary,
            version,
            str(MODULES),
            shim,
            remedy=COMPILER,
            lacking=(
                f"this processor's extended registers (AMX, {register_bytes()} bytes) need a work-around that is "
                "compiled when the kernel boots, and there is no C compiler"
            ),
        )
    return found


def require() -> Availability:
    """The second kernel. Raises CapabilityError, with the remedy, when it can't run here."""
    found = availability()
    if not found.available:
        raise CapabilityError(f"--kernel uml: {found.lacking}", hint=found.remedy)
    return found


def kernel_version(binary: str) -> str:
    """What `linux.uml --version` says, such as '6.1.176'; '' if it says nothing of the kind."""
    try:
        said = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"^\d+\.\d+\S*", said.strip(), re.MULTILINE)
    return match[0] if match else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


class _Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def register_bytes() -> int:
    """How many bytes of extended registers this processor and kernel keep for a process; 0 if that can't be found."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    child = os.fork()
    if child == 0:
        try:
            libc.ptrace(_PTRACE_TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(0)
    try:
        if not os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
            return 0
        buffer = ctypes.create_string_buffer(1 << 16)
        vector = _Vector(ctypes.cast(buffer, ctypes.c_void_p), len(buffer))
        if libc.ptrace(_PTRACE_GETREGSET, child, _NT_X86_XSTATE, ctypes.byref(vector)):
            return 0
        return vector.length
    finally:
        os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(child, 0)
        except ChildProcessError:
            pass


def build_shim(folder: Path) -> str:
    """Compile the work-around into `folder`; its path. Raises CapabilityError when the compiler fails."""
    library = folder / "xsave_shim.so"
    try:
        done = subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SHIM)],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise CapabilityError(f"cc: {error}", hint=COMPILER) from None
    if done.returncode:
        raise CapabilityError(
            "the work-around for this processor's registers doesn't compile: "
            + (done.stderr.strip().splitlines() or ["cc failed"])[0],
            hint=COMPILER,
        )
    return str(library)

"""Boots a second kernel, user-mode-linux, as a plain process on this file system, and runs a command in it.

What it gives: netem, Open vSwitch and all other modules of its Debian package, whatever this kernel has.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

MODULES = Path("/usr/lib/uml/modules")
_SHIM = Path(__file__).with_name("xsave_shim.c")
_END = "UML-EXIT-STATUS"

_INIT = """#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
mkdir -p /dev/pts; mount -t devpts devpts /dev/pts
export PATH={folder}:/usr/sbin:/usr/bin:/sbin:/bin PYTHONDONTWRITEBYTECODE=1
echo {folder}/modprobe > /proc/sys/kernel/modprobe
ip link set lo up
cd {cwd}
timeout {timeout_s} {command} > {folder}/output 2>&1
echo {end} $? >> {folder}/output
poweroff -f
"""


@dataclass(frozen=True)
class Uml:
    """How to boot. folder: for its files; preload: a library that it needs, or ''."""

    binary: str
    folder: Path
    preload: str = ""

    def run(self, command: list[str], cwd: Path, timeout_s: float) -> tuple[int | None, str]:
        """(exit status or None if it never ended, output) of a command run as root in the second kernel."""
        (self.folder / "output").unlink(missing_ok=True)
        init = self.folder / "init"
        init.write_text(_INIT.format(
            folder=self.folder, cwd=shlex.quote(str(cwd)), timeout_s=int(timeout_s),
            command=shlex.join(command), end=_END))
        init.chmod(0o755)
        kernel = subprocess.Popen(
            [self.binary, "rootfstype=hostfs", "rw", "mem=1500M", f"init={init}", "con=null",
             "con0=null,null", "quiet"],
            env={**os.environ, "LD_PRELOAD": self.preload, "TMPDIR": str(self.folder)},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            kernel.wait(timeout_s + 20)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if kernel.poll() is None:
                os.killpg(kernel.pid, 9)
                kernel.wait()
        output = self.folder / "output"
        text, found, status = (output.read_text() if output.exists() else "").rpartition(_END)
        return (int(status), text) if found else (None, status)


def find(folder: Path) -> Uml | str:
    """A kernel that boots here, or why none does. Its files go to `folder`."""
    binary = shutil.which("linux.uml") or shutil.which("linux")
    if not binary or not MODULES.is_dir():
        return "no user-mode-linux (apt install user-mode-linux)"
    (folder / "lib").mkdir()
    (folder / "lib/modules").symlink_to(MODULES)
    (folder / "modprobe").write_text(f'#!/bin/sh\nexec /sbin/modprobe -d {folder} "$@"\n')
    (folder / "modprobe").chmod(0o755)
    uml = Uml(binary, folder)
    if uml.run(["true"], folder, 10)[0] == 0:
        return uml
    compiler, library = shutil.which("cc"), folder / "xsave_shim.so"
    if not compiler:
        return "user-mode-linux does not boot on this processor; the work-around needs a C compiler"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _SHIM], check=True)
    uml = Uml(binary, folder, str(library))
    return uml if uml.run(["true"], folder, 10)[0] == 0 else "user-mode-linux does not boot here"

"""For all tests: signals as in a terminal, and the package as pip installs it."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# A shell starts background jobs with SIGINT ignored, which their children inherit: Ctrl-C could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """`installed(*words)` runs the testbed command of a wheel, installed far from the source tree, in an empty folder.

    Its environment's path has a space and an umlaut. What the package depends on comes from this environment.
    """
    base = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    offline = ["--quiet", "--no-deps", "--no-index"]
    # setuptools writes beside the sources, and would take along what an older build left there
    source = base / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("testbed", "runners", "experiments", "traces", "topologies"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "-w", base, source], check=True)
    environment = base / "Jörgs venv"
    venv.create(environment)
    subprocess.run(
        [*pip, "--python", environment / "bin" / "python", "install", *offline, *base.glob("*.whl")], check=True
    )
    paths = sysconfig.get_paths(vars={"base": str(environment), "platbase": str(environment)})
    Path(paths["purelib"], "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    folder = base / "empty"
    folder.mkdir()
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words):
        command = [environment / "bin" / "testbed", *words]
        return subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=250)

    return run

"""The second kernel as a process of this machine: streams, signals, exit codes, and nothing left, however it ends."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time

import pytest
from second_kernel import ANY, TESTBED, assert_nothing_left, children, left, open_folder, ordinary_user, run, start

pytestmark = pytest.mark.kernel
BUSY = "echo up; sleep 1000 & while :; do :; done"


def started(program: str, **options) -> subprocess.Popen:
    """A shell in the second kernel that has said its first word."""
    process = start([*ANY, "sh", "-c", program], **options)
    assert process.stdout.readline() == "up\n", process.stderr.read()
    return process


def test_streams_exit_code_folder_and_kernel_are_as_asked(tmp_path):
    blob = os.urandom(3_000_000)
    (tmp_path / "blob").write_bytes(blob)
    done = run(
        [
            *ANY,
            "sh",
            "-c",
            "id -u; pwd; grep -o 'User Mode Linux' /proc/cpuinfo; echo bad >&2; cat blob - | md5sum; "
            "cat blob > made; [ -t 0 ] || [ -t 1 ] || [ -t 2 ] || exit 7",
        ],
        cwd=tmp_path,
        input=blob * 2,
        text=False,
    )
    twice = hashlib.md5(blob * 3).hexdigest()
    assert done.stdout.decode().split("\n")[:4] == ["0", str(tmp_path), "User Mode Linux", f"{twice}  -"]
    assert done.stderr == b"bad\n"
    assert done.returncode == 7
    assert (tmp_path / "made").read_bytes() == blob
    assert (tmp_path / "made").stat().st_uid == os.getuid()


def test_output_is_live_and_a_closed_reader_is_noticed():
    process = started("echo up; yes; echo $? > /dev/null; exit 3")
    assert process.stdout.readline() == "y\n"
    process.stdout.close()
    assert process.wait(30) == 3  # yes got SIGPIPE, the shell went on
    process.stderr.close()
    assert_nothing_left(process.pid)


def test_signals_reach_the_program_and_what_it_wrote_is_kept(tmp_path):
    process = started("trap 'echo caught > caught; exit 9' INT; echo up; while :; do sleep 0.1; done", cwd=tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 9
    assert_nothing_left(process.pid)
    assert (tmp_path / "caught").read_text() == "caught\n"


def test_a_program_killed_by_a_signal_and_one_that_does_not_exist():
    assert run([*ANY, "sh", "-c", "kill -KILL $$"]).returncode == 128 + signal.SIGKILL
    done = run([*ANY, "no-such-program"])
    assert (done.returncode, done.stderr) == (127, "no-such-program: No such file or directory\n")


@pytest.mark.parametrize("who", ["command", "guardian", "kernel"])
def test_nothing_is_left_after_sigkill(who):
    process = started(BUSY)
    assert left(process.pid)
    [guardian] = children(process.pid)
    kernel = children(guardian)[0]
    os.kill({"command": process.pid, "guardian": guardian, "kernel": kernel}[who], signal.SIGKILL)
    assert process.wait(30) == (-signal.SIGKILL if who == "command" else 1)
    assert_nothing_left(process.pid, within_s=10)
    assert who == "command" or "ended before the program in it did" in process.stderr.read()


def test_a_panic_is_an_error_and_leaves_nothing():
    process = started("echo up; sleep 1000 & echo c > /proc/sysrq-trigger; sleep 10")
    assert process.wait(30) == 1
    assert "the second kernel panicked: sysrq triggered crash" in process.stderr.read()
    assert_nothing_left(process.pid)


def test_a_panic_during_an_experiment_leaves_nothing(tmp_path):
    """Namespaces, cgroups, netem, workers: all of them were inside."""
    before = subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    process = start(
        [
            *TESTBED,
            "exec",
            "smoke",
            "h1",
            "--kernel",
            "uml",
            "--",
            "sh",
            "-c",
            "ping -c 1 -W 2 server; read go; echo c > /proc/sysrq-trigger; sleep 5",
        ],
        stdin=subprocess.PIPE,
    )
    while "1 received" not in (line := process.stdout.readline()):
        assert line, process.stderr.read()
    _, errors = process.communicate("go\n", timeout=60)
    assert process.returncode == 1
    assert "panicked" in errors
    assert set(os.listdir("/run/netns") if os.path.isdir("/run/netns") else []) <= set(
        re.findall(r"^\S+", before, re.M)
    )


def test_no_terminal_is_lost():
    """Size, colours, Ctrl-C and the terminal's own settings, also when the command is killed."""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(
            ANY[0],
            [
                *ANY,
                "sh",
                "-c",
                "stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo $TERM; cat; "
                "trap 'stty size; echo INT' INT; echo again; sleep 100; sleep 100",
            ],
        )
    os.set_blocking(terminal, False)
    _set_size(terminal, 33, 101)
    before = termios.tcgetattr(terminal)
    try:
        text = _read_until(terminal, "\n")
        assert "33 101" in _read_until(terminal, "101", text)
        os.write(terminal, b"typed\n\x04")  # echoed once by the terminal inside, once by cat
        text = _read_until(terminal, "again")
        assert text.count("typed") == 2
        assert "\r\n" in text
        _set_size(terminal, 40, 120)
        os.kill(pid, signal.SIGWINCH)
        time.sleep(0.5)
        os.write(terminal, b"\x03")
        assert "40 120" in _read_until(terminal, "INT")
        assert termios.tcgetattr(terminal) != before
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert_nothing_left(pid, within_s=10)
    os.close(terminal)


def _set_size(fd: int, rows: int, columns: int) -> None:
    import fcntl
    import struct

    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _read_until(fd: int, word: str, text: str = "", within_s: float = 30) -> str:
    deadline = time.monotonic() + within_s
    while word not in text:
        assert time.monotonic() < deadline, text
        if select.select([fd], [], [], 0.2)[0]:
            text += os.read(fd, 4096).decode()
    return text


def test_an_ordinary_user_is_root_in_there():
    user = ordinary_user()
    if os.geteuid() == 0 and not user:
        pytest.skip("this checkout can't be read by an ordinary user")
    with open_folder() as folder:
        done = run(
            [
                *user,
                *ANY,
                "sh",
                "-c",
                "id -u; ip link add x type veth peer name y && tc qdisc add dev x root netem "
                "delay 1ms && mkdir /sys/fs/cgroup/x && echo made > made; cat /etc/shadow",
            ],
            cwd=folder,
        )
        assert done.stdout == "0\n", done.stderr
        assert "Permission denied" in done.stderr  # root of that kernel, not of this file system
        assert (folder / "made").stat().st_uid == (65534 if user else os.getuid())


def test_as_many_files_are_open_in_there_as_a_process_here_could_have(tmp_path):
    for i in range(100):
        (tmp_path / str(i)).touch()
    opens = (
        "import resource; hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard)); print(len([open(str(i)) for i in range(100)]))"
    )
    done = run(["sh", "-c", 'ulimit -Sn 64; exec "$@"', "sh", *ANY, "python3", "-c", opens], cwd=tmp_path)
    assert done.stdout == "100\n", done.stderr


def test_doctor_tells_what_that_kernel_can_do():
    done = run([*TESTBED, "doctor", "--json", "--kernel", "uml"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["delay_backend"] == "netem"
    assert found["cgroup_version"] == 2
    assert found["memory_cgroup"]["available"]

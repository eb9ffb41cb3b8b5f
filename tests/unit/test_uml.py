"""The parts of `--kernel uml` that need no kernel: options, messages, memory, what is lacking."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.cli import kernel as options
from testbed.cli import main
from testbed.errors import CapabilityError, InputError
from testbed.uml import frames, kernel, memory, session


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run smoke", ("host", None, "run smoke")),
        ("--kernel uml run smoke", ("uml", None, "run smoke")),
        ("run smoke --kernel=uml --seed 3", ("uml", None, "run smoke --seed 3")),
        ("run --kernel uml smoke --kernel-memory 2GB", ("uml", 2_000_000_000, "run smoke")),
        ("exec smoke h1 -- prog --kernel uml", ("host", None, "exec smoke h1 -- prog --kernel uml")),
        ("exec smoke h1 --kernel uml -- prog --kernel host", ("uml", None, "exec smoke h1 -- prog --kernel host")),
        ("run smoke --kernel host", ("host", None, "run smoke")),
    ],
)
def test_options_stand_anywhere_before_a_program(words, expected):
    found = options.split(words.split())
    assert (found[0], found[1], " ".join(found[2])) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("run smoke --kernel", "--kernel: no value"),
        ("run smoke --kernel umm", "did you mean 'uml'"),
        ("run smoke --kernel-memory 2GB", "is for --kernel uml"),
        ("run smoke --kernel uml --kernel-memory 2", "no unit"),
        ("run smoke --kernel uml --kernel-memory much", "expected a number with a unit"),
        ("run smoke --kernel uml --kernel-memory 1MB", "expected 537 MB or more"),
    ],
)
def test_wrong_options_are_refused(words, message, capsys, monkeypatch):
    monkeypatch.setattr(kernel, "require", lambda: kernel.Availability("/usr/bin/linux.uml", "6.1.176", "/modules"))
    monkeypatch.chdir("/")
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_the_help_names_the_options(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "--kernel [host|uml]" in shown
    assert "--kernel-memory" in shown


def test_the_same_program_is_run_again(monkeypatch):
    monkeypatch.setattr(sys, "argv", [__file__])
    assert options.command(["doctor"]) == [sys.executable, str(Path(__file__).absolute()), "doctor"]
    monkeypatch.setattr(sys, "argv", ["/x/testbed/__main__.py"])
    assert options.command(["doctor"]) == [sys.executable, "-m", "testbed", "doctor"]


@given(
    st.lists(st.tuples(st.sampled_from([frames.OUT, frames.ERR, frames.ACK]), st.binary(max_size=300))),
    st.lists(st.integers(1, 40), min_size=1),
)
def test_messages_come_out_as_they_went_in(messages, cuts):
    """However the line cuts them."""
    data = b"".join(frames.frame(kind, payload) for kind, payload in messages)
    decoder, found, at, n = frames.Decoder(), [], 0, 0
    while at < len(data):
        step = cuts[n % len(cuts)]
        found += decoder.feed(data[at : at + step])
        at, n = at + step, n + 1
    assert found == messages


def test_memory_is_half_of_what_is_free_within_bounds(tmp_path):
    room = memory.room(tmp_path)
    assert room > memory.LEAST, "the folder for temporary files is full"
    assert memory.choose(None, 2 << 30, (tmp_path,)) == (1 << 30, tmp_path)
    assert memory.choose(None, 600 << 20, (tmp_path,)) == (memory.LEAST, tmp_path)
    assert memory.choose(None, 1 << 40, (tmp_path,))[0] == min(memory.MOST_BY_DEFAULT, room)
    assert memory.choose(1 << 30, 2 << 30, (tmp_path / "gone", tmp_path)) == (1 << 30, tmp_path)


def test_memory_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="expected at most"):
        memory.choose(3 << 30, 2 << 30, (tmp_path,))
    with pytest.raises(CapabilityError, match="are free"):
        memory.choose(None, 1 << 20, (tmp_path,))
    with pytest.raises(CapabilityError):
        memory.choose(None, 2 << 30, (tmp_path / "gone",))


@pytest.fixture
def binary(tmp_path, monkeypatch) -> Path:
    """A program that says the version of a kernel, with modules beside it."""
    program = tmp_path / "linux.uml"
    program.write_text("#!/bin/sh\necho 6.1.176\n")
    program.chmod(0o755)
    modules = tmp_path / "modules"
    (modules / "6.1.176").mkdir(parents=True)
    (modules / "6.1.176" / "modules.dep").touch()
    monkeypatch.setattr(kernel, "MODULES", modules)
    monkeypatch.setattr(kernel, "register_bytes", lambda: 2696)
    monkeypatch.setattr(kernel.platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    return program


def test_a_complete_kernel_is_found(binary):
    found = kernel.require()
    assert (found.binary, found.version, found.shim) == (str(binary), "6.1.176", False)
    assert found.available


@pytest.mark.parametrize("fault", [errno.ENOENT, errno.ENOSPC])
def test_no_room_for_its_files_is_told(fault, binary, tmp_path, monkeypatch):
    """As where no folder for temporary files can be written, or their disk is full."""

    def refuse(*_, **__):
        raise OSError(fault, os.strerror(fault))

    monkeypatch.setattr(session.tempfile, "gettempdir" if fault == errno.ENOENT else "mkdtemp", refuse)
    monkeypatch.setattr(session, "shared", lambda _: True)
    with pytest.raises(CapabilityError, match=os.strerror(fault)) as caught:
        session.run(["true"])
    assert "TMPDIR" in caught.value.hint


@pytest.mark.parametrize("lacking", ["kernel", "modules", "compiler", "processor"])
def test_what_is_lacking_is_named_with_its_remedy(lacking, binary, monkeypatch, capsys):
    says, remedy = {
        "kernel": ("isn't installed", "apt install user-mode-linux"),
        "modules": ("no kernel modules for 6.1.176", "apt install user-mode-linux"),
        "compiler": ("there is no C compiler", "apt install gcc"),
        "processor": ("not on aarch64", "x86_64"),
    }[lacking]
    if lacking == "kernel":
        monkeypatch.setenv("PATH", "/nowhere")
    elif lacking == "modules":
        (kernel.MODULES / "6.1.176" / "modules.dep").unlink()
    elif lacking == "compiler":
        monkeypatch.setattr(kernel, "register_bytes", lambda: 11008)
        monkeypatch.setenv("PATH", str(binary.parent))
        binary.write_text("#!/bin/sh\necho 6.1.176\n")  # no interpreter's path, which may have a space
    else:
        monkeypatch.setattr(kernel.platform, "machine", lambda: "aarch64")
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--kernel", "uml"])
    assert ended.value.code == CapabilityError.exit_code
    shown = capsys.readouterr().err
    assert says in shown
    assert remedy in shown


def test_newer_kernels_need_no_work_around(binary, monkeypatch):
    binary.write_text("#!/bin/sh\necho 6.13.2\n")
    (kernel.MODULES / "6.13.2").mkdir()
    (kernel.MODULES / "6.13.2" / "modules.dep").touch()
    monkeypatch.setattr(kernel, "register_bytes", lambda: 11008)
    assert not kernel.require().shim


def test_this_processors_registers_have_a_size():
    if os.uname().machine != "x86_64":
        pytest.skip("x86_64 only")
    assert kernel.register_bytes() >= 512  # FXSAVE's at least


def test_folders_that_the_guest_has_itself_are_told_apart(tmp_path, monkeypatch):
    assert session.shared("/home/x")
    assert session.shared("/device")
    assert not session.shared("/dev/shm/x")
    assert not session.shared("/run")
    (tmp_path / "link").symlink_to("/proc/self")
    assert not session.shared(str(tmp_path / "link"))


def test_the_docs_give_the_thresholds_of_that_kernel(request):
    from testbed.measurement.thresholds import USER_MODE_LINUX, Thresholds

    text = (request.config.rootpath / "docs" / "kernels.md").read_text()
    for name, value in USER_MODE_LINUX.items():
        [row] = [line for line in text.splitlines() if line.startswith("|") and f"`{name}`" in line]
        names, host, uml = (cell.strip() for cell in row.strip("|").split("|"))
        position = [word.strip("` ") for word in names.split(" (")[0].split(",")].index(name)
        for shown, number in ((host, getattr(Thresholds(), name)), (uml, value)):
            amount, unit = shown.split(", ")[position].split()
            assert float(amount) * {"%": 0.01, "ms": 1e-3, "s": 1}[unit] == pytest.approx(number), row


def test_a_signal_ends_a_program_that_is_only_being_started(tmp_path):
    sys.path.insert(0, str(Path(session.__file__).parent))  # it is a script, without the package
    try:
        import guest
    finally:
        del sys.path[0]
    path = ":".join(f"{tmp_path}/{i}" for i in range(20_000))  # to look for it takes a while
    pid, given, outputs = guest.start(
        {
            "terminals": [False] * 3,
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "umask": 0o022,
            "argv": ["program"],
            "environment": {"PATH": path},
        }
    )
    os.kill(pid, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGINT
    for fd in (given, *outputs):
        os.close(fd)

"""The command line as a user meets it: help, errors, exit codes."""

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from testbed.cli import COMMANDS, cli, main


def run_main(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "testbed", *args], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_an_example(name):
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert f"testbed {name}" in result.output
    assert "Example" in result.output


def test_unknown_command_names_the_nearest():
    done = run_main("docter")
    assert done.returncode == 2
    assert "did you mean 'doctor'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["run", "quickstrt"], "did you mean experiments/quickstart.yaml?"),
        (["run", "quickstart", "--set", "training.step=3"], "did you mean 'steps'?"),
        (["run", "quickstart", "--set", "training.schedule=1f2b"], "did you mean '1f1b'?"),
        (["run", "quickstart", "--set", "training.runner=pipelin"], "did you mean 'pipeline'?"),
        (
            ["run", "quickstart", "--set", "links.trace=traces/links/quikstart.csv"],
            "did you mean traces/links/quickstart.csv?",
        ),
        (["run", "quickstart", "--set", "devices.profiles=[latpop]"], "did you mean 'laptop'?"),
        (["run", "quickstart", "--set", "training.stages=9"], "9 stages"),
        (["run", "quickstart", "--set", "fidelity.rate_eror_mean=0.1"], "did you mean 'rate_error_mean'?"),
        (["run", "quickstart", "--set", "availability.mapping={h9: h1}"], "unknown device 'h9'"),
        (
            [
                "run",
                "smoke",
                "--set",
                "devices.define.tiny={speed: 1 GFLOP/s, memory: 100 kB}",
                "--set",
                "devices.profiles=[tiny]",
            ],
            "memory",
        ),
        (["run", "smoke", "--set", "topology.homes=[]"], "expected 1 to 100000"),
        (["run", "smoke", "--seed", "99999999999999999999"], "not in the range"),
        (["run", "smoke", "--set", "links.rtt=1000 d"], "expected 0 to 60 s"),
        (["run", "smoke", "--set", "links.rtt=50 s", "--set", "tdf=1000"], "in real time"),
        (["run", "smoke", "--set", "links.download=1e30 Gbit/s"], "out of range"),
        (["run", "smoke", "--set", "time_scale=.inf"], "time_scale"),
        (["run", "smoke", "--set", "tdf=1e-9"], "tdf"),
        (["run", "smoke", "--set", "availability.trace=/dev/zero"], "/dev/zero is no file"),
        (["exec", "smoke", "h1", "--timeout", "-1", "--", "true"], "--timeout"),
        (["show", "runs/nothing"], "no such run folder"),
        (["report", "Makefile"], "expected a run folder"),
        (["exec", "smoke", "h1"], "expected a command"),
        (["exec", "smoke", "--with", "server", "h1", "--", "true"], "expected HOST=COMMAND"),
        (["shell", "smoke", "--at", "5"], "has no unit"),
    ],
)
def test_bad_input_ends_before_anything_starts(args, expected, capsys):
    """In this process, for each would load torch anew; anything but an exit is a traceback."""
    with pytest.raises(SystemExit) as caught:
        main(args)
    told = capsys.readouterr().err
    assert caught.value.code == 2, told
    assert expected in told


def test_a_deleted_current_folder_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit) as caught:
        main(["schema"])
    monkeypatch.undo()
    assert caught.value.code == 2
    assert "the current folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("fidelity.rate_error_worst", "--set fidelity.rate_error_worst"),
        ("fidelity.thresholds.rate_error_worst", "--set fidelity.thresholds.rate_error_worst"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "verify"])
def test_a_bad_threshold_is_told_with_its_place(command, given, place, capsys, monkeypatch):
    monkeypatch.setattr("testbed.verification.verify.capable", lambda: None)
    monkeypatch.setattr("testbed.verification.verify.check_kernel", lambda *_: None)
    with pytest.raises(SystemExit) as caught:
        main([command, "smoke", "--set", f"{given}=-1"])
    assert caught.value.code == 2
    assert f"{place}: -1.0" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["quickstart", "smoke", "two-level"])
def test_dry_run_prints_plan_and_commands_and_starts_nothing(name):
    done = run_main("run", name, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "predicted step_time_s" in done.stdout
    assert "tc -n tb-xxxxxx-net class add" in done.stdout
    found = json.loads(run_main("run", name, "--dry-run", "--json").stdout)
    assert found["commands"]
    assert found["plan"]["runner"] == "pipeline"


def test_schema_is_json():
    result = CliRunner().invoke(cli, ["schema"])
    assert json.loads(result.output)["title"] == "Experiment"


def test_bug_keeps_its_traceback(monkeypatch):
    """Only errors that users can act on lose their traceback."""
    monkeypatch.setitem(COMMANDS, "boom", "tests.unit.test_cli:boom")
    with pytest.raises(ZeroDivisionError):
        main(["boom"])


import click  # noqa: E402


@click.command()
def boom():
    raise ZeroDivisionError


@pytest.mark.parametrize("runner", ["pipeline", "single"])
def test_without_data_nothing_is_said_of_a_loss(tmp_path, runner):
    smaller = (
        "--set",
        "outputs.report=true",
        "--set",
        f"training={{runner: {runner}, batch: 4, micro_batches: 1, steps: 2}}",
    )
    done = run_main("simulate", "smoke", *smaller, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "step 2/2" in done.stdout
    (folder,) = tmp_path.iterdir()
    again = run_main("rerun", str(folder), "--out", str(tmp_path / "again"))
    assert again.returncode == 0, again.stderr
    compared = run_main("compare", str(folder), str(folder))
    page = re.sub(r"(?s)<script.*?</script>", "", (folder / "report.html").read_text())
    for text in (done.stdout, again.stdout, compared.stdout, page):
        assert not re.search(r"(?i)\bnan\b|final loss|\blosses\b", text), text


def test_require_valid_of_a_simulation_is_fulfilled(tmp_path):
    assert run_main("simulate", "smoke", "--require-valid", "--out", str(tmp_path)).returncode == 0


@pytest.mark.parametrize("command", ["run", "validate"])
def test_an_option_and_set_do_not_contradict_each_other(command, tmp_path):
    done = run_main(command, "smoke", "--tdf", "2", "--set", "tdf=3")
    assert done.returncode == 2
    assert "--tdf, --set tdf=" in done.stderr

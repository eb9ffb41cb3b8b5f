"""`testbed plan`: the plan of any runner for an experiment, for people and as JSON; bad input ends with 2."""

import json

import pytest
from click.testing import CliRunner

from testbed.cli import cli, main
from testbed.emulation.kernel import trying
from testbed.studies.planning import load_for_runner

CLEAVE = ("plan", "quickstart", "--runner", "cleave", "--set", "model.layers=1", "--set", "training.local=never")


def run(*args: str) -> str:
    result = CliRunner().invoke(cli, args, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_cleaves_plan_as_json():
    plan = json.loads(run(*CLEAVE, "--json"))
    assert plan["runner"] == "cleave"
    assert plan["makespan_s"] >= plan["bound_s"] > 0
    assert plan["server_out_bytes"] == sum(d["down_bytes"] for d in plan["devices"])
    assert plan["server_in_bytes"] == sum(d["up_bytes"] for d in plan["devices"])
    assert [d["device"] for d in plan["devices"]] == plan["devices_planned_for"]
    for device in plan["devices"]:
        assert device["binding"] in ("compute", "downlink", "uplink", "delay", "memory", "server", "not used")
        assert {"blocks", "memory_bytes", "busy_s", "adds_s"} <= set(device)
    used = [d for d in plan["devices"] if d["binding"] != "not used"]
    assert max(d["adds_s"] for d in used) > 0
    assert sum(p["count"] for p in plan["products"]) == 3 * (6 * 1 + 1)
    assert plan["growth"][-1]["devices"] == len(plan["devices"])
    assert any("left out, being options of pipeline" in note for note in plan["notes"])


def test_cleaves_plan_for_people():
    shown = run(*CLEAVE)
    for heading in ("makespan", "server out", "products", "devices", "growth", "binding", "adds"):
        assert heading in shown
    assert "qkv.forward" in shown
    assert "h3" in shown


def test_products_that_stay_at_the_server_say_why():
    plan = json.loads(run("plan", "quickstart", "--runner", "cleave", "--set", "model.layers=1", "--json"))
    local = [p for p in plan["products"] if p["strategy"] == "local"]
    assert local
    assert all(p["reason"].startswith("at the server: ") for p in local)


def test_the_pipelines_plan_and_what_each_device_adds():
    plan = json.loads(run("plan", "smoke", "--json"))
    assert plan["runner"] == "pipeline"
    assert plan["predicted"]["step_time_s"] > 0
    assert [d["device"] for d in plan["devices"]] == ["h1", "h2", "h3"]
    assert all(d["adds_s"] is None or d["adds_s"] >= -1e-9 for d in plan["devices"])
    shown = run("plan", "smoke")
    assert "predicted step time" in shown
    assert "stage 0" in shown


def test_long_tables_are_cut_with_a_word_about_it():
    shown = run("plan", "smoke", "--rows", "2")
    assert "1 more: --rows, or --json for all" in shown


def test_options_of_the_files_runner_are_left_out_and_those_of_set_kept():
    loaded, notes = load_for_runner("quickstart", ("training.wire=bf16",), runner="cleave")
    assert loaded.experiment.training.runner == "cleave"
    assert loaded.experiment.training.options == {"wire": "bf16"}
    assert len(notes) == 1
    same, notes = load_for_runner("quickstart", runner="pipeline")
    assert same.experiment.training.options
    assert notes == []
    loaded, notes = load_for_runner("cleave-scaling", runner="pipeline")
    assert not loaded.experiment.sweep
    assert "left out, being planned with cleave: its sweep of 8 runs" in notes


WRONG = [
    ("network.congestion_control=bbx", "--set network.congestion_control: unknown congestion control 'bbx'"),
    ("sweep=[{training.stages: 2}, {topology.houses: 4}]", "--set topology.houses, in sweep.1: unknown key 'houses'"),
    ("sweep=[{training.stages: 2}, {training.stagez: 4}]", "--set training.stagez, in sweep.1: unknown option"),
    ("sweep=[{training.stages: 2}, {training.stages: 99}]", "--set training.stages, in sweep.1: 99 stages, but only"),
    ("sweep=[{availability.trace: gone.csv}]", "in sweep.0: no such file: gone.csv"),
    ("sweep=[{network.congestion_control: bbx}]", ", in sweep.0: unknown congestion control 'bbx'"),
]
VERBS = [
    ["plan", "smoke"],
    ["run", "smoke", "--dry-run"],
    ["simulate", "smoke"],
    ["recovery", "smoke"],
    ["validate", "smoke"],
    ["verify", "smoke"],
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_refuses_the_same(verb, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trying, "congestion_controls", lambda: ("cubic", "reno"))
    for setting, expected in WRONG:
        if "congestion" in setting and verb[0] in ("simulate", "verify"):
            continue  # asks no kernel; finds out what this machine can do first, for which it needs root
        if "sweep" in setting and "houses" not in setting and verb[0] in ("validate", "verify"):
            continue  # these are for one network: they check a sweep as far as the schema goes
        with pytest.raises(SystemExit) as ended:
            main([*verb, "--set", setting])
        assert ended.value.code == 2, setting
        assert expected in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_a_kernel_only_may_have_is_not_refused(monkeypatch):
    monkeypatch.setattr(trying, "congestion_controls", lambda: ())
    run("plan", "smoke", "--set", "network.congestion_control=bbr")
    monkeypatch.setattr(trying, "congestion_controls", lambda: ("cubic",))
    monkeypatch.setattr(trying, "command", lambda *argv: trying.Found(argv[-1] == "tcp_bbr", ""))
    run("plan", "smoke", "--set", "network.congestion_control=bbr")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["plan", "quickstrt"], "did you mean experiments/quickstart.yaml?"),
        (["plan", "quickstart", "--runner", "cleve"], "did you mean 'cleave'?"),
        (["plan", "quickstart", "--runner", "cleave", "--set", "training.wire=fp31"], "did you mean 'fp32'?"),
        (["plan", "quickstart", "--runner", "cleave", "--set", "training.schedule=1f1b"], "unknown"),
        (["plan", "quickstart", "--set", "training.stages=99"], "99"),
        (["plan", "quickstart", "--rows", "0"], "0 is not in the range"),
        (["plan", "missing"], "ready-made ones: cleave, cleave-churn"),
        (
            [
                "plan",
                "quickstart",
                "--set",
                "devices.define.dot={speed: 1 GFLOP/s, memory: 10 B}",
                "--set",
                "devices.profiles=[dot]",
                "--runner",
                "cleave",
                "--set",
                "training.local=never",
            ],
            "memory",
        ),
    ],
)
def test_bad_input_ends_with_2_and_says_what_was_expected(args, expected, capsys):
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err

"""Every class of bad input in an experiment file ends before anything starts: where, value, expectation."""

from pathlib import Path

import pytest

from testbed.cluster.devices import load_profiles
from testbed.cluster.populations import load_populations
from testbed.cluster.topology_file import load_topology
from testbed.errors import InputError
from testbed.experiment.loading import load_experiment, parse
from testbed.experiment.reference import markdown
from testbed.experiment.setup import run_setup
from testbed.studies.questions import load_questions
from testbed.studies.running import dry_run_text

ROOT = Path(__file__).resolve().parents[2]

GOOD = """\
name: small
topology:
  homes: 3
links: {download: 20 Mbit/s, upload: 5 Mbit/s, rtt: 20 ms}
"""


def write(tmp_path, text, name="e.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def failure(path, *sets) -> str:
    with pytest.raises(InputError) as caught:
        load_experiment(path, sets)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_good_file_is_in_si_units(tmp_path):
    e = load_experiment(write(tmp_path, GOOD)).experiment
    assert (e.links.download, e.links.upload, e.links.rtt) == (20e6, 5e6, 0.020)
    assert e.links.buffer == 0.1
    assert e.topology.server.uplink == 1e9


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("homes: 3", "homes: 0", ["line 3, topology.homes", "0 homes", "1 to 100000"]),
        ("homes: 3", "homes: [a, a]", ["topology.homes", "twice"]),
        ("homes: 3", "homes: [server, b]", ["'server' is the server's name"]),
        ("homes: 3", "homse: 3", ["line 3, topology.homse", "unknown key 'homse'", "did you mean 'homes'?"]),
        ("20 Mbit/s", "0 Mbit/s", ["line 4, links.download", "not positive", "above 0"]),
        ("20 Mbit/s", "-3 Mbit/s", ["links.download", "'-3 Mbit/s' is not positive"]),
        ("20 Mbit/s", "20 ms", ["links.download", "unknown unit 'ms' for a rate"]),
        ("20 Mbit/s", "20", ["links.download", "has no unit", "'20 Mbit/s'"]),
        ("20 Mbit/s", "fast", ["links.download", "'fast' is not a rate"]),
        ("rtt: 20 ms", "rtt: -1 ms", ["links.rtt", "negative", "0 or more"]),
        ("rtt: 20 ms", "rtt: 20 Mbit/s", ["links.rtt", "unknown unit 'Mbit/s' for a duration"]),
        ("rtt: 20 ms", "rtt: .nan s", ["links.rtt"]),
        (", rtt: 20 ms", "", ["line 4, links", "all of download, upload and rtt"]),
        ("rtt: 20 ms", "rtt: 20 ms, loss: 1.5", ["links.loss", "1.5", "less than 1"]),
        ("name: small", "name: a b", ["line 1, name", "'a b'"]),
        ("name: small", "seed: 1", ["name", "is missing"]),
        ("name: small", "name: small\nname: again", ["line 2", "stands twice"]),
        ("name: small", "name: small\ntraining: {batch: 7, micro_batches: 2}", ["batch 7 is not a multiple"]),
        ("name: small", "name: small\ntraining: {steps: many}", ["training.steps", "'many'"]),
        (
            "name: small",
            "name: small\nmodel: {d_model: 30, heads: 4}",
            ["line 2, model", "30 is not a multiple of heads 4"],
        ),
        ("name: small", "name: small\ntdf: 0", ["tdf", "expected a number from 0.1 to 1000"]),
        ("name: small", "name: small\nnetwork: {switch: brige}", ["network.switch", "did you mean 'bridge'?"]),
        ("name: small", "name: [unclosed", ["not valid YAML", "line"]),
    ],
)
def test_bad_value(tmp_path, old, new, expected):
    message = failure(write(tmp_path, GOOD.replace(old, new)))
    for part in expected:
        assert part in message, message


def test_all_problems_are_reported_at_once(tmp_path):
    message = failure(write(tmp_path, GOOD.replace("homes: 3", "homes: 0").replace("20 ms", "20")))
    assert "topology.homes" in message
    assert "links.rtt" in message


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("training.steps=x", ["--set training.steps", "'x'"]),
        ("training.steps", ["--set training.steps", "expected key=value"]),
        ("time_limit=1e300 s", ["--set time_limit: '1e300 s' is out of range; expected 0 to 36525 d"]),
        ("links.start=4e9 s", ["--set links.start: '4e9 s' is out of range; expected 0 to 36525 d"]),
        ("name.x=1", ["--set name.x=1", "name is a value, not a section"]),
        ("topologie.homes=2", ["topologie", "did you mean 'topology'?"]),
        ("topology.homes=true", ["--set topology.homes: found True", "neither true nor false"]),
        ("training.steps=yes", ["--set training.steps: found True", "neither true nor false"]),
        ("fidelity.rate_error_worst=true", ["rate_error_worst: True", "neither true nor false"]),
        (
            "training.optimizer.betas=[yes, 0.5]",
            ["--set training.optimizer.betas: found 0: True", "neither true nor false"],
        ),
    ],
)
def test_bad_override(tmp_path, item, expected):
    message = failure(write(tmp_path, GOOD), item)
    for part in expected:
        assert part in message, message


def test_overrides_and_seed(tmp_path):
    loaded = load_experiment(
        write(tmp_path, GOOD), ("training.steps=3", "topology.homes=[a, b]", "links.rtt=5 ms"), seed=9
    )
    assert loaded.experiment.training.steps == 3
    assert loaded.experiment.topology.homes == ["a", "b"]
    assert loaded.experiment.links.rtt == 0.005
    assert loaded.experiment.seed == 9
    assert loaded.data["topology"] == {"homes": ["a", "b"]}


def test_missing_file_names_the_nearest(tmp_path):
    with pytest.raises(InputError, match=r"no such experiment file\n  did you mean experiments/quickstart.yaml"):
        load_experiment("quickstrt")


DEEP = "\n".join("  " * i + "- 1\n" + "  " * i + "-" for i in range(2000))


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("description: " + "[" * 3000, "line 5: is nested too deeply; expected at most 50 levels"),
        ("description: " + "[" * 60 + "]" * 60, "line 5: is nested too deeply"),
        ("description:\n" + DEEP, "line 104: is nested too deeply"),
        (
            "seed: 1\ndescription: 2020-13-45",
            "line 6: found '2020-13-45', which is no possible date (month must be in 1..12)",
        ),
        ("seed: 0x_", "line 5: found '0x_', which is no possible number"),
        ("seed: " + "9" * 5000, "line 5: found '9999"),
        ("seed: !!int x", "line 5: found 'x', which is no possible number"),
        ("description: !!timestamp soon", "line 5: found 'soon', which is no possible date"),
        (
            "training:\n  a0: &a0 [1]\n" + "".join(f"  a{k + 1}: &a{k + 1} [*a{k}]\n" for k in range(900)),
            "is nested too deeply",
        ),
        ("training: &x\n  a: *x", "line 5: contains itself, by an alias"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1]"
            + "".join(f"\n{b}: &{b} [{','.join([f'*{a}'] * 9)}]" for a, b in zip("abcdefghij", "bcdefghijk")),
            "has more than 300000 values",
        ),
        ("description: a\x07b", "line 5: is not valid YAML: found the character '\\x07'"),
        ("time_scale: .inf", "line 5, time_scale: found inf; expected"),
        ("training: {optimizer: {lr: .nan}}", "line 5, training.optimizer.lr: found nan; expected"),
        ("time_scale: 1.0e+400", "line 5, time_scale: found inf; expected"),
    ],
)
def test_what_is_no_usable_yaml_is_named_with_its_line(tmp_path, tail, expected):
    path = write(tmp_path, GOOD + tail + "\n")
    assert expected in failure(path)


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("seed=2020-13-45", "--set seed line 1: found '2020-13-45', which is no possible date"),
        ("seed=" + "[" * 60 + "]" * 60, "--set seed line 1: is nested too deeply"),
    ],
)
def test_what_is_no_usable_yaml_in_set(tmp_path, item, expected):
    assert failure(write(tmp_path, GOOD), item).startswith(expected)


@pytest.mark.parametrize("load", [load_topology, load_profiles, load_populations, load_questions])
def test_every_file_in_yaml_is_read_so(tmp_path, load):
    for text in ("a: 1\nb: 2020-13-45\n", "a: 1\nb: " + "[" * 1000, "a: 1\nb: ["):
        with pytest.raises(InputError, match=r"e.yaml line [23]: "):
            load(write(tmp_path, text))
    (tmp_path / "e.yaml").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"is not UTF-8"):
        load(tmp_path / "e.yaml")


def test_merges_and_aliases_are_kept(tmp_path):
    path = write(tmp_path, "a: &a {homes: 3}\nb:\n  <<: *a\n  x: *a\n")
    assert parse(path)[0]["b"] == {"homes": 3, "x": {"homes": 3}}


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b"- 1\n- 2\n", b"a: &x [*x]", b"\x00\x01"])
def test_unusable_files(tmp_path, content):
    path = tmp_path / "e.yaml"
    path.write_bytes(content)
    assert str(path) in failure(path)


def test_a_file_that_may_not_be_looked_up_is_an_input_error(tmp_path, monkeypatch):
    loaded = load_experiment(write(tmp_path, GOOD))
    with pytest.raises(InputError, match="xx: can't be looked up: File name too long"):
        load_experiment("x" * 400)
    with pytest.raises(InputError, match="links.trace: can't be looked up: File name too long"):
        loaded.file("x" * 400, "links", "trace")

    def refuse(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(InputError, match="shut/a.yaml: can't be looked up: Permission denied"):
        load_experiment("shut/a.yaml")


def test_missing_trace_names_the_nearest(tmp_path):
    (tmp_path / "evening.csv").write_text("x")
    loaded = load_experiment(write(tmp_path, "name: a\ntopology: {homes: 2}\nlinks: {trace: evning.csv}\n"))
    with pytest.raises(InputError, match=r"line 3, links.trace: no such file: evning.csv\n  did you mean evening.csv"):
        loaded.file("evning.csv", "links", "trace")


def test_reference_in_the_docs_is_the_schema():
    text = (ROOT / "docs" / "experiment.md").read_text()
    assert markdown() in text, "docs/experiment.md: replace the tables by the output of `testbed schema --markdown`"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            "{topology.houses: 4}",
            "line 7, topology.houses, in sweep.1: unknown key 'houses'; expected one of: file, homes",
        ),
        ("{training.steps: x}", "line 7, training.steps, in sweep.1: found 'x'; expected: "),
        ("{training.steps: 2020-01-01}", "line 7, training.steps, in sweep.1: found date; expected: "),
        ("{name.x: 1}", "line 7, name.x, in sweep.1: name is a value, not a section"),
        (
            "{topology..homes: 1}",
            "line 7, topology..homes, in sweep.1: found the key 'topology..homes'; expected names",
        ),
        ("3", "line 7, sweep.1: found 3; expected: "),
    ],
)
def test_a_bad_entry_of_a_sweep_is_told_once_with_its_line(tmp_path, entry, expected):
    path = write(tmp_path, GOOD + f"sweep:\n  - {{topology.homes: 2}}\n  - {entry}\n")
    message = failure(path)
    assert message.startswith(f"{path} {expected}")
    assert message.count(str(path)) == 1


def test_all_that_is_wrong_with_an_entry_is_told_with_its_number_and_the_file_once(tmp_path):
    path = write(tmp_path, GOOD + "sweep:\n  - {training: {steps: 0, batch: -1}}\n")
    message = failure(path)
    assert message.count(str(path)) == 1
    assert "line 6, training.steps, in sweep.0: found 0" in message
    assert "line 6, training.batch, in sweep.0: found -1" in message


def test_a_switch_that_can_not_be_is_told_with_its_line(tmp_path):
    path = write(tmp_path, GOOD + "network: {switch: ovs, delay_backend: nfqueue}\n")
    with pytest.raises(InputError, match=f"{path} line 5, network.switch: 'ovs'"):
        run_setup(load_experiment(path))


def test_a_bad_entry_of_a_sweep_may_come_from_set(tmp_path):
    message = failure(write(tmp_path, GOOD), "sweep=[{topology.homes: 2}, {topology.houses: 4}]")
    assert message.startswith("--set topology.houses, in sweep.1: unknown key 'houses'; ")


def dry_run(*more) -> str:
    """What `testbed run smoke --dry-run` prints."""
    return dry_run_text(run_setup(load_experiment("smoke", more)))


@pytest.mark.parametrize(("tdf", "least_ms", "most_ms"), [(1, 200, 1000), (4, 800, 4000)])
def test_a_dry_run_prints_the_timeouts_that_the_run_sets(tdf, least_ms, most_ms):
    text = dry_run(f"tdf={tdf}")
    assert f"rto_min {least_ms}ms" in text
    assert f"net.ipv4.tcp_rto_max_ms={most_ms}" in text


def test_a_dry_run_takes_the_delay_backend_that_is_asked_for():
    assert "ovs-vsctl" in dry_run("network.switch=ovs", "network.delay_backend=netem")
    with pytest.raises(InputError, match="or delay_backend: netem"):
        dry_run("network.switch=ovs", "network.delay_backend=nfqueue")

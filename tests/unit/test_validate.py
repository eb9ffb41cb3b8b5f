"""Validation of one engine against the other: errors, limits, files, and what it does with doubtful runs."""

import json

import pytest
import yaml
from test_compare import tiny_run

from testbed.errors import InputError
from testbed.report.compare_engines import case_of, csv_text, markdown, validation
from testbed.report.compare_scatter import write_scatter
from testbed.studies.validating import checked, validate


def valid_run(base, **settings):
    """A tiny run whose verdict file says VALID, as an emulation's would."""
    path = tiny_run(base, **settings)
    (path / "fidelity.json").write_text(
        json.dumps(
            {
                "valid": True,
                "label": "VALID",
                "checks": [],
                "reasons": [],
                "notes": [],
                "invalid_since_s": None,
                "invalid_at": None,
            }
        )
    )
    return path


def case(tmp_path, name, emulated, simulated, *, valid=True, runner="cleave"):
    make = valid_run if valid else tiny_run
    real = [
        make(tmp_path / name, name=name, step_s=t, engine="emulation", seed=i, runner=runner)
        for i, t in enumerate(emulated)
    ]
    return case_of(name, real, [tiny_run(tmp_path / name, name=name, step_s=simulated, runner=runner)])


def test_errors_of_a_case(tmp_path):
    c = case(tmp_path, "a", [2.0, 2.2, 1.8], 2.3)
    assert c.errors["step_time_s"] == pytest.approx(0.15)
    assert c.errors["device_down_bytes"] == pytest.approx(0.0)
    assert c.emulated["step_time_s"].n == 3
    assert c.valid


def test_summary_is_over_absolute_errors(tmp_path):
    sizes = {"a": 1.0, "b": 1.1, "c": 0.92, "d": 1.05, "e": 1.3}
    found = validation([case(tmp_path, name, [2.0], 2.0 * x) for name, x in sizes.items()])
    step = next(s for s in found.over_valid if s.metric == "step_time_s")
    assert (step.cases, step.median, step.largest, step.bias) == (
        5,
        pytest.approx(0.08),
        pytest.approx(0.3),
        pytest.approx(0.05),
    )
    assert step.met is False  # the 90 % quantile is 22 %
    assert not found.met
    assert validation(found.cases[:4]).met
    assert not validation([]).met  # nothing was shown


def test_runs_that_were_not_valid_do_not_count(tmp_path):
    good, bad = case(tmp_path, "good", [2.0], 2.02), case(tmp_path, "bad", [2.0], 4.0, valid=False)
    found = validation([good, bad])
    assert [s.cases for s in found.over_valid if s.metric == "step_time_s"] == [1]
    assert [s.cases for s in found.over_all if s.metric == "step_time_s"] == [2]
    assert found.met
    text = markdown(found)
    assert "1 of them not to be relied on" in text
    assert "+100.0 %" in text
    assert csv_text(found).count("\nbad,") == len(bad.errors)


def test_the_scatter_plot_is_the_same_each_time(tmp_path):
    found = validation(
        [case(tmp_path, "a", [2.0, 2.1], 2.02), case(tmp_path, "b", [1.0], 3.0, valid=False, runner="pipeline")]
    )
    first = [p.read_bytes() for p in write_scatter(found, tmp_path)]
    assert first == [p.read_bytes() for p in write_scatter(found, tmp_path)]
    assert b"pipeline, not VALID" in first[1] or first[1].count(b"<use") > 2
    assert all(len(content) < 120_000 for content in first)


def experiment(tmp_path, name, file=None):
    path = tmp_path / f"{file or name}.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "name": name,
                "topology": {"homes": 2},
                "links": {"download": "50 Mbit/s", "upload": "10 Mbit/s", "rtt": "20 ms"},
                "model": {"layers": 2, "d_model": 32, "heads": 2},
                "training": {"steps": 2, "batch": 8},
            }
        )
    )
    return path


@pytest.mark.parametrize(
    ("overrides", "tdf", "expected"),
    [((), None, "auto"), (("tdf=4",), None, 4.0), ((), "3", 3.0), ((), "auto", "auto"), (("seed=1",), None, "auto")],
)
def test_the_time_dilation_is_that_of_the_option_or_of_set(tmp_path, overrides, tdf, expected):
    (setup,) = checked([experiment(tmp_path, "one")], overrides, tdf=tdf)
    assert ("auto" if setup.loaded.auto_tdf else setup.loaded.experiment.tdf) == expected


def test_both_engines_run_every_experiment(tmp_path):
    setups = checked([experiment(tmp_path, "one"), experiment(tmp_path, "two")], ("training.steps=3",))
    assert {s.loaded.experiment.training.steps for s in setups} == {3}
    calls = []

    def execute(engine, step_s):
        def run(setup, out, command):
            calls.append((engine, setup.loaded.experiment.name))
            return (valid_run if engine == "emulation" else tiny_run)(
                out, name=setup.loaded.experiment.name, engine=engine, step_s=step_s
            )

        return run

    found = validate(
        setups,
        tmp_path / "out",
        tmp_path / "runs",
        emulate=execute("emulation", 2.0),
        simulate=execute("simulation", 2.1),
        repeat=2,
    )
    assert sorted(calls) == sorted(
        [("simulation", n) for n in ("one", "two")] + [("emulation", n) for n in ("one", "two")] * 2
    )
    assert [c.errors["step_time_s"] for c in found.cases] == pytest.approx([0.05, 0.05])
    assert found.met
    data = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert data["met"] is True
    assert {"validation.csv", "validation.md", "validation.png", "validation.svg"} <= {
        p.name for p in (tmp_path / "out").iterdir()
    }


def test_experiments_need_names_of_their_own(tmp_path):
    with pytest.raises(InputError, match="is that of"):
        checked([experiment(tmp_path, "same", "x"), experiment(tmp_path, "same", "y")])

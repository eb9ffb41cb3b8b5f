"""Device populations: shares, seeds, sources; links and availability made by preset."""

from collections import Counter

import numpy as np
import pytest
import yaml

from testbed.cluster.devices import load_profiles
from testbed.cluster.populations import apportioned, draw, load_populations
from testbed.errors import InputError
from testbed.experiment.loading import load_experiment
from testbed.experiment.setup import run_setup

PROFILES, POPULATIONS = load_profiles(), load_populations()
CONSTANT = {"download": "50 Mbit/s", "upload": "10 Mbit/s", "rtt": "20 ms"}


def setup_of(tmp_path, **sections):
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump({"name": "p", "links": CONSTANT, "training": {"steps": 1}, **sections}))
    return run_setup(load_experiment(path))


@pytest.mark.parametrize("name", POPULATIONS)
def test_every_population_has_a_source_and_known_profiles(name):
    population = POPULATIONS[name]
    assert population.source
    devices = draw(population, 100, 1, PROFILES)
    assert len(devices) == 100
    assert all(d.flops > 0 and d.memory_bytes > 0 for d in devices)


def test_shares_are_kept_at_every_size():
    names = {part.kind: set(part.profiles) for part in POPULATIONS["households"].parts}
    computers = names["laptop"] | names["desktop"]
    for count in (29, 235, 4000):
        drawn = Counter(d.name in computers for d in draw(POPULATIONS["households"], count, 3, PROFILES))
        assert drawn[True] == pytest.approx(count * 0.81 / 2.35, abs=2)  # Census: 81 of 90 + 81 + 64


def test_volunteers_have_the_quantiles_of_the_hosts():
    speeds = [d.flops / 1e9 for d in draw(POPULATIONS["volunteers"], 1000, 5, PROFILES)]
    for level, gflops in ((0.1, 3.61), (0.25, 6.35), (0.5, 11.57), (0.75, 16.99), (0.95, 39.33)):
        assert np.quantile(speeds, level) == pytest.approx(gflops, rel=0.05)


def test_a_seed_is_a_draw():
    a, b, c = (draw(POPULATIONS["mixed"], 64, seed, PROFILES) for seed in (1, 1, 2))
    assert a == b
    assert a != c
    assert Counter(d.name for d in a) == Counter(d.name for d in c)  # stratified


def test_apportioned_adds_up():
    for count in range(40):
        assert sum(apportioned([0.9, 0.64, 0.653, 0.157], count)) == count
    assert apportioned([1, 1, 2], 8) == [2, 2, 4]


def test_in_an_experiment(tmp_path):
    setup = setup_of(
        tmp_path, devices={"population": "laptops", "count": 9, "mapping": {"h3": "phone"}, "speed_factor": 2}
    )
    profiles = Counter(d.profile for d in setup.cluster.devices)
    assert len(setup.cluster.devices) == 9
    assert profiles["phone"] == 1
    assert setup.cluster.device("h3").flops == 2 * PROFILES["phone"].flops
    powered = {d.power_w for d in setup.cluster.devices if d.profile == "mini-pc"}
    assert powered == {25.0}


def test_links_and_availability_by_preset(tmp_path):
    sections = {
        "devices": {"count": 12},
        "links": {"preset": "mixed"},
        "availability": {"preset": "evening", "start": "20 h"},
        "time_limit": "10 min",
    }
    setup = setup_of(tmp_path, **sections)
    assert len({s.split(":")[1] for s in setup.network.link_source.values()}) == 12
    technologies = {s.split(": ")[1].split("-")[0] for s in setup.network.link_source.values()}
    assert {"fttc", "cable", "fibre"} <= technologies
    order = [setup.network.link_source[f"h{i}"].split(": ")[1] for i in range(1, 13)]
    assert order != sorted(order)  # technologies do not come in blocks
    assert 0 < len(setup.absent_at_start) < 12
    again = setup_of(tmp_path, **sections)
    assert again.network.link_changes == setup.network.link_changes
    assert again.churn == setup.churn


@pytest.mark.parametrize(
    ("sections", "found"),
    [
        ({"devices": {"population": "volunters", "count": 3}}, "did you mean 'volunteers'?"),
        ({"devices": {"population": "phones", "count": 3}, "topology": {"homes": 4}}, "3 devices for 4 homes"),
        ({"topology": {"homes": 2}, "links": {"preset": "fiber"}}, "did you mean 'fibre'?"),
        ({"topology": {"homes": 2}, "links": {"preset": "cable", "rtt": "3 ms"}}, "preset and constant"),
        ({"topology": {"homes": 2}, "links": {"preset": "cable", "trace": "x.csv"}}, "exclude each other"),
        ({"topology": {"homes": 2}, "availability": {"preset": "evenings"}}, "did you mean 'evening'?"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(tmp_path, sections, found):
    with pytest.raises(InputError) as error:
        setup_of(tmp_path, **sections)
    assert found in str(error.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: {parts: []}", "expected a list of kinds"),
        ("a: {parts: [{kind: x, share: 0, profiles: [phone]}]}", "expected a number above 0"),
        ("a: {parts: [{kind: x, share: 1}]}", "has no profiles"),
        ("a: {parts: [{kind: x, shares: 1, profiles: [phone]}]}", "did you mean 'share'?"),
        ("a: {parts: [{kind: x, share: 1, profiles: [phone], speed_gflops: {0.5: 2, 0.9: 1}}]}", "fall as levels rise"),
    ],
)  # fmt: skip
def test_bad_population_files(tmp_path, text, found):
    path = tmp_path / "populations.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_populations(path)
    assert found in str(error.value)


def test_a_population_of_unknown_profiles(tmp_path):
    path = tmp_path / "populations.yaml"
    path.write_text("a: {parts: [{kind: x, share: 1, profiles: [phnoe]}]}")
    with pytest.raises(InputError, match="did you mean 'phone'"):
        draw(load_populations(path)["a"], 2, 0, PROFILES)

"""Device profiles: the shipped ones load, bad ones are refused with their place."""

import pytest

from testbed.cluster.devices import load_profiles
from testbed.errors import InputError


def test_shipped_profiles():
    profiles = load_profiles()
    assert {"phone", "single-board-computer", "laptop", "desktop", "volunteer"} <= set(profiles)
    pi = profiles["single-board-computer"]
    assert (pi.flops, pi.memory_bytes, pi.power_w) == (11.889e9, 2 * 2**30, 7.2)
    assert all(p.source for p in profiles.values())
    assert profiles["laptop"].power_w is None


def test_datacentre_gpus_sustain_less_than_their_datasheet_says():
    profiles = load_profiles()
    for name, peak, memory, watts in (("a100-80gb", 312e12, 80e9, 400), ("v100-32gb", 125e12, 32e9, 300)):
        gpu = profiles[name]
        assert 0.3 * peak < gpu.flops < 0.55 * peak  # Narayanan et al. 2021, Table 1: 43 to 52 %; Shoeybi et al. 2019
        assert (gpu.memory_bytes, gpu.power_w) == (memory, watts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {speed: 10, memory: 1 GiB}", "a.speed: 10 has no unit"),
        ("a: {speed: 10 GFLOP/s}", "a: has no memory"),
        ("a: {speed: 10 GFLOP/s, memory: 1 GB/s}", "unknown unit"),
        ("a: {speed: 0 FLOP/s, memory: 1 GiB}", "expected more than 0"),
        ("a: {sped: 10 GFLOP/s, memory: 1 GiB}", "did you mean 'speed'"),
        ("a: {speed: 10 GFLOP/s, memory: 1 GiB, power: -3}", "expected watts"),
        ("- a", "expected profiles by name"),
        ("a: [1", "line 1: is not valid YAML"),
    ],
)
def test_bad_profiles(tmp_path, text, message):
    file = tmp_path / "devices.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_profiles(file)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="no device profiles here"):
        load_profiles(tmp_path / "nothing.yaml")

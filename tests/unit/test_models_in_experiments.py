"""Models by name in experiment files."""

import pytest
import yaml

from testbed.cluster import ModelSpec
from testbed.cluster.published import published
from testbed.errors import InputError
from testbed.experiment.loading import load_experiment

BASE = {
    "name": "models", "topology": {"homes": 2},
    "links": {"download": "50 Mbit/s", "upload": "10 Mbit/s", "rtt": "20 ms"},
}  # fmt: skip


def spec_of(tmp_path, model, *sets) -> ModelSpec:
    path = tmp_path / "e.yaml"
    path.write_text(yaml.safe_dump({**BASE, **({} if model is None else {"model": model})}))
    return load_experiment(path, sets).experiment.model.spec


def test_the_default_is_what_it_was(tmp_path):
    assert spec_of(tmp_path, None) == ModelSpec()
    assert spec_of(tmp_path, {"layers": 8, "d_model": 64}) == ModelSpec(layers=8, d_model=64, d_ff=256)


def test_a_name_alone(tmp_path):
    assert spec_of(tmp_path, "opt-13b") == published("opt-13b")
    assert spec_of(tmp_path, "Llama-2-70B") == published("llama-2-70b")


def test_keys_beside_the_name_replace_its_own(tmp_path):
    assert spec_of(tmp_path, {"name": "gpt-3-175b", "sequence": 2048}) == published("gpt-3-175b", sequence=2048)
    small = spec_of(
        tmp_path,
        "llama-2-70b",
        "model.layers=2",
        "model.d_model=64",
        "model.heads=8",
        "model.kv_heads=2",
        "model.d_ff=96",
        "model.sequence=32",
        "model.vocabulary=256",
    )
    assert (small.family, small.layers, small.key_heads, small.sequence) == ("llama", 2, 2, 32)


def test_a_validated_model_can_be_validated_again(tmp_path):
    path = tmp_path / "e.yaml"
    path.write_text(yaml.safe_dump({**BASE, "model": {"name": "llama-2-7b", "layers": 3}}))
    model = load_experiment(path).experiment.model
    assert type(model).model_validate(model.model_dump()) == model


@pytest.mark.parametrize(
    ("model", "found", "near"),
    [
        ("opt-12b", "unknown model 'opt-12b'", "opt-1"),
        ({"name": "lama-2-7b"}, "unknown model 'lama-2-7b'", "llama-2-7b"),
        ({"name": "opt-125m", "sequence": 4096}, "sequence 4096 is longer than the 2048 positions", ""),
        ({"kind": "llama", "heads": 8, "kv_heads": 3}, "heads 8 is not a multiple of kv_heads 3", ""),
        ({"kind": "opt", "kv_heads": 2}, "needs kind: llama", ""),
        ({"kind": "llama", "d_model": 12, "heads": 4}, "even d_model / heads", ""),
        ({"kind": "lama"}, "found 'lama'", "llama"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(tmp_path, model, found, near):
    with pytest.raises(InputError) as error:
        spec_of(tmp_path, model)
    assert found in str(error.value)
    assert near in str(error.value)
    assert "e.yaml line" in str(error.value)

"""The text: the same batches everywhere, for any size of the standard library."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from runners.data import Batches, corpus, micro_batch_sizes, sources
from testbed.cluster import ModelSpec, TrainingSpec
from testbed.errors import InputError

MODEL = ModelSpec(sequence=16)
JOB = TrainingSpec(batch=10, micro_batches=4, seed=3)


def test_a_batch_depends_on_seed_and_step_alone():
    a, b = Batches(MODEL, JOB), Batches(MODEL, JOB)
    a.batch(0)
    for x, y in zip(a.batch(5), b.batch(5)):
        assert torch.equal(x, y)
    assert not torch.equal(a.batch(5)[0], a.batch(6)[0])
    other = Batches(MODEL, TrainingSpec(batch=10, micro_batches=4, seed=4))
    assert not torch.equal(a.batch(5)[0], other.batch(5)[0])


def test_another_process_makes_the_same_batch():
    code = (
        "from runners.data import Batches; from testbed.cluster import *;"
        "t, _ = Batches(ModelSpec(sequence=16), TrainingSpec(batch=10, micro_batches=4, seed=3)).batch(5);"
        "print(t.flatten().tolist())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str(Batches(MODEL, JOB).batch(5)[0].flatten().tolist())


def test_targets_are_the_next_bytes_of_the_text():
    tokens, targets = Batches(MODEL, JOB).batch(2)
    assert tokens.shape == targets.shape == (10, 16)
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    text = bytes(corpus())
    for row, last in zip(tokens, targets[:, -1]):
        assert bytes([*row.tolist(), int(last)]) in text


def test_micro_batches_are_the_batch_in_order():
    batches = Batches(MODEL, JOB)
    parts = batches.micro_batches(1)
    assert [len(tokens) for tokens, _ in parts] == [3, 3, 2, 2] == list(micro_batch_sizes(10, 4))
    for whole, cut in zip(batches.batch(1), zip(*parts)):
        assert torch.equal(whole, torch.cat(cut))


def test_the_text_is_the_standard_library():
    assert len(corpus()) == 2_000_000
    assert b"import " in bytes(corpus()[:100_000])
    assert corpus().max() < 256


def _library(tmp_path, files):
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(tmp_path)


def test_order_of_sources_and_what_is_left_out(tmp_path):
    root = _library(tmp_path, {
        "b.py": b"2", "a.py": b"1", "pkg/z.py": b"4", "pkg/c/y.py": b"3", "pkg/test/t.py": b"x",
        "site-packages/s.py": b"x", "data.txt": b"x",
    })  # fmt: skip
    assert [p.name for p in sources(tmp_path)] == ["a.py", "b.py", "y.py", "z.py"]
    assert bytes(corpus(root)) == b"1234"


@pytest.mark.parametrize("size", [1, 15, 16, 17, 40])
def test_a_tiny_library_is_repeated(tmp_path, size):
    content = bytes(range(size))
    batches = Batches(MODEL, JOB, root=_library(tmp_path, {"a.py": content}))
    tokens, targets = batches.batch(0)
    repeated = content * (20 // size + 2)
    for row, target in zip(tokens.tolist(), targets.tolist()):
        assert bytes([*row, target[-1]]) in repeated


def test_no_library_at_all(tmp_path):
    with pytest.raises(InputError, match="no Python source") as error:
        Batches(MODEL, JOB, root=str(tmp_path)).batch(0)
    assert str(tmp_path) in str(error.value)


def test_meta_device_needs_no_text():
    with torch.device("meta"):
        tokens, targets = Batches(MODEL, JOB, root="/nowhere").batch(0)
    assert tokens.is_meta
    assert tokens.shape == targets.shape == (10, 16)
    assert np.prod(tokens.shape) == 160

"""Errors that people can act on: which other name is suggested for one that there is not."""

import pytest

from testbed.errors import nearest

NAMES = ("cleave", "cleave-scaling", "lte", "quickstart", "ring", "tensor-parallel")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("quikstart", "quickstart"),
        ("QuickStart", "quickstart"),
        ("cleve", "cleave"),
        ("let", "lte"),
        ("rign", "ring"),
        ("quick", "quickstart"),
        ("tensor", "tensor-parallel"),
        ("missing", None),
        ("nothing", None),
        ("training", None),
        ("x", None),
        ("", None),
    ],
)
def test_only_near_names_are_suggested(name, meant):
    assert nearest(name, NAMES) == meant

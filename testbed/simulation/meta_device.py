"""Tensors without data by default, at no cost for the calls that make none."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._device import _device_constructors

_META = torch.device("meta")


@contextmanager
def meta_by_default() -> Iterator[None]:
    """Like `with torch.device("meta")`: torch.empty, zeros, tensor, … make meta tensors unless told otherwise.

    That context is a hook on every call into torch, views and attributes included, and costs more than a microsecond
    each. Here only the functions that make tensors are wrapped, the same ones that the context looks out for.
    """
    replaced: dict[str, Callable[..., Any]] = {"get_default_device": torch.get_default_device}
    for function in _device_constructors():
        name = getattr(function, "__name__", "")
        if getattr(torch, name, None) is function:
            replaced[name] = function
    try:
        for name, function in replaced.items():
            setattr(torch, name, _on_meta(function))
        torch.get_default_device = lambda: _META
        yield
    finally:
        for name, function in replaced.items():
            setattr(torch, name, function)


def _on_meta(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def make(*args: Any, **settings: Any) -> Any:
        if settings.get("device") is None:
            settings["device"] = _META
        return function(*args, **settings)

    return make

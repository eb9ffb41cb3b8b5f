"""Cleave: foundation-model training as sub-GEMMs over home devices (arXiv 2512.22142)."""

from runners.cleave.runner import CleaveRunner

__all__ = ["CleaveRunner"]

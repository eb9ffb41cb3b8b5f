"""Training on one computer, with its state in the host's memory where it does not fit: the cloud GPU's part."""

from runners.single.runner import SingleRunner

__all__ = ["SingleRunner"]

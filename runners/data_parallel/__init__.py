"""Data parallelism over volunteers' devices: synchronous parameter server and ring all-reduce."""

from runners.data_parallel.runner import DataParallelRunner

__all__ = ["DataParallelRunner"]

"""Tensor parallelism over volunteers' devices: heads, feed-forward columns and vocabulary by speed."""

from runners.tensor_parallel.runner import TensorParallelRunner

__all__ = ["TensorParallelRunner"]

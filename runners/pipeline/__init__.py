"""Pipeline parallelism over volunteers' devices: GPipe and 1F1B with flush."""

from runners.pipeline.runner import PipelineRunner

__all__ = ["PipelineRunner"]

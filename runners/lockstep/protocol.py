"""What is said in lockstep beyond the pipeline's protocol (runners/pipeline/protocol.py)."""

REDUCED = "reduced"  # report: this member has all that the step's update needs
COMMIT = "commit"  # control: everyone has; apply it (checkpoint: and upload a copy)


def reduce_tag(epoch: int, lane: int) -> str:
    return f"reduce.{epoch}.{lane}"

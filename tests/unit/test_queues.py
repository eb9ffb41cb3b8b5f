"""Router queues as tc gets them, and what is asked of the kernel for them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from testbed.emulation.kernel.trying import Found
from testbed.emulation.machine.capabilities import Capabilities, require_queue
from testbed.emulation.network.shaping import add_bottleneck, change_bottleneck, queue_options, shape
from testbed.errors import CapabilityError, InputError
from testbed.scenario.network import QUEUES, NetworkSettings


def test_the_buffer_limits_every_queue():
    assert queue_options(shape(20e6, 0.1)) == "bfifo limit 261396b"
    assert queue_options(shape(20e6, 0.1, queue="fq_codel")) == (
        "fq_codel limit 173 target 5000us interval 100000us quantum 1514"
    )
    assert queue_options(shape(20e6, 0.1, queue="cake")) == "cake unlimited besteffort rtt 100000us memlimit 522792b"


def test_slow_links_get_a_target_of_one_and_a_half_frames():
    """Else fq_codel drops packets for their own transmission time (tc-fq_codel(8), RFC 8290)."""
    slow = queue_options(shape(0.5e6, 0.1, queue="fq_codel"))
    assert "target 34753us interval 100000us" in slow
    slower = queue_options(shape(0.1e6, 0.1, queue="fq_codel"))
    assert "target 173761us interval 173761us" in slower  # never shorter than the target


def test_dilated_time_stretches_the_interval():
    assert "target 20000us interval 400000us" in queue_options(shape(20e6, 0.4, queue="fq_codel", interval_s=0.4))
    assert "rtt 400000us" in queue_options(shape(20e6, 0.4, queue="cake", interval_s=0.4))


@pytest.mark.parametrize("queue", QUEUES)
def test_a_queue_keeps_its_handle_and_changes_in_place(queue):
    before, after = shape(20e6, 0.1, queue=queue), shape(5e6, 0.1, queue=queue)
    kind = "bfifo" if queue == "fifo" else queue
    assert add_bottleneck("x1", before)[2].startswith(f"qdisc add dev x1 parent 1:1 handle 10: {kind} ")
    lines = change_bottleneck("x1", before, after)
    assert [line.split(" dev")[0] for line in lines] == ["class change", "qdisc change"]
    assert f"handle 10: {kind} " in lines[1]
    assert change_bottleneck("x1", before, before) == []


def test_unknown_queues_are_refused_with_the_nearest():
    with pytest.raises(InputError, match="fq_codel"):
        NetworkSettings(queue="fq_codl")


def test_what_the_kernel_lacks_is_named_with_remedy_and_way_out():
    yes, no = Found(True, "tried"), Found(False, "Specified qdisc kind is unknown.", "modprobe sch_cake")
    found = dict.fromkeys((f.name for f in fields(Capabilities)), None)
    caps = Capabilities(**found | {"bfifo": yes, "fq_codel": yes, "cake": no})
    require_queue(caps, "fifo")
    require_queue(caps, "fq_codel")
    with pytest.raises(CapabilityError, match="'cake' doesn't work here: Specified qdisc kind is unknown") as error:
        require_queue(caps, "cake")
    assert "links.queue=fifo" in error.value.hint
    assert "modprobe sch_cake" in error.value.hint

"""How much the emulation may deviate before a run is INVALID: every limit in one place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from testbed import units
from testbed.errors import InputError, unknown
from testbed.processes import in_user_mode_linux

#: What is asked of user-mode-linux instead. It has one processor for all, and each of its system calls, page faults
#: and wake-ups is a few switches between processes of the machine (docs/kernels.md).
USER_MODE_LINUX = {
    "rate_error_worst": 0.1,
    "rtt_error_s": 0.002,
    "rtt_p99_over_s": 0.01,
    "jitter_error_s": 0.001,
    "gap_deviation_p99": 0.5,
    "window_deviation_p99": 0.3,
    "neighbour_rtt_s": 0.003,
    "churn_late_s": 0.5,
    "sched_delay_s": 0.05,
    "overrun_time": 0.1,
    "overrun_count": 0.2,
}


@dataclass(frozen=True)
class Thresholds:
    """Limits of the fidelity verdict; docs/fidelity.md explains each. Names ending in _s are seconds.

    An experiment overrides them by name in its `fidelity:` block.
    """

    # links, probed before training: emulated seconds, fractions of the set value
    rate_error_mean: float = 0.02  # over all links and directions
    rate_error_worst: float = 0.05  # any one link and direction
    rtt_error_s: float = 0.001  # any one link: this much ...
    rtt_error_fraction: float = 0.02  # ... and this fraction of the set RTT
    # links, measured at length by `testbed verify`
    rtt_p99_over_s: float = 0.003  # 99th percentile of RTTs and one-way delays, beyond the set value (and its jitter)
    jitter_error_s: float = 0.0005  # standard deviation of one-way delays: this much ...
    jitter_error_fraction: float = 0.1  # ... and this fraction of the set one
    buffer_error_fraction: float = 0.05  # delay under load, beyond the idle one: this fraction of buffer / rate ...
    buffer_error_s: float = 0.003  # ... and this much
    gap_deviation_p99: float = 0.06  # of the gap between two packets of a saturated link
    window_deviation_p99: float = 0.06  # of the rate over 10 ms of a saturated link; one packet at least
    neighbour_rtt_s: float = 0.001  # median RTT of the others while one home saturates its link
    # links, during training
    rate_excess: float = 0.02  # more than the set rate through a bottleneck, in windows of leak_window_s: a leak
    leak_window_s: float = 1.0
    leak_allowance_bytes: float = 4 * 1514  # whole frames on a window's edges, and the shaper's least burst
    interference: float = 0  # changes of links that the tool did not make
    overflow_drops: float = 0  # packets dropped because the emulation's own queues were full
    # the engine's punctuality: real seconds
    replay_late_s: float = 0.05  # worst change of a link setting
    churn_late_s: float = 0.1  # worst leave or return: processes are stopped and started
    delay_lag_p99_s: float = 0.005  # of the packets of a second; holds in 95 % of the seconds
    delay_lag_max_s: float = 0.1  # any packet
    delay_stuck_s: float = 2.0  # age of the delay line's own figures: older means that it hangs or died
    delay_pauses: float = 0  # times that the delay line's process was stopped and continued
    sched_delay_s: float = 0.02  # worst wake-up in a second; holds in 95 % of the seconds
    sched_delay_max_s: float = 0.5  # any wake-up: later means that the engine itself stood still
    # compute pacing
    overrun_time: float = 0.02  # time beyond flops / speed, as a fraction of all paced time
    overrun_count: float = 0.05  # fraction of computations that overran by more than overrun_noticeable
    overrun_noticeable: float = 0.1  # of the computation's own paced time ...
    overrun_noticeable_s: float = 0.005  # ... and this much, real: less is below any home link's RTT
    # the machine
    cpu_busy: float = 0.95  # a second in which the machine was busier than this is saturated
    cpu_saturated_time: float = 0.2  # fraction of saturated seconds
    memory_available: float = 0.05  # least available memory, as a fraction of what there is
    memory_stall: float = 0.1  # worst 10 s average of time in which every process waited for memory (PSI full)
    host_coverage: float = 0.5  # fraction of the run's seconds in which the machine was watched

    @classmethod
    def from_mapping(
        cls, given: Mapping[str, Any] | None, where: Callable[..., str] = lambda *name: ".".join(("fidelity", *name))
    ) -> Thresholds:
        """This kernel's defaults, some replaced. Seconds may be written with a unit ('50 ms'), fractions as '5 %'.

        Args:
            where: the place of a threshold by its name, and of all without one, for error messages.

        Raises:
            InputError: an unknown name (the nearest is suggested) or a value that is no finite non-negative number.
        """
        names = [f.name for f in dataclasses.fields(cls)]
        values = {}
        if given is not None and not isinstance(given, Mapping):
            raise InputError(where(), f"{given!r}: expected names of thresholds with their values")
        for name, value in (given or {}).items():
            if name not in names:
                raise unknown(where(name), "threshold", name, names)
            values[name] = _value(where(name), name, value)
        return cls(**((USER_MODE_LINUX if in_user_mode_linux() else {}) | values))


def _value(where: str, name: str, value: Any) -> float:
    expected = "a duration such as '50 ms'" if name.endswith("_s") else "a number, or a percentage such as '5 %'"
    try:
        if isinstance(value, bool):
            raise ValueError
        if isinstance(value, str) and name.endswith("_s"):
            number = units.parse("duration", value)
        elif isinstance(value, str) and value.strip().endswith("%"):
            number = float(value.strip()[:-1]) / 100
        else:
            number = float(value)
    except (TypeError, ValueError):
        raise InputError(where, f"{value!r}: expected {expected}") from None
    if not 0 <= number < math.inf:
        raise InputError(where, f"{value!r}: expected {expected}, finite and not negative")
    return number

"""Do the delay backends agree? The same links, measured with NFQUEUE on this kernel, netem and Open vSwitch in another.

    sudo python tests/bench/bench_kernels.py                          # JSON, one line a quantity
    sudo python tests/bench/bench_kernels.py --points 12 --markdown   # the table of docs/kernels.md

Each kernel measures what `testbed verify --grid --quick` does. Two agree on a quantity when what they are off by differs by no
more than the limit, the wider one where kernels have different ones; on loss when their 95 % intervals overlap. The
machine should be idle otherwise; its load is printed. Some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

# how each is started, delay backend, switch
KERNELS = {
    "nfqueue, host": ([], "nfqueue", "bridge"),
    "netem, uml": (["-m", "testbed.uml", sys.executable], "netem", "bridge"),
    "netem and Open vSwitch, uml": (["-m", "testbed.uml", sys.executable], "netem", "ovs"),
}
QUANTITIES = ("UDP rate", "TCP rate", "RTT p50", "RTT p99", "delay p50", "jitter", "loss", "buffer")
Rows = dict[tuple[str, str, str], dict[str, Any]]


def measured(name: str, points: int) -> tuple[Rows, dict[str, Any]]:
    """Rows by (home, quantity, direction), and all that was said of the measurement."""
    prefix, backend, switch = KERNELS[name]
    done = subprocess.run(
        [sys.executable, *prefix, __file__, "--points", str(points), "--measure", backend, switch],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip()}")
    found = json.loads(done.stdout.splitlines()[-1])
    return {(r["home"], r["quantity"], r["direction"]): r for r in found["rows"] if r["quantity"] in QUANTITIES}, found


def measure(points: int, backend: str, switch: str) -> None:
    """On this kernel, and print it as JSON. The same settings on each: those that the slower kernel can carry."""
    from testbed.verification.grid import RATES_BPS, UML_MOST_BPS, verify_grid

    found = verify_grid(
        points,
        quick=True,
        command="bench_kernels",
        delay_backend=backend,
        switch=switch,
        rates_bps=[rate for rate in RATES_BPS if rate <= UML_MOST_BPS],
    )
    print(json.dumps(found.as_dict()))


def agree(one: dict[str, Any] | None, other: dict[str, Any] | None) -> bool | None:
    """Do two kernels' rows agree? None when one of them measured nothing."""
    if one is None or other is None or one["measured"] is None or other["measured"] is None:
        return None
    if one["quantity"] == "loss":
        return one["more"]["low"] <= other["more"]["high"] and other["more"]["low"] <= one["more"]["high"]
    if one["error"] is None or other["error"] is None or one["limit"] is None or other["limit"] is None:
        return None
    return abs(one["error"] - other["error"]) <= max(one["limit"], other["limit"])


def deviation(row: dict[str, Any] | None) -> str:
    if row is None or row["measured"] is None:
        return "-"
    if row["quantity"] == "loss":
        return f"{100 * row['more']['low']:.2f}–{100 * row['more']['high']:.2f} %"
    if row["error"] is None:
        return "-"
    text = f"{100 * row['error']:+.2f} %" if row["error_unit"] == "%" else f"{1e3 * row['error']:+.2f} ms"
    return text if row["ok"] is not False else f"**{text}**"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--measure", nargs=2, metavar=("BACKEND", "SWITCH"), help="on this kernel alone")
    options = parser.parse_args()
    if options.measure:
        measure(options.points, *options.measure)
        return 0
    found = {name: measured(name, options.points) for name in KERNELS}
    if len({json.dumps(said["points"]) for _, said in found.values()}) != 1:
        sys.exit("the kernels measured different settings")
    points = next(iter(found.values()))[1]["points"]
    reference = found["nfqueue, host"][0]
    keys = sorted(
        set().union(*(rows for rows, _ in found.values())), key=lambda k: (int(k[0][1:]), QUANTITIES.index(k[1]), k[2])
    )
    lines, agreed, compared = [], 0, 0
    for home, quantity, direction in keys:
        rows = {name: rows.get((home, quantity, direction)) for name, (rows, _) in found.items()}
        answers = [
            agree(reference.get((home, quantity, direction)), rows[name])
            for name in KERNELS
            if rows[name] and name != "nfqueue, host"
        ]
        agreed, compared = agreed + answers.count(True), compared + len(answers) - answers.count(None)
        point = points[home]
        setting = f"{point['rate_bps'] / 1e6:g} Mbit/s, {1e3 * point['rtt_s']:g} ms, {100 * point['loss']:g} %"
        said = "no" if False in answers else "yes" if True in answers else "-"
        if options.markdown:
            lines.append(
                f"| {setting} | {quantity}, {direction} | "
                + " | ".join(deviation(rows[name]) for name in KERNELS)
                + f" | {said} |"
            )
        else:
            print(
                json.dumps(
                    {
                        "bench": "kernels",
                        "setting": setting,
                        "quantity": quantity,
                        "direction": direction,
                        **{name: row and row["error"] for name, row in rows.items()},
                        "agree": said,
                        "load": os.getloadavg()[0],
                    }
                )
            )
    if options.markdown:
        print("| set rate, RTT, loss | what, which way | " + " | ".join(KERNELS) + " | agree |")
        print("|" + " --- |" * (len(KERNELS) + 3))
        print("\n".join(lines))
        print(
            f"\n{agreed} of {compared} comparisons agree. Linux "
            + " and ".join(dict.fromkeys(facts["kernel"] for _, facts in found.values()))
            + f"; load of the machine {os.getloadavg()[0]:.1f}. Bold: beyond that kernel's own limit."
        )
    return 0 if agreed == compared else 1


if __name__ == "__main__":
    sys.exit(main())

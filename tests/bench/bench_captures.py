"""How fast and in how much memory the flows of a capture are read, and a capture is completed as pcapng.

    python tests/bench/bench_captures.py [PACKETS]

The file is crafted: 50 TCP connections with time stamps, data one way, acknowledgements the other. Prints JSON, a line each.
"""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONNECTIONS, LIMIT_S, LIMIT_BYTES = 50, 20.0, 500e6


def _frame(back: bool, port: int, seq: int, ack: int, payload: int, stamp: int, echo: int) -> bytes:
    ports, ends = (80, port), (b"\x0a\0\0\2", b"\x0a\0\0\1")
    if not back:
        ports, ends = ports[::-1], ends[::-1]
    tcp = struct.pack("!HHIIBBHHH", *ports, seq % 2**32, ack % 2**32, 8 << 4, 16, 1000, 0, 0)
    tcp += b"\1\1\x08\x0a" + struct.pack("!II", stamp, echo)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 52 + payload, stamp & 0xFFFF, 0, 64, 6, 0, *ends)
    return bytes(12) + b"\x08\0" + ip + tcp


def write(path: Path, packets: int) -> None:
    sent = [0] * CONNECTIONS
    t = 1_700_000_000 * 10**9
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 96, 1))
        for i in range(packets // 2):
            k, stamp = i % CONNECTIONS, i // 10 + 30
            t += 10_000
            for back, data in (
                (False, _frame(False, 1000 + k, sent[k], 1, 1448, stamp, 1)),
                (True, _frame(True, 1000 + k, 1, sent[k] + 1448, 0, stamp, stamp - 20)),
            ):
                length = len(data) + (0 if back else 1448)
                file.write(struct.pack("<IIII", t // 10**9, t % 10**9 + back, len(data), length) + data)
            sent[k] += 1448


def measure(what: str, path: Path) -> dict[str, object]:
    """In this process."""
    from testbed.capture.flows import read_flows
    from testbed.capture.writing import complete

    began = time.perf_counter()
    if what == "complete":
        target = path.with_suffix(".pcapng")
        count = complete(path, target, host="h1", interface="h1-eth0", names={}, comments=[], snaplen=96)
    else:
        count = read_flows(path).packets
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"case": what, "packets": count, "seconds": round(seconds, 2), "peak_bytes": peak}


def main() -> int:
    if len(sys.argv) > 2:
        print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
        return 0
    packets, fine = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "h1.pcap"
        write(path, packets)
        for what in ("flows of a pcap", "complete", "flows of a pcapng"):
            source = path.with_suffix(".pcapng") if what.endswith("pcapng") else path
            done = subprocess.run([sys.executable, __file__, what, source], capture_output=True, text=True, check=True)
            print(done.stdout, end="", flush=True)
            found = json.loads(done.stdout)
            fine &= found["seconds"] <= LIMIT_S * packets / 1e6 and found["peak_bytes"] <= LIMIT_BYTES
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())

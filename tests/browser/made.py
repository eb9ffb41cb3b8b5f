"""The pages that are looked at: of made-up runs with hostile texts, of simulations, and of traces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from synthetic_run import Synthetic, write_run

from testbed.measurement.events import frame, write_parquet
from testbed.measurement.run_folder import RunFolder
from testbed.report import build_report

HOSTILE = (
    "<script>window.hostile=1</script>",
    "\"><img src=x onerror='window.hostile=2'>",
    "a & b \"q\" 'p' </script>",
    "\u202egnp.exe\u202c",
)


SHOWN = (*HOSTILE[:3], "[U+202E]gnp.exe[U+202C]")


def testbed(*arguments: object, cwd: Path) -> None:
    subprocess.run([sys.executable, "-m", "testbed", *map(str, arguments)], cwd=cwd, check=True, capture_output=True)


def pages(base: Path) -> dict[str, Path]:
    """Name -> HTML file."""
    return {
        "churn": build_report(_with_churn(base)),
        "failed": build_report(_failed(base)),
        **_simulated(base),
        **_traces(base),
        **_site(),
    }


def _with_churn(base: Path) -> Path:
    warning = {"t": 1.0, "node": "testbed", "event": "warning", "text": f"warned of {HOSTILE[1]}"}
    s = Synthetic(homes=5, steps=14, churn=((11.0, 1, 6.0), (30.0, 2, 9.0)), names=(*HOSTILE, "h5"))
    path = write_run(base, s, name=f"churn {HOSTILE[0]}", extra=[warning])
    (path / "experiment.yaml").write_text(f"name: churn\nnotes: {HOSTILE[2]}\n")
    return path


def _failed(base: Path) -> Path:
    path = write_run(base, Synthetic(homes=3, steps=9, churn=()), name="failed", keep=lambda e: e["t"] < 5)
    RunFolder.open(path).write_manifest(status="failed", error=f"h2: {' '.join(HOSTILE)} " + "long" * 60)
    return path


def _simulated(base: Path) -> dict[str, Path]:
    for homes in (3, 4, 6):
        testbed("simulate", "smoke", "--set", f"topology.homes={homes}", "--out", base / "runs", cwd=Path.cwd())
    runs = sorted((base / "runs").iterdir())
    testbed("compare", *runs, "--html", base / "compare.html", cwd=base)
    return {"simulation": build_report(runs[0]), "compare": base / "compare.html"}


def _traces(base: Path) -> dict[str, Path]:
    found = {}
    for kind, file in (("links", "mixed.csv"), ("availability", "evening.csv")):
        page = base / f"{kind}.html"
        source = Path("traces", kind, file).resolve()
        testbed("traces", "plot", source, "--out", page, "--title", f"{kind} {HOSTILE[0]}", cwd=base)
        found[f"traces-{kind}"] = page
    return found


def _site() -> dict[str, Path]:
    """The documentation, where `make docs` has made it."""
    page = Path("build/site/index.html").resolve()
    return {"docs": page} if page.exists() else {}


def large(base: Path, homes: int = 1000, steps: int = 1000) -> Path:
    """A run in which each home computes and receives once a step."""
    names = np.array([f"h{i + 1}" for i in range(homes)], dtype=object)
    path = write_run(base, Synthetic(homes=2, steps=1, micro_batches=1, churn=()), name="large")
    rng = np.random.default_rng(0)
    end = np.repeat(np.arange(1.0, steps + 1), homes)
    node = np.tile(names, steps)
    start = end - rng.uniform(0.3, 0.9, len(end))
    compute = {"t": end, "node": node, "event": "compute", "start": start, "end": end, "label": "F", "flops": 1e9,
               "busy": 0.1, "overrun": 0.0}  # fmt: skip
    received = {"t": end - 0.1, "node": node, "event": "transfer", "start": start - 0.1, "end": start, "peer": "server",
                "tag": "x", "bytes": 1e5}  # fmt: skip
    own = [
        {"t": float(i + 1), "node": "server", "event": "step", "step": i, "loss": 3 / (i + 1), "start": float(i),
         "end": float(i + 1), "samples": 8, "attempt": 1, "devices": homes}
        for i in range(steps)
    ]  # fmt: skip
    rates = rng.uniform(5e6, 5e7, (homes, 2, 20))
    own += [
        {"t": float(50 * k), "node": n, "event": "link", "down_bps": rates[i, 0, k], "up_bps": rates[i, 1, k],
         "rtt_s": 0.02, "jitter_s": 0.0, "loss": 0.0, "late": 0.001}
        for i, n in enumerate(names) for k in range(20)
    ]  # fmt: skip
    own += [
        {"t": -0.5, "node": n, "event": "probe", "quantity": quantity, "set": 0.02, "measured": 0.0201, "seconds": 1.0}
        for n in names
        for quantity in ("rate_down", "rate_up", "rtt")
    ]
    own += [
        {"t": 5.0 * i + k, "node": names[i], "event": "churn", "action": action, "mode": "kill", "cause": "trace"}
        for i in range(min(homes, 150))
        for k, action in ((0.0, "leave"), (40.0, "return"))
    ]
    events = pd.concat([pd.DataFrame(compute), pd.DataFrame(received), frame(own)], ignore_index=True)
    events = events.sort_values("t", kind="stable").reset_index(drop=True)
    for name in events.columns:
        if events[name].dtype == object or not pd.api.types.is_numeric_dtype(events[name]):
            events[name] = events[name].astype(object).where(events[name].notna(), None)
    write_parquet(events.drop(columns="devices"), path / "events.parquet")
    return build_report(path)

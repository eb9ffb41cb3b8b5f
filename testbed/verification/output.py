"""A verification as a table for the terminal, as JSON, and as a figure."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from testbed.measurement.recorder import write_error
from testbed.verification.rows import Row, shown
from testbed.verification.verify import RATES, Verification

_STYLES = {True: "green", False: "bold red", None: "dim"}


def render(found: Verification) -> RenderableType:
    """Every row, what failed once more at the end, and the verdict."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("home", "", "quantity", "set", "measured", "off by", "limit", "", "times", ""):
        table.add_column(
            name,
            justify="right" if name in ("set", "measured", "off by", "limit", "times") else "left",
            overflow="fold",
        )
    last = None
    for row in in_order(found.rows):
        table.add_row(
            row.home if row.home != last else "",
            {"both": ""}.get(row.direction, row.direction),
            row.quantity,
            shown(row.set, row.unit),
            shown(row.measured, row.unit),
            shown(row.error, row.error_unit),
            shown(row.limit, row.error_unit),
            Text(row.verdict, style=_STYLES[row.ok]),
            str(row.attempts) if row.attempts > 1 else "",
            row.note,
        )
        last = row.home
    return Group(table, Text(), verdict(found))


def verdict(found: Verification) -> Text:
    """'PASS: 48 rows within their limits', or which ones are not."""
    counts = {ok: sum(row.ok is ok for row in found.rows) for ok in (True, False, None)}
    tail = f" ({counts[None]} not judged)" if counts[None] else ""
    if found.ok:
        return Text(f"PASS: {counts[True]} rows within their limits{tail}", style="bold green")
    failed = [
        f"{r.home} {r.direction} {r.quantity}: {shown(r.measured, r.unit)}, set {shown(r.set, r.unit)} ({r.note})"
        for r in found.rows
        if r.ok is False
    ]
    return Text(
        f"FAIL: {counts[False]} of {counts[True] + counts[False]} rows out of bounds{tail}\n  " + "\n  ".join(failed),
        style="bold red",
    )


def in_order(rows: Iterable[Row]) -> list[Row]:
    """By home, in the order of their first rows; each home's by direction."""
    rows = list(rows)
    homes = list(dict.fromkeys(r.home for r in rows))
    directions = ("both", "down", "up")
    return sorted(rows, key=lambda r: (homes.index(r.home), directions.index(r.direction)))


def write(found: Verification, folder: Path, *extra: tuple[str, str]) -> list[Path]:
    """verify.json, verify.png and further (name, text) files in a folder. Raises TestbedError when they can't be."""
    paths = [folder / name for name in ("verify.json", "verify.png", *dict(extra))]
    try:
        paths[0].write_text(json.dumps(found.as_dict(), indent=1))
        draw(found, paths[1])
        for path, (_, text) in zip(paths[2:], extra, strict=True):
            path.write_text(text)
    except OSError as error:
        raise write_error(folder, error) from None
    return paths


def make_folder(out: Path, name: str, stamp: str) -> Path:
    """'OUT/verify-NAME-STAMP', with a number where that is taken. Raises TestbedError when it can't be made."""
    base = out / f"verify-{re.sub(r'[^A-Za-z0-9_-]+', '-', name)}-{stamp}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = base if number == 1 else base.with_name(f"{base.name}-{number}")
            with contextlib.suppress(FileExistsError):  # whoever made it and however recently
                path.mkdir()
                break
    except OSError as error:
        raise write_error(base, error) from None
    return path


def draw(found: Verification, path: Path) -> None:
    """Four panels: rates, delays, loss with its interval, packet gaps; measured against set, limits shaded."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    rows = found.rows
    _errors(
        axes[0, 0],
        [r for r in rows if r.quantity in RATES],
        100,
        "rate: measured − set [%]",
        "set rate [Mbit/s]",
        lambda r: r.set / 1e6,
        log=True,
    )
    _errors(
        axes[0, 1],
        [r for r in rows if r.quantity.startswith(("RTT", "delay p"))],
        1e3,
        "delay: measured − set [ms]",
        "set delay [ms]",
        lambda r: 1e3 * r.set,
    )
    _losses(axes[1, 0], [r for r in rows if r.quantity == "loss"])
    _gaps(axes[1, 1], [r for r in rows if r.quantity == "packet gap p99" and r.more])
    label = "PASS" if found.ok else "FAIL"
    figure.suptitle(
        f"{found.name}: {label}   ({found.facts.get('delay_backend', '')}, Linux {found.facts.get('kernel', '')})"
    )
    figure.savefig(path, dpi=130)


def _errors(axis, rows: Sequence[Row], scale: float, title: str, x: str, at, *, log: bool = False) -> None:
    axis.set_title(title, loc="left")
    axis.set_xlabel(x)
    axis.axhline(0, color="#6b7280", linewidth=0.8)
    for quantity, marker in zip(dict.fromkeys(r.quantity for r in rows), "ovs^D"):
        of = [r for r in rows if r.quantity == quantity and r.error is not None and math.isfinite(r.error)]
        axis.scatter([at(r) for r in of], [scale * r.error for r in of], marker=marker, s=26, label=quantity, alpha=0.8)
        failed = [r for r in of if r.ok is False]
        axis.scatter([at(r) for r in failed], [scale * r.error for r in failed], marker="x", color="#c0392b", s=60)
    if log and rows:
        axis.set_xscale("log")
    limits = sorted(
        (at(r), scale * r.limit) for r in rows if r.limit is not None and r.quantity in ("UDP rate", "RTT p50")
    )
    if limits:
        xs, ys = zip(*limits)
        axis.fill_between(xs, [-y for y in ys], ys, color="#1b9e77", alpha=0.12, label="limit")
    if rows:
        axis.legend(fontsize=8)
    axis.grid(color="#e5e7eb")


def _losses(axis, rows: Sequence[Row]) -> None:
    axis.set_title("loss, one-way, with its 95 % interval [%]", loc="left")
    axis.set_xlabel("set loss [%]")
    for r in rows:
        colour = "#c0392b" if r.ok is False else "#1f6fb4"
        axis.errorbar(
            [100 * r.set],
            [100 * r.measured],
            [[100 * max(0.0, r.measured - r.more["low"])], [100 * max(0.0, r.more["high"] - r.measured)]],
            fmt="o",
            color=colour,
            markersize=4,
            capsize=2,
            alpha=0.8,
        )
    top = max((100 * r.set for r in rows), default=0) or 1
    axis.plot([0, top], [0, top], color="#6b7280", linewidth=0.8)
    axis.grid(color="#e5e7eb")


def _gaps(axis, rows: Sequence[Row]) -> None:
    axis.set_title("gap of two packets at saturation: deviation [%]", loc="left")
    axis.set_xlabel("set gap [ms]")
    for name, marker in (("p50", "o"), ("p90", "s"), ("p99", "^")):
        axis.scatter(
            [1e3 * r.set for r in rows],
            [max(0.01, 100 * r.more[name]) for r in rows],
            marker=marker,
            s=24,
            label=name,
            alpha=0.8,
        )
    axis.scatter(
        [1e3 * r.set for r in rows],
        [100 * r.more["timer_p99"] for r in rows],
        marker="_",
        color="#111827",
        label="timers alone, p99",
    )
    if rows:
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.legend(fontsize=8)
    axis.grid(color="#e5e7eb")

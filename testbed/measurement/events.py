"""Events as data: which fields each kind has, events as a table, and reading them from a run folder.

The meaning of every field is in docs/events.md. Unknown kinds and fields are kept, so that runners can record
more.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

JSONL, PARQUET = "events.jsonl", "events.parquet"
COMMON = ("t", "node", "event")
FIELDS: dict[str, tuple[str, ...]] = {
    # from the engine
    "compute": ("start", "end", "label", "flops", "busy", "overrun"),
    "send": ("start", "end", "peer", "tag", "bytes"),
    "transfer": ("start", "end", "peer", "tag", "bytes"),
    "wait": ("start", "end", "peer", "tag"),
    "transport": ("sent", "received", "dropped"),
    "member": ("kind", "peer", "generation", "detection"),
    "link": ("down_bps", "up_bps", "rtt_s", "jitter_s", "loss", "late", "role"),
    "churn": ("action", "mode", "late", "cause"),
    "throughput": ("direction", "bytes", "seconds", "drops", "backlog"),
    "probe": ("quantity", "set", "measured", "seconds", "count", "text"),
    "worker": ("state", "pid", "exit"),
    "host": (
        "cpu", "steal", "load", "memory_bytes", "memory_available_bytes", "memory_stall", "cpu_stall",
        "sched_delay", "delay_lag_p99", "delay_lag_max", "delay_overflowed", "delay_age", "delay_cpu", "delay_paused",
        "replay_overdue", "churn_overdue", "links_watched",
    ),
    "interference": ("quantity", "direction", "set", "measured", "text"),
    "cross_traffic": ("direction", "rate_bps", "late"),
    "capture": ("packets", "dropped", "seconds", "cpu", "text"),
    "totals": ("bytes_up", "bytes_down", "messages_up", "messages_down", "computations", "flops", "compute_s", "wait_s",
               "memory_peak_bytes"),
    "warning": ("text",),
    # from runners
    "step": ("step", "loss", "start", "end", "samples", "attempt", "devices"),
    "recovery": ("kind", "peer", "detected", "start", "end", "restored", "step", "lost_steps"),
    "checkpoint": ("start", "end", "step", "bytes"),
    "plan": ("devices", "note"),
    "traffic": ("step", "server_out", "server_in", "saved", "duplicates", "messages", "down", "up"),
    "straggler": ("peer", "label", "step", "after"),
    "fault": ("peer", "text", "step"),
}  # fmt: skip
TEXT_FIELDS = frozenset(
    [
        "node",
        "event",
        "label",
        "peer",
        "tag",
        "kind",
        "action",
        "mode",
        "cause",
        "direction",
        "quantity",
        "state",
        "text",
        "note",
        "role",
    ]
)
# Numbers in one event, lists of names or tables by peer in another
NESTED_FIELDS = frozenset({"devices", "sent", "received", "dropped"})
_KNOWN = frozenset(COMMON).union(*FIELDS.values())
_JSON_COLUMNS = b"testbed.json_columns"


def encode(event: dict[str, Any]) -> bytes:
    """One event as a line of JSON. NumPy and torch scalars become numbers; NaN and infinities stay as such.

    Raises:
        TypeError: a value that JSON can't hold; the message names the field.
    """
    try:
        return _ENCODER.encode(event).encode() + b"\n"
    except (TypeError, ValueError) as error:
        for name, value in event.items():
            try:
                json.dumps(value, default=_plain)
            except (TypeError, ValueError):
                raise TypeError(
                    f"event {event.get('event')!r}, field {name!r}: {type(value).__name__} is no JSON value"
                ) from None
        raise TypeError(f"event {event.get('event')!r}: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    if callable(getattr(value, "tolist", None)):  # NumPy, torch
        return value.tolist()
    raise TypeError(type(value).__name__)


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)


def _decode(line: bytes) -> Any:
    """As `json.loads`, most of the time a few times as quick. Raises ValueError."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:  # NaN and infinities are not JSON, but `encode` writes them
        return json.loads(line)


def frame(events: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Events as a table: a row an event, a column a field; numbers as float64, missing as NaN or None."""
    table = pd.DataFrame(list(events))
    for name in COMMON:
        if name not in table:
            table[name] = None
    table = table[[*COMMON, *(c for c in table.columns if c not in COMMON)]]
    return pd.DataFrame({name: _column(name, table[name]) for name in table.columns})


def _column(name: str, values: pd.Series) -> pd.Series:
    if isinstance(values.dtype, pd.StringDtype):  # all of them text or missing: by far the most frequent case
        texts = values.to_numpy(object)
        texts[values.isna().to_numpy()] = None
        return pd.Series(texts, dtype=object)
    if name in NESTED_FIELDS:
        return _objects(None if _missing(v) else v for v in values)
    if name in TEXT_FIELDS:
        return _objects(None if _missing(v) else str(v) for v in values)
    if pd.api.types.is_bool_dtype(values) or pd.api.types.is_numeric_dtype(values):
        return values.astype(float)
    present = [v for v in values if not _missing(v)]
    if all(isinstance(v, (int, float)) for v in present):
        return pd.to_numeric(values, errors="coerce").astype(float)
    return _objects(None if _missing(v) else v for v in values)


def _objects(values: Iterable[Any]) -> pd.Series:
    return pd.Series(list(values), dtype=object)  # left to itself, pandas makes NaN of None in a text column


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def select(events: pd.DataFrame, kind: str) -> pd.DataFrame:
    """The events of one kind in time order, with every field of that kind (NaN or None where absent)."""
    if "event" not in events.columns:
        events = frame([])
    rows = events[events["event"] == kind]
    fields = [*COMMON, *FIELDS.get(kind, ())]
    others = _KNOWN if kind in FIELDS else fields  # fields of other kinds are left out, unless it is new
    extra = [c for c in rows.columns if c not in others and rows[c].notna().any()] if len(rows) else []
    missing = [c for c in fields if c not in rows.columns]
    rows = rows.reindex(columns=[*fields, *extra])
    for name in FIELDS.get(kind, ()):
        if name in TEXT_FIELDS or name in NESTED_FIELDS:
            if name in missing:
                rows[name] = pd.Series([None] * len(rows), index=rows.index, dtype=object)
        elif rows[name].dtype != float:
            rows[name] = pd.to_numeric(rows[name], errors="coerce").astype(float)
    rows["t"] = pd.to_numeric(rows["t"], errors="coerce").astype(float)
    return rows.sort_values("t", kind="stable").reset_index(drop=True)


def write_parquet(events: pd.DataFrame, path: Path) -> None:
    """Columns that hold lists or mixed values are written as JSON text and named in the file's metadata."""
    columns, nested = {}, []
    for name in events.columns:
        values = events[name]
        if values.dtype == float:
            columns[name] = pa.array(values.to_numpy(), pa.float64(), from_pandas=True)
        elif all(v is None or isinstance(v, str) for v in values):
            columns[name] = pa.array(list(values), pa.string())
        else:
            nested.append(name)
            texts = [None if _missing(v) else json.dumps(v, default=_plain) for v in values]
            columns[name] = pa.array(texts, pa.string())
    table = pa.table(columns).replace_schema_metadata({_JSON_COLUMNS: json.dumps(nested).encode()})
    pq.write_table(table, path, compression="zstd")


def _read_parquet(path: Path) -> pd.DataFrame:
    table = pq.read_table(path)
    nested = set(json.loads((table.schema.metadata or {}).get(_JSON_COLUMNS, b"[]")))
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if pa.types.is_floating(column.type):
            columns[name] = column.to_numpy().astype(float)
        else:
            values = column.to_pylist()
            if name in nested:
                values = [None if v is None else json.loads(v) for v in values]
            columns[name] = pd.Series(values, dtype=object)
    return pd.DataFrame(columns)


def _read_jsonl(path: Path) -> pd.DataFrame:
    """Lines that are no events are left out: a crash may cut the last one short. How many: `attrs["unreadable"]`."""
    events, unreadable = [], 0
    with path.open("rb") as lines:
        for line in lines:
            try:
                event = _decode(line)
            except ValueError:
                event = None
            if isinstance(event, dict) and isinstance(event.get("t"), (int, float)):
                events.append(event)
            else:
                unreadable += 1
    table = frame(events)
    table.attrs["unreadable"] = unreadable
    return table


def read_events(run_dir: str | Path) -> pd.DataFrame:
    """All events of a run: from events.parquet, or from events.jsonl while the run goes on or after a crash.

    Returns:
        One row an event, in the order recorded; no rows when there is neither file.
    """
    run_dir = Path(run_dir)
    parquet, jsonl = run_dir / PARQUET, run_dir / JSONL
    if parquet.exists():
        try:
            return _read_parquet(parquet)
        except (pa.ArrowException, OSError, ValueError):
            if not jsonl.exists():
                raise
    return _read_jsonl(jsonl) if jsonl.exists() else frame([])


def natural(name: str) -> list:
    """Sort key: home-2 before home-10."""
    return [int(part) if part.isdigit() else part.lower() for part in re.split(r"(\d+)", str(name))]

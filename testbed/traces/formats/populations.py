"""Tables in which every row is a home (or an area) of its own: populations to draw homes from.

Ookla open-data tiles (kbit/s, ms; CSV or Parquet) and Ofcom's panellist data (Mbit/s, ms, loss as a share).
Such a row has no time: its home's trace is constant.
"""

from __future__ import annotations

import numpy as np

from testbed.traces.formats import Format, Options
from testbed.traces.records import LinkRecords
from testbed.traces.source import Sample, Source
from testbed.traces.table_format import TableFormat
from testbed.traces.units_of import scaled

DAY_S = 86400.0


class Population(TableFormat):
    """A table format whose homes are drawn when there are more than `Options.most` of them."""

    def read(self, source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
        return drawn(super().read(source, options, records), options)


def drawn(records: LinkRecords, options: Options) -> LinkRecords:
    """At most `options.most` homes of a population, every k-th of them, each with a day's trace."""
    bare = [
        home
        for home, rows in records.homes.items()
        if rows.columns["down_bps"] is None or rows.columns["up_bps"] is None
    ]
    if bare:
        records.report.repair("homes without a download or an upload: left out", bare[0], count=len(bare))
        for home in bare:
            del records.homes[home]
    names = list(records.homes)
    if len(names) > options.most:
        kept = {names[i] for i in np.linspace(0, len(names) - 1, options.most).round().astype(int)}
        records.homes = {name: rows for name, rows in records.homes.items() if name in kept}
        records.report.note(f"a population of {len(names)}: {options.most} of them read, evenly spread")
    records.absolute, records.hold_s = False, DAY_S
    records.report.note("a population: each home's values are constant")
    return records


TILES = Population(
    "ookla-tiles",
    "Ookla open-data tiles",
    needs=("avg_d_kbps", "avg_u_kbps", "avg_lat_ms"),
    columns={
        "down_bps": (("avg_d_kbps",), "kbit/s"),
        "up_bps": (("avg_u_kbps",), "kbit/s"),
        "rtt_s": (("avg_lat_ms",), "ms"),
    },
    time=(),
    population="tile",
    drops=("quadkey", "tile", "tile_x", "tile_y", "geometry"),
)

OFCOM = Population(
    "ofcom-panel",
    "Ofcom's UK home broadband panel",
    needs=("Download - 24 (ave)", "Upload - 24 (ave)", "Latency - 24h"),
    columns={
        "down_bps": (("Download - 24 (ave)",), "Mbit/s"),
        "up_bps": (("Upload - 24 (ave)",), "Mbit/s"),
        "rtt_s": (("Latency - 24h",), "ms"),
        "jitter_s": (("Jitter-downstream - 24h",), "ms"),
        "loss": (("Packet Loss - 24h",), "ratio"),
    },
    time=(),
    homes=("technology",),
    population="home",
    drops=("unit_id", "isp", "region", "country"),
)


def detect_parquet(sample: Sample) -> float:
    return 1.0 if sample.head.startswith(b"PAR1") else 0.0


def read_parquet(source: Source, options: Options, records: LinkRecords | None = None) -> LinkRecords:
    """Tiles in Parquet, one row group at a time."""
    import pyarrow as pa
    from pyarrow import parquet

    report = source.report
    names = ["avg_d_kbps", "avg_u_kbps", "avg_lat_ms"]
    try:
        file = parquet.ParquetFile(source.path)
        missing = [n for n in names[:2] if n not in file.schema_arrow.names]
        if missing:
            raise report.error(
                f"is a Parquet file without {', '.join(missing)}; only Ookla's tiles are read",
                hint="export other tables to CSV",
            )
        present = [n for n in names if n in file.schema_arrow.names]
        total = file.metadata.num_rows
        step = max(1.0, total / options.most)
        records = LinkRecords(report, zero="failed", labels=dict(zip(("down_bps", "up_bps", "rtt_s"), names)))
        row, wanted = 0, 0.0
        for batch in file.iter_batches(batch_size=100_000, columns=present):
            columns = [np.asarray(batch.column(n).to_numpy(zero_copy_only=False), dtype=float) for n in present]
            while int(wanted) < row + len(batch):
                i = int(wanted) - row
                values = [scaled(float(c[i]), k) for c, k in zip(columns, (1e3, 1e3, 1e-3))]
                records.add(int(wanted) + 1, f"tile-{int(wanted) + 1:05d}", 0.0, *values)
                wanted += step
            row += len(batch)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise report.error(f"can't be read as Parquet ({str(error)[:100]})") from None
    if total > options.most:
        report.note(f"a population of {total}: {options.most} of them read, evenly spread")
    report.drop("quadkey", "tile")
    return drawn(records, options)


FORMATS = (
    TILES.format(),
    OFCOM.format(),
    Format("ookla-tiles-parquet", "links", "Ookla open-data tiles (Parquet)", detect_parquet, read_parquet),
)

import pytest

from testbed import units


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("rate", "20 Mbit/s", 20e6),
        ("rate", "20mbps", 20e6),
        ("rate", "1.5 Gbit/s", 1.5e9),
        ("rate", "2 MB/s", 16e6),
        ("duration", "15 ms", 0.015),
        ("duration", "2 min", 120),
        ("duration", "100us", 1e-4),
        ("duration", 0, 0),
        ("size", "64 MiB", 64 * 2**20),
        ("size", "2 GB", 2e9),
        ("speed", "10 GFLOP/s", 1e10),
    ],
)
def test_parse(kind, text, value):
    assert units.parse(kind, text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("rate", "20 Mb"),
        ("rate", "20"),
        ("rate", 20),
        ("rate", True),
        ("rate", "20 Mbit/s extra"),
        ("rate", "inf Mbit/s"),
        ("rate", "1e999 Mbit/s"),
        ("rate", "2 mB/s"),
        ("duration", "5 bit"),
        ("size", "5 MiBB"),
        ("speed", "5 GHz"),
        ("duration", ""),
        ("duration", None),
        ("size", "mb"),
    ],
)
def test_refused(kind, text):
    with pytest.raises(ValueError):
        units.parse(kind, text)


def test_printed_and_parsed_again():
    for kind, show, value in [
        ("rate", units.rate, 4.5e6),
        ("duration", units.duration, 0.0125),
        ("size", units.size, 3e9),
        ("speed", units.speed, 7.5e9),
    ]:
        assert units.parse(kind, show(value)) == pytest.approx(value)

"""testbed traces: the verbs, their help, and their answers to mistakes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from testbed.cli.traces import traces
from testbed.errors import InputError
from testbed.traces import read_availability, read_links

SHIPPED = Path(__file__).resolve().parents[2] / "traces"
LINKS = Path(__file__).parent / "traces" / "links"
VERBS = ["inspect", "validate", "convert", "plot", "sample", "splice", "scale", "formats", "generate"]


def run(*args, fails=False):
    result = CliRunner().invoke(traces, [str(a) for a in args], catch_exceptions=True)
    if result.exception and not isinstance(result.exception, (SystemExit, InputError)):
        raise result.exception
    assert (result.exit_code != 0) == fails, result.output
    return result


@pytest.mark.parametrize("verb", [[v] for v in VERBS] + [["generate", "links"], ["generate", "availability"]])
def test_help_shows_an_example(verb):
    text = run(*verb, "--help").output
    assert f"testbed traces {' '.join(verb)}" in text
    assert "Example" in text


def test_unknown_verb_names_the_nearest():
    result = run("inspekt", fails=True)
    assert result.exit_code == 2
    assert "did you mean 'inspect'" in result.output


def test_inspect():
    text = run("inspect", LINKS / "speedtest-cli.csv").output
    assert "speedtest-cli-csv" in text
    assert "repaired 2x: failed tests dropped" in text
    assert "IP Address" in " ".join(text.split())
    text = run("inspect", SHIPPED / "availability" / "evening.csv").output
    assert "24 devices" in text
    assert "by hour of the day" in text


def test_inspect_json():
    summary = json.loads(run("inspect", LINKS / "testbed.csv", "--json").output)
    assert (summary["homes"], summary["samples"], summary["span_s"]) == (2, 4, 180)
    assert summary["quantiles"]["download"][2] == pytest.approx(70e6)
    summary = json.loads(run("inspect", SHIPPED / "availability" / "office.csv", "--json").output)
    assert summary["devices"] == 24
    assert len(summary["by_hour"]) == 24


def test_inspect_with_a_map(tmp_path):
    (tmp_path / "x.txt").write_text("1709316000,50,8\n1709316060,40,7\n")
    text = run(
        "inspect", tmp_path / "x.txt", "--map", "time=1", "--map", "download=2:Mbps", "--map", "upload=3:Mbps"
    ).output
    assert "45 Mbit/s" in text


def test_validate():
    assert "valid" in run("validate", SHIPPED / "links" / "mixed.csv").output
    result = run("validate", LINKS / "speedtest-cli.csv", fails=True)
    assert result.exit_code == 2
    assert "needs 3 repairs" in result.output
    found = json.loads(run("validate", LINKS / "speedtest-cli.csv", "--json", fails=True).output)
    assert (found["valid"], found["failed_tests"]) == (False, 2)


def test_convert_leaves_personal_data_behind(tmp_path):
    for name in ("speedtest-cli.csv", "ookla-app.csv", "ookla.json", "tiles.csv", "unified_uploads.json"):
        out = tmp_path / "out.csv"
        result = run("convert", LINKS / name, "--out", out)
        text = out.read_text()
        for secret in ("192.0.2", "198.51.100", "53.8", "40.87763", "speedtest.net", "0313102310203123", "Bytemark"):
            assert secret not in text
        assert "left behind" in result.output
    assert len(read_links(out)) == 2


def test_convert_to_standard_output():
    text = run("convert", LINKS / "ookla.tsv", "--readable").stdout
    assert text.splitlines()[-1] == "0,ookla,93.16,18.72,9.41,0.33,1.5"


def test_strict_and_bad_options(tmp_path):
    for args, message in (
        (["inspect", LINKS / "speedtest-cli.csv", "--strict"], "--strict refuses"),
        (["inspect", LINKS / "ookla.json", "--format", "okla-json"], "did you mean 'ookla-json'"),
        (["inspect", LINKS / "ookla-dated.csv", "--tz", "Europe/Londn"], "did you mean 'Europe/London'"),
        (["inspect", LINKS / "ookla.json", "--align", "watch"], "--align: unknown alignment"),
        (["inspect", LINKS / "ookla.json", "--up-ratio", "0"], "expected more than 0"),
        (["inspect", tmp_path / "none.csv"], "no such file"),
        (["convert", LINKS / "ookla.json", "--out", tmp_path / "no" / "x.csv"], "can't be written"),
        (["generate", "links", "--preset", "fibr"], "did you mean 'fibre'"),
        (["generate", "links", "--preset", "cable=0"], "expected NAME=HOMES"),
        (["generate", "links", "--step", "2h", "--duration", "1h"], "at most the duration"),
        (["sample", LINKS / "testbed.csv", "--homes", "9"], "9 asked for; the file holds 2"),
        (["inspect", LINKS / "ookla.json", LINKS.parent / "availability" / "events.csv"], "name files of one kind"),
    ):
        result = run(*args, fails=True)
        assert isinstance(result.exception, InputError), args
        assert message in str(result.exception)
    result = run("inspect", LINKS / "ookla.json", "--rtt", "20", fails=True)
    assert "has no unit" in result.output


def test_sample_splice_scale(tmp_path):
    a, b, c = (tmp_path / f"{n}.csv" for n in "abc")
    run("sample", SHIPPED / "links" / "mixed.csv", "--homes", 6, "--by", "download", "--seed", 2, "--out", a)
    assert len(read_links(a)) == 6
    run("splice", a, a, "--from", "18h", "--to", "22h", "--out", b)
    assert {t.span_s for t in read_links(b).values()} == {8 * 3600}
    run("scale", b, "--upload", 0.5, "--rtt-by", 2, "--time", 0.25, "--out", c)
    before, after = read_links(b), read_links(c)
    name = next(iter(before))
    assert after[name].span_s == 2 * 3600
    assert after[name].at(0).up_bps == before[name].at(0).up_bps / 2


def test_generate_availability(tmp_path):
    run("generate", "availability", "--preset", "evening", "--devices", 5, "--days", 2, "--out", tmp_path / "e.csv")
    devices = read_availability(tmp_path / "e.csv", strict=True)
    assert len(devices) == 5
    assert devices["evening-01"].span_s == 2 * 86400


@pytest.mark.parametrize("file", ["links/mixed.csv", "links/lte.csv", "availability/evening.csv"])
def test_plot(tmp_path, file):
    from matplotlib import image

    result = run("plot", SHIPPED / file, "--out", tmp_path / "p")
    assert result.output.split()[:2] == [str(tmp_path / "p.png"), str(tmp_path / "p.html")]
    pixels = image.imread(tmp_path / "p.png")
    assert pixels.shape[:2] == (1312, 1800)
    assert len({tuple(p) for p in pixels.reshape(-1, pixels.shape[2])[::97]}) > 20
    page = (tmp_path / "p.html").read_text()
    assert "<script src=" not in page  # opens offline
    assert Path(file).name in page


@pytest.mark.parametrize(("ending", "magic"), [(".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_plot_for_papers(tmp_path, ending, magic):
    run("plot", LINKS / "ookla.jsonl", "--out", tmp_path / f"p{ending}", "--title", "a home")
    assert (tmp_path / f"p{ending}").read_bytes().startswith(magic)


def test_plots_of_odd_sets(tmp_path):
    never = "device,start_s,end_s\na,,\nb,5,10\n"
    (tmp_path / "never.csv").write_text(never)
    (tmp_path / "gaps.csv").write_text(
        "time_s,download_mbps\n" + "".join(f"{t},{5 + t % 3}\n" for t in [*range(50), *range(5000, 5050)])
    )
    for file in (tmp_path / "never.csv", tmp_path / "gaps.csv", LINKS / "tiles.csv", LINKS / "fast-cli.json"):
        run("plot", file, "--out", tmp_path / "x")


def test_formats_are_listed():
    text = run("formats").output
    assert "mahimahi" in text
    assert "flash" in text
    assert {"name", "kind", "title"} == set(json.loads(run("formats", "--json").output)[0])


def test_a_name_that_no_system_takes():
    result = run("validate", "x" * 400, fails=True)
    assert "File name too long" in str(result.exception)

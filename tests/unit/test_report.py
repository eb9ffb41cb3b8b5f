"""The report of made-up runs, good and bad; what it looks like was looked at by eye."""

import dataclasses
import json
import re
import statistics
from html.parser import HTMLParser

import pytest
from synthetic_run import Synthetic, write_run

from testbed.errors import InputError
from testbed.measurement.events import frame
from testbed.measurement.run_folder import RunFolder
from testbed.report import build_report, churn, gantt, intervals, page, pngs, series, tables, text
from testbed.report.run_data import load

SMALL = Synthetic(homes=3, steps=9, micro_batches=3, churn=((11.0, 1, 6.0),), checkpoint_every=3)


def _step(step, loss, start, attempt=1):
    return {
        "t": start + 1.0,
        "node": "server",
        "event": "step",
        "step": step,
        "loss": loss,
        "start": start,
        "end": start + 1.0,
        "samples": 8,
        "attempt": attempt,
        "devices": 3,
    }


class _Page(HTMLParser):
    """The report without its scripts: text, tags with attributes, and the ids and links in it."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.text, self.tags, self._inside = [], [], []
        self.feed(html)
        self.ids = {a["id"] for _, a in self.tags if "id" in a}
        self.targets = {a["href"][1:] for _, a in self.tags if a.get("href", "").startswith("#")}

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data):
        if not self._inside:
            self.text.append(data)

    def __str__(self):
        return re.sub(r"\s+", " ", " ".join(self.text))


def _report(path):
    html = build_report(path).read_text()
    return html, _Page(html)


def _page(path):
    """The page alone, without the PNGs, which take longer."""
    return _Page(page.html(load(path)))


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = write_run(tmp_path_factory.mktemp("runs"), SMALL)
    return path, *_report(path)


def test_the_report_has_every_part_and_a_way_to_each(good):
    _, _, shown = good
    parts = {
        "summary",
        "loss",
        "steps",
        "churn",
        "timeline",
        "links",
        "devices",
        "plan",
        "fidelity",
        "settings",
        "environment",
    }
    assert parts <= shown.ids
    assert shown.targets == parts  # the table of contents has all and nothing else
    assert [a["aria-label"] for _, a in shown.tags if a.get("class") == "plot"] == [
        figure.layout.meta["alt"] for figure in pngs.run_figures(load(good[0])).values()
    ]


def test_the_verdict_comes_first(good):
    _, html, shown = good
    assert str(shown).index("VALID") < str(shown).index("Summary")
    assert html.index('id="verdict"') < html.index('id="summary"')


def test_it_opens_offline(good):
    _, html, shown = good
    loaded = [a[key] for _, a in shown.tags for key in ("src", "href") if a.get(key, "#")[0] != "#"]
    assert loaded == ["data:,"]  # no icon, or browsers ask for one
    assert html.count("plotly.js v") == 1
    assert 'modeBarButtonsToRemove: ["sendChartToCloud"' in html  # no upload
    assert len(html) < 7e6


def test_the_figures_are_there_as_png(good):
    path, _, _ = good
    figures = {p.name: p.read_bytes() for p in path.glob("*.png")}
    assert set(figures) == {"loss.png", "step_times.png", "timeline.png", "step.png", "links.png", "bytes.png"}
    assert all(data.startswith(b"\x89PNG") and len(data) > 5000 for data in figures.values())


def test_numbers_in_the_page_are_those_of_the_run(good):
    path, _, shown = good
    data = load(path)
    assert f"{data.summary.steps} of 9" in str(shown)
    fidelity = json.loads((path / "fidelity.json").read_text())
    for check in fidelity["checks"]:
        assert check["title"] in str(shown)


def test_measured_compute_is_that_within_counted_steps(good):
    data = load(good[0])
    compute = tables.measured_compute_s(data)
    assert set(compute) == {"h1", "h2", "h3"}
    own = data.select("compute")
    own = own[own["node"] == "h1"]
    within = [
        own[(own["start"] >= s.start_s) & (own["start"] < s.end_s)]
        for s in data.steps[data.steps["counts"]].itertuples()
    ]
    seconds = [(c["end"] - c["start"]).sum() for c in within if len(c)]
    assert compute["h1"] == pytest.approx(statistics.median(seconds))


def test_a_second_report_replaces_the_first(good):
    path, html, _ = good
    assert _strip_ids(_report(path)[0]) == _strip_ids(html)


def _strip_ids(html):
    return re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "", html)


def test_an_invalid_run_is_loud_and_gives_its_reasons(tmp_path):
    path = write_run(tmp_path, Synthetic(homes=3, steps=3, micro_batches=2, churn=(), rate_error=0.2))
    html, shown = _report(path)
    assert '<div class="banner bad" id="verdict" role="alert"><h2>INVALID</h2>' in html
    verdict = RunFolder.open(path).verdict()
    assert verdict.reasons
    for reason in verdict.reasons:
        assert re.sub(r"\s+", " ", reason.text) in str(shown)
    assert "INVALID" in str(shown)[: str(shown).index("Summary")]


def test_a_run_without_probes_says_that_nobody_measured(tmp_path):
    small = Synthetic(homes=2, steps=2, micro_batches=2, churn=())
    shown = _page(write_run(tmp_path, small, keep=lambda e: e["event"] != "probe"))
    assert "INVALID: not measured" in str(shown)
    shown = _page(write_run(tmp_path, dataclasses.replace(small, probes=False)))
    assert "UNVERIFIED" in str(shown)
    assert "probes were switched off" in str(shown)


PARTS = {
    "cut short in a step": lambda e: e["t"] < 13.0,
    "no step": lambda e: e["event"] not in ("step", "recovery"),
    "steps and nothing else": lambda e: e["event"] == "step",
    "links and nothing else": lambda e: e["event"] == "link",
    "counters and nothing else": lambda e: e["event"] == "throughput",
    "churn and nothing else": lambda e: e["event"] in ("churn", "member", "recovery"),
    "nothing": lambda e: False,
    "only what was before the start": lambda e: e["t"] < 0,
}


@pytest.mark.parametrize("part", PARTS)
def test_partial_runs_have_reports(tmp_path, part):
    shown = _page(write_run(tmp_path, SMALL, keep=PARTS[part]))
    assert "of 9" in str(shown)
    assert shown.targets <= shown.ids
    assert {"summary", "fidelity", "settings", "environment"} <= shown.ids


@pytest.mark.parametrize("part", ["cut short in a step", "nothing"])
def test_a_crashed_run_gets_the_files_that_it_lacks(tmp_path, part):
    path = write_run(tmp_path, SMALL, status=None, keep=PARTS[part])
    _, shown = _report(path)
    assert "INTERRUPTED" in str(shown)
    assert (path / "fidelity.json").exists()
    assert (path / "timeline.json").exists()


def test_a_folder_with_nothing_but_lines_has_a_report(tmp_path):
    lines = [json.dumps(_step(0, 3.0, 0.0)), json.dumps(_step(1, 2.0, 1.0))[:-30]]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    shown = _page(tmp_path)
    assert "UNKNOWN" in str(shown)
    assert "no experiment.yaml" in str(shown)
    assert "Steps 1 " in str(shown)


def test_a_failure_is_told_with_its_error(tmp_path):
    path = write_run(tmp_path, SMALL, keep=lambda e: e["t"] < 3)
    RunFolder.open(path).write_manifest(status="failed", error="h2: out of memory <here>")
    assert "h2: out of memory <here>" in str(_page(path))


def test_no_run_no_report(tmp_path):
    with pytest.raises(InputError, match="no run folder"):
        build_report(tmp_path)


def test_one_step(tmp_path):
    shown = _page(write_run(tmp_path, Synthetic(homes=2, steps=1, micro_batches=2, churn=())))
    assert "1 of 1" in str(shown)
    assert "One step close up" in str(shown)


def test_losses_that_are_huge_or_no_numbers(tmp_path):
    s = Synthetic(homes=2, steps=2, micro_batches=2, churn=())
    extra = [_step(10 + i, loss, 100.0 + i) for i, loss in enumerate([1e30, -1.0, float("inf"), float("nan")])]
    path = write_run(tmp_path, s, extra=extra)
    html, shown = _report(path)
    assert "not a finite number" in html
    assert "Final loss NaN" in str(shown)
    assert (path / "loss.png").exists()


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 0.0, -3.5])
def test_a_loss_alone(tmp_path, loss):
    data = load(write_run(tmp_path, SMALL, keep=lambda e: False, extra=[_step(0, loss, 0.0)]))
    assert f"Final loss {text.loss(loss)}" in str(_Page(page.html(data)))
    assert "loss.png" in {p.name for p in pngs.write_pngs(data, tmp_path)}


def test_names_are_shown_as_they_are_and_never_run(tmp_path):
    names = ("<script>alert(1)</script>", "a & b \"q\" 'p'", "$x^2$_ünï\\frac")
    warning = {"t": 1.0, "node": "testbed", "event": "warning", "text": "<img src=x onerror=alert(2)>"}
    s = Synthetic(homes=3, steps=4, micro_batches=2, churn=((4.0, 1, 3.0),), names=names)
    path = write_run(tmp_path, s, name="<b>bold</b>", extra=[warning])
    html, shown = _report(path)
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert "<b>bold" not in html
    for name in (*names, "<b>bold</b>", warning["text"]):
        assert name in str(shown)


def test_repeated_attempts_are_shown_apart(good, tmp_path):
    path, html, shown = good
    data = load(path)
    redone = data.steps[~data.steps["counts"]]
    assert len(redone) > 0
    assert "lost in a rollback" in html
    assert f"{len(redone)} more were lost in rollbacks" in str(shown)


def _busy_run(tmp_path, count):
    """A run of `count` computations and transfers, on 50 devices."""
    extra = []
    for i in range(count // 2):
        node, start = f"h{i % 50}", (i // 50) * 0.1 + (i % 7) * 0.003
        extra.append(
            {
                "t": start + 0.08,
                "node": node,
                "event": "compute",
                "start": start,
                "end": start + 0.08,
                "label": f"F{i % 8}",
                "flops": 1e8,
                "busy": 0.01,
                "overrun": 0.0,
            }
        )
        extra.append(
            {
                "t": start + 0.09,
                "node": f"h{(i + 1) % 50}",
                "event": "transfer",
                "start": start + 0.05,
                "end": start + 0.09,
                "peer": node,
                "tag": "x",
                "bytes": 1000,
            }
        )
    return write_run(tmp_path, SMALL, keep=lambda e: False, extra=extra)


def test_many_events_stay_light(tmp_path):
    path = _busy_run(tmp_path, 50_000)
    data = load(path)
    assert len(data.events) == 50_000
    chart = gantt.gantt(data)
    assert len(chart.boxes) <= 12_000
    assert len(chart.rows) == gantt.MOST_DEVICES
    assert chart.left_out == 50 - gantt.MOST_DEVICES
    html = page.html(data)
    shown = _Page(html)
    assert len(html) < 8e6
    assert "18 further devices are not drawn" in str(shown)


def test_merged_intervals_cover_what_they_join(good):
    data = load(good[0])
    merged = intervals.merge(data.intervals, 0.05)
    for (node, state), group in merged.groupby(["node", "state"]):
        own = data.intervals[(data.intervals["node"] == node) & (data.intervals["state"] == state)]
        assert group["count"].sum() == len(own)
        assert group["start"].min() == own["start"].min()
        assert group["end"].max() == own["end"].max()
        assert (group["start"].to_numpy()[1:] - group["end"].to_numpy()[:-1] > 0.05).all()
        for moment in (own["start"] + own["end"]) / 2:
            assert ((group["start"] <= moment) & (group["end"] >= moment)).any()


def test_shares_of_time_count_overlaps_once(good):
    data = load(good[0])
    assert (data.shares <= data.end_s + 1e-9).all(axis=None)
    assert data.shares.loc["h2", "offline"] == pytest.approx(6.0)


def test_a_device_that_does_not_return_is_offline_to_the_end(tmp_path):
    leave = {"t": 2.0, "node": "h1", "event": "churn", "action": "leave", "mode": "kill"}
    back = {"t": 1.0, "node": "h2", "event": "churn", "action": "return", "mode": "kill"}
    end = {"t": 10.0, "node": "testbed", "event": "warning", "text": "end"}
    data = load(write_run(tmp_path, SMALL, keep=lambda e: False, extra=[leave, back, end]))
    offline = data.intervals[data.intervals["state"] == "offline"].set_index("node")
    assert offline.loc["h1", ["start", "end"]].tolist() == [2.0, 10.0]
    assert offline.loc["h2", ["start", "end"]].tolist() == [0.0, 1.0]


def test_the_step_shown_close_up_is_an_undisturbed_one(good):
    data = load(good[0])
    step = gantt.typical_step(data)
    away = data.churn.iloc[0]
    assert step["end_s"] < away["leave_s"] or step["start_s"] > away["return_s"]


def test_measured_rates_compare_to_set_rates(good):
    """Without headers, no window of a link that keeps to its rate is above the set rate."""
    data = load(good[0])
    for node in data.devices:
        for direction in ("up", "down"):
            t, rate = series.measured_rate(data, node, direction)
            set_t, set_rate = series.set_rate(data, node, direction)
            assert rate.max() <= set_rate.max() * 1.001
            assert t[-1] <= set_t[-1]
    assert any(series.measured_rate(data, n, "up")[1].max() > 0 for n in data.devices)


def test_churn_is_joined_with_what_followed(good):
    row = load(good[0]).churn.iloc[0]
    assert (row["node"], row["mode"], row["cause"]) == ("h2", "kill", "trace")
    assert row["detected_after_s"] == pytest.approx(2.4)
    assert row["return_s"] - row["leave_s"] == pytest.approx(6.0)
    assert row["recovery_s"] >= row["restored_s"] > 0
    assert row["extra_s"] > row["recovery_s"]


def test_a_negative_cost_of_a_loss_is_explained(good):
    data = load(good[0])
    faster = dataclasses.replace(data, churn=data.churn.assign(extra_s=-110.0))
    assert "-110 s (below 0: training was faster without the device that was lost)" in tables.churn(faster).rows[0]
    assert "training was faster" not in str(tables.churn(data))


def _churned(t, action, node="h1"):
    return {"t": t, "node": node, "event": "churn", "action": action, "mode": "kill", "cause": "trace", "late": 0.0}


def _recovery(kind, start, end, peer="h1", detected=1.0):
    return {
        "t": end,
        "node": "server",
        "event": "recovery",
        "kind": kind,
        "peer": peer,
        "detected": detected,
        "start": start,
        "restored": start + 0.5,
        "end": end,
        "step": 3,
        "lost_steps": 1,
    }


def test_each_absence_gets_its_own_recovery_and_its_own_join():
    events = [
        _churned(1.0, "leave"),
        _recovery("replan", 3.0, 4.0),
        _churned(5.0, "return"),
        _recovery("join", 6.0, 6.25),
        _churned(11.0, "leave"),
        _recovery("wait", 12.0, 14.0),
        _churned(13.0, "return"),
        _recovery("replan", 8.0, 9.0, peer="h2"),
    ]
    table = churn.churn_table(frame(events))
    assert table["node"].tolist() == ["h1", "h2", "h1"]
    assert table["recovery"].tolist() == ["replan", "replan", "wait"]
    assert table["recovery_s"].tolist() == [1.0, 1.0, 2.0]
    assert table["taken_in_s"].tolist()[0] == 0.25
    assert table["taken_in_s"].isna().tolist() == [False, True, True]
    assert table["mode"].tolist() == ["kill", None, "kill"]  # h2 was never away: the detector was wrong


def test_a_join_is_no_failure(tmp_path):
    extra = [_churned(5.0, "return"), _recovery("join", 6.0, 6.5, detected=0.0)]
    shown = load(write_run(tmp_path, SMALL, keep=lambda e: False, extra=extra)).summary
    assert (shown.detection_s, shown.recovery_s, shown.join_s) == ([], [], [0.5])


def test_who_computes_does_not_wait(tmp_path):
    extra = [
        {"t": 4.0, "node": "h1", "event": "wait", "start": 0.0, "end": 4.0, "tag": "control"},
        {"t": 3.0, "node": "h1", "event": "compute", "start": 1.0, "end": 3.0, "label": "F"},
    ]
    shares = load(write_run(tmp_path, SMALL, keep=lambda e: False, extra=extra)).shares
    assert shares.loc["h1", ["compute", "wait"]].tolist() == [2.0, 2.0]

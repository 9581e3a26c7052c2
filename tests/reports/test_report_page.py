"""The page as a document: structure, safety, and statements on what was not measured."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import random
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from page_reader import figures_of, read
from report_samples import (
    ABSENT,
    H200,
    MemorySource,
    built_task,
    calibration,
    measured_task,
    run_info,
    sample,
    task_key,
    trial_list,
)

import reports
from reports.quantity import duration, rate
from reports.source import load
from results_db.promotion_records import PromotionOutcome, PromotionRecord
from results_db.stored_records import (
    BaselineRecord,
    FinalRecord,
    SelectionRecord,
    TaskInfo,
    TrialRecord,
)
from search_spaces.errors import TunerError
from search_spaces.records import Status, Workload
from tuner.base.log_ratio import LogRatio

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}\x00\x1b[31m\udc80"
)


@pytest.fixture(scope="module")
def html() -> str:
    return reports.render(sample(4, built=2, cpu=1))


@pytest.fixture(scope="module")
def page(html):
    return read(html)


def _source(*infos: TaskInfo, trials: list[TrialRecord] | None = None) -> MemorySource:
    source = MemorySource([run_info(1)], {1: list(infos)})
    for info in infos:
        source.trial_lists[info.task_id] = list(trials or [])
    return source


def _task(**changes) -> TaskInfo:
    info = TaskInfo(1, 1, task_key("softmax", Workload.of(M=8, dtype="float32")), "done")
    return replace(info, **changes)


def test_nothing_is_loaded_from_anywhere(page):
    for element in page.walk():
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            assert not re.match(r"(?i)\s*(https?:)?//", element.attributes.get(name, ""))
        assert element.tag not in {"link", "iframe", "img", "object", "embed", "base"}
        assert not any(name.startswith("on") for name in element.attributes)
    targets = {element.attributes.get("id") for element in page.walk()}
    links = [a.attributes["href"] for a in page.all("a")]
    assert links
    assert all(link.startswith("#") and link[1:] in targets for link in links)


def test_only_the_pages_own_scripts_may_run(page):
    policy = page.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    scripts = [s for s in page.all("script") if "type" not in s.attributes]
    assert len(scripts) == 3
    assert len(re.findall(r"'sha256-", policy)) == 3
    assert "unsafe" not in policy.split("script-src")[1].split(";")[0]


def test_the_policy_names_the_scripts_as_they_stand(html):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1].replace("&#39;", "'")
    for script in re.findall(r"<script>(.*?)</script>", html, flags=re.S):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy.replace("&#43;", "+")


def test_plotly_is_there_once(html):
    assert html.count("* plotly.js (") == 1


def test_every_figure_has_a_caption_a_data_table_and_no_share_button(page):
    figures = page.all("figure")
    # The overview, static facts, depths, failures and noise, and four for each of the five timed
    # tasks: convergence, parameters, the map of two, finals.
    assert len(figures) == 5 + 4 * 5
    for figure in figures:
        assert len(figure.one("figcaption").text) > 20
        table = figure.one("table")
        assert table.all("th")
        assert table.all("td")
        figure.one("summary")
    for content in figures_of(page).values():
        assert content["data"]
        assert "config" not in content
    config = json.loads(page.one("script", id="themes").raw)["config"]
    assert config["showSendToCloud"] is False
    assert config["displaylogo"] is False
    assert config["plotlyServerURL"] == ""
    assert config["responsive"] is True


def test_landmarks_headings_and_labels(page):
    assert page.one("html").attributes["lang"] == "en"
    assert page.one("main").attributes["id"] == "main"
    assert page.one("a", class_="skip").attributes["href"] == "#main"
    for landmark in ("header", "nav", "footer", "h1"):
        page.one(landmark)
    ids = [e.attributes["id"] for e in page.walk() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    for section in page.all("section"):
        assert section.attributes["aria-labelledby"] in ids
    for button in page.all("button"):
        assert button.attributes["type"] == "button"
        assert button.text
    for region in page.all("div", role="region"):
        assert region.attributes["tabindex"] == "0"
        assert region.attributes.get("aria-label") or region.attributes["aria-labelledby"] in ids


def test_sortable_headings_are_buttons(page):
    headings = [th for th in page.all("th") if "aria-sort" in th.attributes]
    assert headings
    assert all(heading.one("button").text for heading in headings)
    table = page.one("table", id="leaderboard-table")
    rows = table.one("tbody").all("tr")
    width = len(table.one("thead").all("th"))
    assert all(len(row.all("th") + row.all("td")) == width for row in rows)


def test_the_summary_shows_outcomes_and_untimed_tasks(page):
    text = page.one("section", id="summary").text
    assert "NVIDIA H200: 4 workloads tuned." in text
    assert re.search(
        r"Against the fastest correct baseline of each: geomean 1\.\d\dx, 3 faster , 1 slower "
        r"\(worst: matmul M=512 [^)]*, slower than vendor \(0\.95x\)\)\.",
        text,
    )
    assert "Against the default config: geomean 1.34x, 2 faster, 1 same, 1 undecided." in text
    assert re.search(r"of the speed on the data sheet \(roofline\), median \d+% at most 81%", text)
    assert "2.00 TB/s" in text
    assert re.search(
        r"softmax for cuda:90: \d+ variants compiled, \d+ verified in Triton's interpreter, "
        r"none timed: the device is absent",
        text,
    )


def test_verdicts_are_words_with_icons(page):
    table = page.one("table", id="leaderboard-table")
    words = {
        span.text for span in table.all("span") if "verdict" in span.attributes.get("class", "")
    }
    assert {word[:8] for word in words} == {"▲ faster", "▼ slower"}
    assert "▼ slower 0.95x" in words, "1.31x the default, but slower than the vendor's"


def test_no_green_word_stands_beside_a_faster_baseline(page):
    tasks = [d.all("summary")[0] for d in page.all("details", class_="task")]
    assert len(tasks) == 7
    for task in tasks:
        (verdict,) = (span for span in task.all("span") if "verdict" in span.classes)
        assert ("slower" in verdict.classes) == ("slower than" in verdict.text)
    assert "1.31x the default, slower than vendor (0.95x)" in page.one("section", id="tasks").text


def test_the_map_has_a_cell_for_each_task_and_alternative(page):
    table = page.one("table", id="comparison-map")
    heads = [th.text for th in table.one("thead").all("th")]
    assert heads == ["Task", "default config", "eager", "compile", "vendor"]
    rows = table.one("tbody").all("tr")
    assert len(rows) == 5
    default, _, compiled, vendor = rows[1].all("td")
    assert (default.text, "ahead-3" in default.classes) == ("1.31x", True)
    assert compiled.text == "✕"
    assert vendor.classes == ["behind-2", "fastest"]
    link = vendor.one("a").attributes
    assert link["aria-label"].startswith("0.95x: slower than vendor, the fastest correct baseline")
    assert link["href"] == rows[1].one("th").one("a").attributes["href"]


def test_the_first_screen_lists_what_changed_since_the_previous_run():
    source = sample(3, built=0)
    now = source.task_lists[2]
    chosen = now[0].selection
    before = replace(
        chosen, winner={**chosen.winner, "num_warps": 16}, median_us=chosen.median_us / 1.5,
        default_us=chosen.default_us, log_ratio=LogRatio(0.7, 0.69, 0.71), verdict="faster",
    )  # fmt: skip
    gone = replace(now[2], task_id=9, key=task_key("conv", Workload.of(M=8)))
    source.task_lists[1] = [replace(now[0], task_id=7, selection=before), now[1], gone]
    summary = read(reports.render(source)).one("section", id="summary")
    items = [item.text for ul in summary.all("ul") for item in ul.all("li")]
    label = "matmul M=512 N=4096 K=4096 dtype=bfloat16 batch=1"
    assert items[0].startswith(
        f"▼ slower {label} 3.133 µs → 4.700 µs (+1.567 µs, +50.0%); config: "
    )
    assert "num_warps 16 → " in items[0]
    assert sorted(item.split()[1] for item in items[1:3]) == ["gone", "new"]
    assert items[3:] == ["git sha 01a2659 → 4815765"]
    assert "1 slower, 1 same, 2 tasks in one of them only." in summary.text


def test_a_task_without_a_baseline_is_judged_by_the_default_and_says_so():
    source = MemorySource([run_info(1)])
    info = measured_task(source, 1, "softmax", Workload.of(M=8), count=20)
    source.task_lists[1] = [replace(info, baselines=info.baselines[1:2])]
    page = read(reports.render(source))
    assert "1.30x the default, no correct baseline (" in page.one("section", id="summary").text
    row = page.one("table", id="leaderboard-table").one("tbody").one("tr")
    assert "▲ faster against the default: no baseline 1.30x" in row.text
    assert [td.text for td in page.one("table", id="comparison-map").all("td")] == ["1.30x", "✕"]


def test_what_is_undecided_is_listed_where_its_times_differ():
    source = sample(2, built=0)
    for times, listed in ((1.0, False), (1.02, True)):
        source.task_lists[1] = [
            replace(
                task, task_id=number,
                selection=replace(
                    task.selection, log_ratio=LogRatio(0.5, 0.1, 0.9),
                    median_us=task.selection.median_us * times, confirmed_at=None,
                ),
            )
            for number, task in enumerate(source.task_lists[2])
        ]  # fmt: skip
        text = read(reports.render(source)).one("section", id="summary").text
        assert "2 undecided." in text
        assert ("? undecided" in text) == listed


def test_the_first_run_of_a_campaign_says_so():
    source = MemorySource([run_info(1)])
    measured_task(source, 1, "softmax", Workload.of(M=8), count=20)
    text = read(reports.render(source)).one("section", id="summary").text
    assert "This is the first run of the campaign" in text
    assert re.search(
        r"softmax M=8: 1\.30x the default, .* \(60\.00 µs, .* of the roofline\)\.", text
    )


def test_configs_are_shown_by_what_differs_and_in_forms_to_paste(page):
    row = page.one("table", id="leaderboard-table").one("tbody").all("tr")[1]
    changes = [code.text for code in row.one("span", class_="config").all("code")]
    assert changes
    assert all(re.fullmatch(r"\w+ \w+ → \w+", change) for change in changes)
    json_form, python_form = (c.text for c in row.one("details").all("code"))
    assert json.loads(json_form)["num_warps"] in (4, 8)
    assert python_form.startswith('triton.Config({"BLOCK_M": ')


@pytest.mark.parametrize(
    ("value_us", "shown"),
    [(0.85, "850.0 ns"), (4.69, "4.690 µs"), (999.99, "1.000 ms"), (46_900.0, "46.90 ms"),
     (2e6, "2.000 s"), (None, "—"), (math.nan, "—")],
)  # fmt: skip
def test_times_have_the_unit_that_fits(value_us, shown):
    assert duration(value_us) == shown
    assert rate(7.94e9, "B") == "7.94 GB/s"
    assert rate(999.9e9, "FLOP") == "1.00 TFLOP/s"


def test_the_environment_shows_what_changed(page):
    text = page.one("section", id="environment").text
    assert "Changed since run 1" in text
    assert "git sha 01a2659 4815765" in text
    assert "power limit 700 W" in text
    assert "throttle reasons" in text


def test_an_unchanged_environment_is_stated():
    source = sample(1, built=0)
    source.run_list = [run_info(1), run_info(2)]
    source.task_lists[1] = source.task_lists[2]
    assert "No change of devices, toolchain, host" in read(reports.render(source, 2)).text


def test_equal_records_give_equal_bytes():
    assert reports.render(sample(2)) == reports.render(sample(2))


def test_an_empty_run_is_stated():
    page = read(reports.render(MemorySource([run_info(1)])))
    assert "This run has no tasks: nothing was tuned." in page.text
    assert not page.all("figure")


def test_a_task_without_trials_is_shown():
    page = read(reports.render(_source(_task(stage="search"))))
    assert "no trials" in page.one("table", id="leaderboard-table").text


def test_failures_only():
    trials = [
        TrialRecord(
            f"a{n}", n, {"BLOCK": n}, Status.COMPILE, message=f"line {n}: no", detail="boom"
        )
        for n in range(7)
    ]
    page = read(reports.render(_source(_task(), trials=trials)))
    assert "1 workload, none confirmed yet; 1 without a correct config." in page.text
    failures = page.one("section", id="failures")
    assert "7x line 0: no" in failures.text
    assert "boom" in failures.one("pre").text
    assert "✕ failed" in page.one("table", id="leaderboard-table").text


def test_build_only_run_shows_static_facts_and_no_times():
    source = MemorySource([run_info(1)])
    built_task(source, 1, "softmax", Workload.of(M=64, dtype="float16"))
    page = read(reports.render(source))
    section = page.one("section", id="compiled")
    assert "Registers" in section.text
    assert not page.all("table", id="leaderboard-table")
    assert "Nothing was timed" in page.one("section", id="summary").text
    assert "device time on" not in page.one("section", id="summary").text


def test_reused_build_only_results_do_not_count_as_timed():
    trials = [
        replace(trial, source="reused", median_us=None, samples_us=(), method="")
        for trial in trial_list(random.Random(1), 5.0, 20)
    ]
    info = _task(key=task_key("softmax", Workload.of(M=8), ABSENT))
    page = read(reports.render(_source(info, trials=trials)))
    assert "none timed: the device is absent" in page.text


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), -1.0, 0.0])
def test_unusable_times_are_left_out(bad):
    bad_ratio = None if bad is None else LogRatio(bad, bad, bad)
    trials = [
        TrialRecord(
            f"a{n}", n, {"B": n}, Status.CORRECT, median_us=bad, device_s=float("nan"), build_s=0.1,
            log_ratio=bad_ratio, samples_us=(float("nan"),) * 9,
        )
        for n in range(3)
    ]  # fmt: skip
    selection = SelectionRecord(
        {"B": 1}, ({"B": 1},), "faster", default={"B": 0}, median_us=bad, default_us=bad,
        log_ratio=bad_ratio, samples_us=(float("inf"),) * 20,
    )  # fmt: skip
    baselines = (BaselineRecord("eager", Status.CORRECT, bad, bad_ratio),)
    finals = tuple(
        FinalRecord(stage, {"B": 1}, Status.CORRECT, bad, bad_ratio, (float("nan"),))
        for stage in ("race", "confirm")
    )
    info = _task(selection=selection, baselines=baselines, finals=finals)
    info = replace(info, flops=float("nan"), bytes=float("inf"))
    html = reports.render(_source(info, trials=trials))
    page = read(html)
    text = page.one("main").text
    assert not re.search(r"\b(nan|inf)\b", text, flags=re.I)
    for script in page.all("script", type="application/json"):
        json.loads(script.raw, parse_constant=pytest.fail)


def test_hostile_text_stays_text():
    source = MemorySource([run_info(1, campaign=HOSTILE, host=HOSTILE, **{HOSTILE: HOSTILE})])
    device = replace(H200, name=HOSTILE, uuid=HOSTILE)
    info = measured_task(
        source, 1, HOSTILE, Workload.of(**{HOSTILE: HOSTILE}), device=device, count=30
    )
    trials = [
        replace(
            trial, config={**trial.config, HOSTILE: HOSTILE * (n % 2)},
            message=trial.message and HOSTILE, detail=HOSTILE, worker=HOSTILE,
            method=HOSTILE, clocks={HOSTILE: HOSTILE},
        )
        for n, trial in enumerate(source.trial_lists[info.task_id])
    ]  # fmt: skip
    source.trial_lists[info.task_id] = trials
    selection = replace(
        info.selection, winner=trials[0].config, default={HOSTILE: 1}, reason=HOSTILE,
        tie_set=({HOSTILE: HOSTILE},),
    )  # fmt: skip
    finals = tuple(
        replace(f, config={**f.config, HOSTILE: HOSTILE}, message=HOSTILE, method=HOSTILE)
        for f in info.finals
    )
    found = calibration(device, HOSTILE)
    rates = {HOSTILE: 1.0}
    source.calibration_list = [
        replace(
            found, calibration=replace(found.calibration, overhead_us=rates, flops_per_us=rates)
        )
    ]
    baselines = (
        replace(info.baselines[0], name=HOSTILE),
        replace(info.baselines[1], name=HOSTILE + "2", message=HOSTILE),
    )
    source.task_lists[1] = [
        replace(
            info,
            selection=selection,
            baselines=baselines,
            finals=finals,
            note=HOSTILE,
            stage=HOSTILE,
        )
    ]
    html = reports.render(source)
    html.encode("utf-8")
    page = read(html)
    assert len([s for s in page.all("script") if "type" not in s.attributes]) == 3
    assert not page.all("img")
    assert "{{7*7}}" in page.text
    assert "\x1b" not in page.one("main").text
    for script in page.all("script", type="application/json"):
        text = script.raw
        assert "<" not in text
        figure = json.loads(text)
        for note in figure.get("layout", {}).get("annotations", []) if "data" in figure else ():
            assert "<" not in note["text"]


def test_labels_distinguish_devices_of_one_workload():
    source = MemorySource([run_info(1)])
    for device in (H200, replace(H200, name="NVIDIA B200", target="cuda:100")):
        measured_task(source, 1, "softmax", Workload.of(M=8), device=device, count=20)
    measured_task(source, 1, "matmul", Workload.of(M=8), count=20)
    labels = [task.label for task in load(source).tasks]
    assert labels == ["matmul M=8", "softmax M=8 on NVIDIA B200", "softmax M=8 on NVIDIA H200"]
    assert [o.text for o in read(reports.render(source)).one("select", name="device").all("option")]


def test_equal_tasks_have_different_anchors():
    infos = [replace(_task(), task_id=n) for n in range(3)]
    page = read(reports.render(_source(*infos)))
    anchors = [d.attributes["id"] for d in page.all("details") if "id" in d.attributes]
    assert len(set(anchors)) == 3


def test_the_newest_run_is_the_default_and_unknown_ones_are_refused():
    source = sample(1)
    assert "run 2" in read(reports.render(source)).one("h1").text
    assert "run 1" in read(reports.render(source, 1)).one("h1").text
    with pytest.raises(TunerError, match="no run 9"):
        reports.render(source, 9)
    with pytest.raises(TunerError, match="no run to report on") as caught:
        reports.render(MemorySource())
    assert "tuner run" in caught.value.hint


def test_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "report.html"
    assert reports.write(sample(1), None, path) == path
    before = path.read_bytes()
    assert before.startswith(b"<!doctype html>")
    with pytest.raises(TunerError):
        reports.write(MemorySource(), None, path)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(TunerError, match="cannot be written") as caught:
        reports.write(sample(1), None, path / "under-a-file.html")
    assert caught.value.hint


def test_symbolic_links_in_the_folder_are_not_followed(tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "shared"
    victim.write_text("kept")
    folder.mkdir()
    path = folder / "report.html"
    for name in ("report.html", f".report.html.{os.getpid()}.tmp", ".report.html.tmp"):
        (folder / name).symlink_to(victim)
    reports.write(sample(1), None, path)
    assert victim.read_text() == "kept"
    assert not path.is_symlink()
    assert path.read_bytes().startswith(b"<!doctype html>")


def test_importing_reports_is_light():
    code = (
        "import sys, reports; heavy = {'plotly', 'pandas', 'jinja2', 'numpy', 'sqlalchemy'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_promotions_are_stated_with_the_reasons_of_refused_entries():
    source = sample(1, built=0)
    for outcome, reason in (("promoted", "faster"), ("refused", "slower <b>")):
        record = PromotionRecord(
            2, "tables/a.json", "matmul", "M=1", PromotionOutcome(outcome), reason, {}
        )
        source.promotion_list.append(record)
    notes = read(reports.render(source)).text
    assert "1 entry promoted to tables, 1 refused: slower <b>." in notes

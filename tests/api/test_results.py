"""What a result of `tune` carries, how a notebook shows it, and how long its database lives."""

from __future__ import annotations

import gc
import math
import os
import pickle
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from made_up_spaces import synthesize

import tuner
from results_db import Store
from results_db.stored_records import BaselineRecord, SelectionRecord, TaskKey
from search_spaces.records import Device, Status, Toolchain, Workload
from tuner.api.databases import CallDatabase
from tuner.api.stored_results import stored_results
from tuner.base.log_ratio import LogRatio

ROOT = Path(__file__).parents[2]


def test_a_result_carries_interval_reason_comparisons_and_device(recorded):
    found = tuner.tune(**recorded, budget=30)
    assert found.kernel
    assert found.workload == recorded["workload"]
    low, high = found.interval_us
    assert low <= found.median_us <= high
    assert found.verdict in ("faster", "same")
    low, high = found.speedup_interval
    assert low <= found.speedup <= high
    assert f"{found.speedup:.3f} times the winner's time" in found.reason
    assert "choice: " in found.reason
    assert found.ships in found.tie_set
    assert found.device_facts["name"] == found.device == "Synthetic Device"
    assert found.device_facts["target"] == "cuda:90"
    assert found.device_facts["power_limit_w"] == 700.0
    assert set(found.comparisons) == set(found.baselines)
    for name, each in found.comparisons.items():
        assert each.median_us == found.baselines[name]
        assert each.interval[0] <= each.ratio <= each.interval[1]
    assert {"search", "finals", "confirm"} <= set(found.stage_s)
    assert all(seconds >= 0 for seconds in found.stage_s.values())
    assert len(found.trials) == 30
    assert found.trials is found.trials


def test_the_text_of_a_result_is_short(recorded):
    found = tuner.tune(**recorded, budget=30)
    lines = repr(found).splitlines()
    assert len(lines) <= 2
    text = " ".join(lines)
    for part in (found.kernel, found.workload.key, found.verdict, f"{found.speedup:.2f}x default"):
        assert part in text
    for name, value in found.ships.items():
        assert f"{name}={value}" in text


class Cells(HTMLParser):
    """The text of the cells, and the tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.texts += [""] * (tag in ("th", "td", "caption"))

    def handle_data(self, data):
        self.texts[-1] += data


HOSTILE = '<script>alert("x")</script>\x1b[31m'


@pytest.fixture
def hostile(tmp_path):
    """A result whose names and messages are markup."""
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    ln = math.log(1.25)
    config = {"<b>": HOSTILE}
    chosen = SelectionRecord(
        winner=config,
        tie_set=(config,),
        verdict="faster",
        reason=HOSTILE,
        default={"<b>": "default"},
        median_us=80.0,
        default_us=100.0,
        log_ratio=LogRatio(ln, ln - 0.01, ln + 0.01),
        samples_us=(80.0,) * 20,
    )
    baselines = [
        BaselineRecord(HOSTILE, Status.CORRECT, 160.0, LogRatio(math.log(2), 0.69, 0.70)),
        BaselineRecord("broken", Status.COMPILE, message=HOSTILE),
    ]
    device = Device("cpu", HOSTILE, "cpu:x86-64", 2, power_limit_w=300.0)
    workload = Workload.of(mode=HOSTILE)
    with Store.open(url) as store:
        run = store.begin_run("tune", "spec", 0, {}, {})
        key = TaskKey(HOSTILE, "0", "2", workload, device, Toolchain(torch="2.11"))
        task = store.ensure_task(run.run_id, key, flops=1, bytes=1, tolerance=0.1)
        store.record_selection(task.task_id, chosen, baselines, [])
        store.set_stage(task.task_id, "done", HOSTILE)
        store.finish_run(run.run_id, "finished", {})
    return stored_results(CallDatabase(url), run.run_id, [workload])[0]


def test_the_table_of_a_notebook_escapes_all_text(hostile):
    page = hostile._repr_html_()
    cells = Cells(page)
    assert set(cells.tags) == {"table", "caption", "tbody", "tr", "th", "td"}
    text = " | ".join(cells.texts)
    for part in ('<script>alert("x")</script>', "80 µs", "1.25x", "2.00x", "faster", "300.0"):
        assert part in text
    assert "\x1b" not in page
    assert "\x1b" not in repr(hostile)


def test_the_table_names_no_colour_of_text_or_ground(hostile):
    page = hostile._repr_html_()
    assert "color:inherit" in page
    assert "background:transparent" in page
    assert "#" not in page.replace("&#x27;", "")


def test_a_result_writes_report_tables_and_figures(recorded, folder):
    found = tuner.tune(**recorded, budget=30)
    path = found.report(folder / "out" / "report.html")
    assert path.read_text().startswith("<!doctype html>")
    (table,) = found.export(folder / "tables")
    assert table.suffix == ".json"
    (trials,) = found.export(folder / "csv", format="csv")
    assert trials.suffix == ".csv"
    figures = found.figures()
    assert {"convergence", "parameters", "finals", "speedups"} <= set(figures)
    for figure in figures.values():
        assert figure.data
        assert figure.layout.height


def databases(place: Path) -> list[Path]:
    return sorted(place.rglob("tuner.db"))


def test_a_temporary_database_lives_as_long_as_its_result(recorded, scratch):
    first = tuner.tune(**recorded, budget=10)
    second = tuner.tune(**recorded, budget=10)
    assert len(databases(scratch)) == 2
    del first
    gc.collect()
    assert len(databases(scratch)) == 1
    assert len(second.trials) == 10
    del second
    gc.collect()
    assert not list(scratch.iterdir())


def test_a_database_of_the_caller_stays(recorded, folder, scratch):
    url = f"sqlite:///{folder / 'mine.db'}"
    found = tuner.tune(**recorded, budget=10, database=url)
    del found
    gc.collect()
    assert (folder / "mine.db").is_file()
    assert not databases(scratch)


def test_a_copy_of_a_result_reads_the_same_database(recorded):
    found = tuner.tune(**recorded, budget=10)
    copy = pickle.loads(pickle.dumps(found))
    assert copy == found
    assert len(copy.trials) == 10


SCRIPT = """
import sys
import tuner

space = tuner.RecordedSpace.load("space.json")
found = tuner.tune("recorded:space.json", space.workload, budget=10, pool="virtual")
heavy = sorted({"pandas", "plotly"} & set(sys.modules))
print(heavy, found.verdict)
"""


def test_a_script_leaves_no_files_and_imports_no_frames(tmp_path):
    synthesize(40, seed=5).save(tmp_path / "space.json")
    place = tmp_path / "scratch"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests/plugins", "TMPDIR": str(place)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[] ")
    assert not list(place.iterdir())

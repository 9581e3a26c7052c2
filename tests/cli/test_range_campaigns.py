"""A campaign of a range, from its lines in config.yaml to the table that serves every size."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import cpu_samples
import pytest

from results_db import Store
from results_db.stored_records import Source
from search_spaces.errors import TunerError
from search_spaces.size_range import Range
from tuner.campaign.range_workloads import list_workloads
from tuner.engine.range_search import FinishedSize
from tuner.runtime import read as read_table
from tuner.settings.sections import TaskConfig

#: Block 128 takes a fraction of the others' time or is within the gain, so noise changes nothing.
KERNEL = f"""
import time
{cpu_samples.KERNEL}

class Tiles(Double):
    name = "tiles"
    def space(self, workload):
        return SearchSpace([Choice("block", [8, 32, 128])], [], kernel=self.name)
    def default_config(self, workload, device): return {{"block": 32}}
    def baselines(self, workload): return {{}}
    def cpu_callable(self, workload, config):
        n, block = workload.size("n"), config["block"]
        us = 2000 / block + n * (0.01 + 4e-4 * block)
        def run(inputs):
            end = time.perf_counter() + us * 1e-6
            out = inputs["x"] + inputs["x"]
            while time.perf_counter() < end:
                pass
            return {{"out": out}}
        return run
"""
CONFIG = """
version: 1
kernels: [tiles.py:Tiles]
measure: {final_pairs: 8, warm_ms: 1}
pool: {builders: 1}
campaigns:
  main:
    budget: {trials: 4}
    tasks:
      - kernel: tiles
        workloads: [{}]
        ranges: {n: 16..1024}
        coverage: {held_out: 2, gain: 0.9}
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[Path, str]:
    """The folder of a finished run, and what the run printed."""
    folder = tmp_path_factory.mktemp("range")
    (folder / "tiles.py").write_text(KERNEL)
    (folder / "config.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "tuner", "run", "main"]
    environment = {**os.environ, "COLUMNS": "200"}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder, run.stdout + run.stderr


@pytest.fixture
def command(tuner, done, monkeypatch) -> Callable[..., str]:
    """What a later command in that folder prints."""
    monkeypatch.chdir(done[0])

    def call(*arguments: str) -> str:
        result = tuner(*arguments)
        assert result.code == 0, result.out + result.err
        return result.out + result.err

    return call


def table_of(folder: Path):
    (path,) = (folder / "results" / "tables").glob("tiles@*.json")
    return read_table(path)


def test_every_size_of_the_range_has_a_config(done):
    table = table_of(done[0])
    sizes = random.Random(0).sample(range(16, 1025), 200)
    hits = [table.find({"n": size}) for size in sizes]
    assert {hit.how for hit in hits} <= {"range", "exact"}
    assert 1 <= len({json.dumps(hit.config) for hit in hits}) <= 3
    # The entries part the range without a gap.
    parts = sorted((entry.serves["n"].low, entry.serves["n"].high) for entry in table.entries)
    assert (parts[0][0], parts[-1][1]) == (16, 1024)
    assert all(one[1] + 1 == other[0] for one, other in pairwise(parts))


def test_the_table_and_the_run_say_what_they_cover(done, command):
    folder, printed = done
    (coverage,) = table_of(folder).coverage
    assert (coverage["dim"], coverage["sizes"], coverage["served"]) == ("n", "16..1024", 1.0)
    assert coverage["measured"] >= 3
    assert 0 <= coverage["mean_loss"] <= coverage["worst_loss"]
    assert "serve 100.0% of the range; at 2 sizes held out they lose" in printed
    assert "sizes of ranges left out" in printed
    assert "serve 100.0% of the range" in command("check")


def test_a_range_is_promoted_where_a_new_pass_is_faster(done, command, tmp_path):
    folder, _ = done
    (path,) = (folder / "results" / "tables").glob("tiles@*.json")
    published = json.loads(path.read_text())
    for entry in published["entries"]:
        entry["config"] = {"block": 8}
    (tmp_path / path.name).write_text(json.dumps(published))
    before = read_table(tmp_path / path.name)
    promote = ("promote", "1", "--to", f"{tmp_path}", "--quiet")
    assert "another config was confirmed at this size" in command(*promote)
    assert read_table(tmp_path / path.name) == before
    said = command(*promote, "--remeasure")
    assert re.search(r"faster at [1-9]\d* of \d+ sizes compared, slower at none: n=\d+", said)
    assert "measured again" in said
    assert read_table(tmp_path / path.name).entries == table_of(folder).entries


def test_sizes_held_out_and_left_out_have_no_entry(done, command):
    folder, _ = done
    with Store.open(f"sqlite:///{folder}/results/tuner.db") as store:
        tasks = store.tasks(1)
    keys = {entry.key["n"] for entry in table_of(folder).entries}
    held = [task for task in tasks if task.place.held_out]
    left = [task for task in tasks if task.left_out]
    assert len(held) == 2
    assert left
    assert not keys & {task.key.workload["n"] for task in (*held, *left)}
    assert all(task.selection is not None for task in held)
    assert "left out" not in command("status")


def test_the_report_draws_the_range(done):
    page = (done[0] / "results" / "report.html").read_text()
    assert "Ranges of sizes" in page
    assert "tiles n=16..1024" in page


@pytest.mark.full
def test_a_second_run_takes_over_what_is_known(done, command):
    folder, _ = done
    before = table_of(folder)
    printed = command("run", "main")
    assert "serve 100.0% of the range" in printed
    after = table_of(folder)
    assert [e.config for e in after.entries] == [e.config for e in before.entries]
    with Store.open(f"sqlite:///{folder}/results/tuner.db") as store:
        trials = [t for task in store.tasks(2) for t in store.trials(task.task_id)]
    # A winner of the first run may be tried at a neighbour where it was not.
    reused = [trial for trial in trials if trial.source == Source.REUSED]
    assert len(reused) > len(trials) / 2


def test_a_resumed_run_is_told_what_is_known(done):
    folder, _ = done
    with Store.open(f"sqlite:///{folder}/results/tuner.db") as store:
        tasks = store.tasks(1)
        finished = [
            FinishedSize.of("k", task, store.trials(task.task_id))
            for task in tasks
            if not task.place.held_out
        ]
    known = {each.workload["n"]: each.outcome for each in finished}
    # A resumed run gets the outcomes of finished sizes as the first run had them.
    assert {size for size, outcome in known.items() if outcome is None} == {
        task.key.workload["n"] for task in tasks if task.left_out
    }


# -- what is wrong in config.yaml ------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ranges", "workloads", "said", "hint"),
    [
        ("{n: 1-8}", "[{}]", "'1-8' is no range; write 1..8192 or 64..8192 step 64", ""),
        ("{n: 9..3}", "[{}]", "9..3 is empty: 9 is above 3", ""),
        ("{n: {file: no.csv}}", "[{}]", "ranges.n: no.csv is not a file", "size,weight"),
        ("{n: {file: bad.csv}}", "[{}]", "ranges.n: bad.csv line 2", "one size and its weight"),
        ("{n: {file: empty.csv}}", "[{}]", "a range without a size", "one size and its weight"),
        ("{n: 1..8}", "[{n: 3}]", "n is given by a workload and by `ranges`", "leave n out"),
        ("{n: 1..8}", "all", "`ranges` needs `workloads`", ""),
        ("{}", "[{}]", "tiles", ""),
    ],
)
def test_a_wrong_range_is_named(folder, tuner, ranges, workloads, said, hint):
    (folder / "tiles.py").write_text(KERNEL)
    (folder / "bad.csv").write_text("size,weight\n3,x\n")
    (folder / "empty.csv").write_text("\n")
    text = CONFIG.replace("{n: 16..1024}", ranges).replace("[{}]", workloads)
    (folder / "config.yaml").write_text(text)
    result = tuner("run", "main", "--dry-run")
    assert result.code != 0
    assert said in result.error
    assert hint in result.hint or not hint


@pytest.mark.parametrize("first", ["1024.0,5", " -64,1", "5o12,4", "x,1e3"])
def test_a_first_line_with_a_number_is_no_heading(folder, tuner, first):
    (folder / "tiles.py").write_text(KERNEL)
    (folder / "seen.csv").write_text(f"{first}\n64,1\n")
    (folder / "config.yaml").write_text(CONFIG.replace("16..1024", "{file: seen.csv}"))
    result = tuner("run", "main", "--dry-run")
    assert result.code == 2
    assert "seen.csv line 1: " in result.error


def test_ranges_that_make_too_many_workloads_are_refused():
    weights = dict.fromkeys(range(1, 400), 1.0)
    ranges = {name: Range.of_sizes(weights) for name in "abcdefgh"}
    line = TaskConfig(kernel="tiles.py:tiles", workloads=[{}], ranges=ranges)
    with pytest.raises(TunerError, match="ranges make more than 100,000 workloads"):
        list_workloads(line, ())


def test_a_histogram_is_read(folder, tuner):
    (folder / "tiles.py").write_text(KERNEL)
    (folder / "seen.csv").write_text("size,launches\n16,900\n\n256,50\n16,10\n1000,40\n")
    (folder / "config.yaml").write_text(CONFIG.replace("16..1024", "{file: seen.csv}"))
    result = tuner("run", "main", "--dry-run", "--format", "json")
    assert result.code == 0, result.err
    sizes = {task["workload"] for task in json.loads(result.out)}
    assert sizes == {"n=16", "n=256", "n=1000"}


def test_listings_show_the_parts_of_a_range_and_programs_see_every_size(done, command, tuner):
    folder, said = done
    entries = table_of(folder).entries
    spans = [(dict(each.serves)["n"].low, dict(each.serves)["n"].high) for each in entries]
    for text in (said, command("best")):
        shown = re.findall(r"^tiles +n=(\d+) \((\d+)\.\.(\d+)\) ", text, re.MULTILINE)
        assert [(int(low), int(high)) for _, low, high in shown] == sorted(spans)
        assert all(int(low) <= int(size) <= int(high) for size, low, high in shown)
    page = (folder / "results" / "report.html").read_text()
    for name in ("comparison-map", "leaderboard-table"):
        board = page.partition(f'id="{name}"')[2].partition("</table>")[0]
        shown = re.findall(r"<small>n=\d+ \((\d+)\.\.(\d+)\)", board)
        assert [(int(low), int(high)) for low, high in shown] == sorted(spans)
    with Store.open(f"sqlite:///{folder}/results/tuner.db") as store:
        confirmed = [task for task in store.tasks(1) if task.selection and task.selection.median_us]
    sizes = {row["workload"] for row in json.loads(tuner("best", "--format", "json").out)}
    assert sizes == {task.key.workload.key for task in confirmed}
    one = command("best", "--workload", "n=16")
    assert "n=16 " in one
    assert "(16.." not in one


def test_the_report_and_the_table_state_the_same_loss(done):
    folder, _ = done
    (coverage,) = table_of(folder).coverage
    said = (folder / "results" / "report.html").read_text()
    found = re.search(r"at (\d+) sizes? held out .* at most ([\d.]+)% \(at (\d+)\)", said)
    assert found is not None
    assert int(found[1]) == coverage["held_out"]
    assert float(found[2]) == pytest.approx(100 * coverage["worst_loss"], abs=0.06)
    assert int(found[3]) == coverage["worst_at"]


def test_a_size_whose_configs_have_other_bits_is_no_failure_of_the_run(folder, tuner):
    rows = Path(__file__).parents[1] / "measure" / "row_kernels.py"
    (folder / "own.py").write_text(f"""{rows.read_text()}

class Mixed(RowSum):
    name = "mixed"
    def default_config(self, workload, device):
        return {{"way": "slow eighths" if 9 < workload.size("rows") < 64 else "whole"}}
""")
    (folder / "config.yaml").write_text("""
version: 1
kernels: [own.py:Mixed]
measure: {final_pairs: 8, warm_ms: 1, numerics: batch_invariant}
pool: {builders: 1}
campaigns:
  main:
    budget: {trials: 1}
    tasks:
      - kernel: mixed
        workloads: [{cols: 512}]
        ranges: {rows: 1..64}
        coverage: {held_out: 0, searches: 3}
""")
    result = tuner("run", "main")
    assert "rows have other bits" in result.out + result.err
    assert result.code == 0, result.out + result.err

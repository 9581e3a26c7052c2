"""The winners of a run after `tuner run`, and the best known results by `tuner best`."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
from cli_samples import BEST, fill, replay_campaign
from made_up_spaces import synthesize

from results_db.shipped import describe_ratio
from results_db.stored_records import BaselineRecord
from search_spaces.records import Status
from tuner.api.result import TuneResult
from tuner.base.log_ratio import LogRatio, join_ratio


@pytest.fixture
def campaign(folder) -> None:
    """A campaign `c` that replays a recording of 20 configs."""
    synthesize(20, seed=1).save(folder / "space.json.gz", columns=True)
    replay_campaign(folder, "space.json.gz")


def test_a_run_ends_with_its_winners_and_best_shows_them_later(tuner, campaign):
    result = tuner("run", "c", "--no-report")
    assert result.code == 0, result.err
    summary, *_, header, row, gain = result.out.splitlines()
    assert "1 with a winner" in summary
    assert header.split() == [
        *("kernel", "workload", "device", "time", "vs", "default", "vs", "baseline"),
        "config",
    ]
    (known,) = json.loads(tuner("best", "--format", "json").out)
    assert known["config"] == {name: int(v) for name, v in _words(row) if name in known["config"]}
    assert known["low_us"] <= known["median_us"] <= known["high_us"]
    assert f"{known['median_us']:.4g} us [" in row
    assert f"{describe_ratio(read_ratio(known, 'speedup'))} {known['verdict']} " in row
    assert describe_ratio(read_ratio(known, "over_baseline"), known["baseline"]) in row
    assert gain == f"1 of 1 faster than every alternative, up to {known['over_baseline']:.1f}x"
    assert (known["state"], known["why"], known["run"]) == ("current", "", 1)
    (task,) = json.loads(tuner("status", "--format", "json").out)
    assert (task["config"], task["best_us"]) == (known["config"], known["median_us"])
    assert (task["speedup"], task["over_baseline"]) == (known["speedup"], known["over_baseline"])
    assert f"{known['speedup']:.2f}x" in tuner("status").out


def read_ratio(row: dict, name: str) -> LogRatio | None:
    return join_ratio(*(row[f"{name}{end}"] for end in ("", "_low", "_high")))


def _words(line: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (word.partition("=") for word in line.split())]


def test_data_of_a_run_is_alone_on_stdout(tuner, campaign):
    result = tuner("run", "c", "--no-report", "--format", "json")
    (row,) = json.loads(result.out)
    assert row["ships"] in ("winner", "default")
    assert "1 with a winner" in result.err
    again = tuner("run", "c", "--no-report", "--format", "csv", "--quiet")
    (line,) = csv.DictReader(io.StringIO(again.out))
    assert json.loads(line["config"]) == row["config"]


def test_the_only_campaign_needs_no_name(tuner, folder, campaign):
    plan = json.loads(tuner("run", "--dry-run", "--format", "json").out)
    assert plan == json.loads(tuner("run", "c", "--dry-run", "--format", "json").out)
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text + text[text.index("  c:") :].replace("c:", "d:", 1))
    result = tuner("run", "--dry-run")
    assert (result.code, result.error) == (2, "run: no campaign is named")
    assert result.hint == "name one of config.yaml: c, d"


def test_a_narrowed_run_writes_no_tables_and_a_quiet_one_prints_none(tuner, folder, campaign):
    tables = folder / "results" / "tables"
    narrowed = tuner("run", "c", "--workload", "dtype=bfloat16", "--no-report")
    assert narrowed.code == 0, narrowed.err
    assert not list(tables.glob("*.json"))
    result = tuner("run", "c", "--no-report", "--quiet")
    assert "1 with a winner" in result.out
    assert "vs default" not in result.out
    assert len(list(tables.glob("*.json"))) == 1


def test_the_newest_result_of_the_present_code_is_the_best(tuner, folder, url, campaign):
    assert tuner("run", "c", "--no-report", "--quiet").code == 0
    (current,) = json.loads(tuner("best", "-f", "json").out)
    synthesize(24, seed=3).save(folder / "space.json.gz", columns=True)
    (old,) = json.loads(tuner("best", "-f", "json").out)
    assert (old["state"], old["run"]) == ("outdated", 1)
    assert "changed" in old["why"]
    assert "outdated" in tuner("best").out
    assert tuner("run", "c", "--no-report", "--quiet").code == 0
    (new,) = json.loads(tuner("best", "-f", "json").out)
    assert (new["state"], new["run"]) == ("current", 2)
    synthesize(20, seed=1).save(folder / "space.json.gz", columns=True)
    (back,) = json.loads(tuner("best", "-f", "json").out)
    assert (back["state"], back["run"]) == ("current", 1)
    assert back["config"] == current["config"]


def test_best_shows_each_of_several_kernels_of_one_name(tuner, folder, url, campaign):
    replay_campaign(folder, "space.json.gz", "other.json.gz")
    synthesize(24, seed=3).save(folder / "other.json.gz", columns=True)
    assert tuner("run", "c", "--no-report", "--quiet").code == 0
    rows = json.loads(tuner("best", "-f", "json").out)
    assert len(rows) == 2
    assert [row["state"] for row in rows] == ["current"] * 2
    assert len({row["kernel"] for row in rows}) == 2
    assert "other.json.gz" in rows[0]["kernel"] + rows[1]["kernel"]


def test_best_filters_by_kernel_workload_and_device(tuner, url):
    fill(url)
    fill(url, kernel="matmul")
    for device in ("cuda", "cuda:90", "h200"):
        rows = json.loads(tuner("best", "--device", device, "-f", "json").out)
        assert [row["kernel"] for row in rows] == ["matmul", "softmax"]
    (row,) = json.loads(
        tuner("best", "softmax", "--workload", "rows=8192 dtype=bfloat16", "-f", "json").out
    )
    assert (row["config"], row["state"]) == (BEST, "outdated")
    assert row["speedup"] == pytest.approx(1.6487, abs=1e-4)
    for arguments, words in (
        (["softmx"], "did you mean 'softmax'"),
        (["--device", "cpu"], "no confirmed result matches --device cpu"),
        (["--workload", "rows=1"], "no confirmed result matches --workload 'rows=1'"),
    ):
        result = tuner("best", *arguments)
        assert (result.code, result.out) == (1, "")
        (line,) = result.err.splitlines()
        assert words in line


def test_best_without_a_database_is_one_line(tuner):
    result = tuner("best")
    assert (result.code, result.out, len(result.err.splitlines())) == (1, "", 1)
    result = tuner("best", "--format", "json")
    assert (result.code, json.loads(result.out)) == (1, [])


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(1.5, "1.50x eager"), (1.0, "1.00x eager"), (0.992, "0.99x eager"),
     (0.989, "slower than eager (0.99x)"), (0.95, "slower than eager (0.95x)")],
)  # fmt: skip
def test_what_is_slower_than_a_baseline_is_said_in_words(ratio, said):
    assert describe_ratio(join_ratio(ratio, ratio / 1.001, ratio * 1.001), "eager") == said


def test_an_undecided_ratio_has_a_mark_and_its_interval_everywhere(tuner, url, folder):
    over = LogRatio(math.log(1.08), math.log(0.86), math.log(1.35))
    compiled = BaselineRecord("compile", Status.CORRECT, 75.6, over)
    said = "1.08x? compile [0.86, 1.35]"
    fill(url, baselines=(compiled,))
    for command in ("best", "status"):
        assert said in tuner(command).out
        (row,) = json.loads(tuner(command, "-f", "json").out)
        assert row["baseline_verdict"] == "undecided"
        assert (row["over_baseline_low"], row["over_baseline_high"]) == pytest.approx((0.86, 1.35))
    assert tuner("report", "-o", "page.html").code == 0
    assert said in (folder / "page.html").read_text()
    result = TuneResult(
        winner=BEST, tie_set=(BEST,), verdict="undecided", median_us=70.0, speedup=1.08,
        baselines={"compile": 75.6}, device="x", speedup_interval=(0.86, 1.35),
    )  # fmt: skip
    assert "1.08x? default [0.86, 1.35]" in repr(result)

"""`tuner history`: changes from run to run by a common anchor, steps, and annotated breaks."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cli_samples import BEST, DEVICE, HOSTILE, eager, fill

from search_spaces.records import Toolchain, Workload

TOOLCHAIN = Toolchain(python="3.12", torch="2.11", triton="3.6")
NEWER = replace(TOOLCHAIN, triton="3.8")


def rows_of(tuner, *arguments: object) -> list[dict]:
    """The rows, oldest first."""
    result = tuner("history", *arguments, "--format", "json")
    assert result.code == 0, result.err
    return json.loads(result.out)[::-1]


def test_a_run_is_compared_by_the_default_config_of_its_own_pass(tuner, url):
    fill(url, gain=0.5, median_us=70.0)
    fill(url, gain=0.45, median_us=66.0, best={**BEST, "num_warps": 8})  # at a higher clock
    first, second = rows_of(tuner, "softmax")
    assert (first["change"], first["verdict"]) == (None, None)
    assert second["change"] == pytest.approx(0.0513, abs=1e-4)
    assert second["change_low"] < second["change"] < second["change_high"]
    assert (second["verdict"], second["anchor"]) == ("slower", "default")
    assert second["normalised_us"] > first["normalised_us"]
    assert second["config_changes"] == "num_warps — → 8"
    assert "66.00 us" in tuner("history", "softmax").out


def test_a_change_within_the_noise_between_runs_is_undecided(tuner, url):
    fill(url, gain=0.5, half_width=0.0001)
    fill(url, gain=0.493, half_width=0.0001)
    assert rows_of(tuner, "softmax")[1]["verdict"] == "undecided"


def test_a_step_is_noted_where_it_begins(tuner, url):
    for run in range(8):
        fill(url, gain=0.5 - 0.03 * (run >= 5) + 0.001 * (run % 2))
    rows = rows_of(tuner, "softmax")
    assert [row["run"] for row in rows if row["step"] is not None] == [6]
    assert rows[5]["step"] == pytest.approx(0.03, abs=0.003)
    assert "step: slower since this run, +3." in rows[5]["note"]


def test_a_record_that_was_taken_over_is_no_new_measurement(tuner, url):
    for gain in (0.5, 0.501, 0.499):
        fill(url, gain=gain)
    for _ in range(2):
        fill(url, gain=0.47, confirmed_at=datetime(2026, 11, 20, tzinfo=UTC))
    rows = rows_of(tuner, "softmax")
    assert (rows[4]["note"], rows[4]["verdict"]) == ("same record", "same")
    assert not any(row["step"] for row in rows)
    fill(url, gain=0.4701)
    assert [row["run"] for row in rows_of(tuner, "softmax") if row["step"]] == [4]


@pytest.mark.parametrize(
    ("key", "noted"),
    [
        ({"toolchain": NEWER}, "triton 3.6 -> 3.8"),
        ({"toolchain": replace(TOOLCHAIN, driver="590")}, "driver none -> 590"),
        ({"device": replace(DEVICE, power_limit_w=600.0)}, "power_limit_w 0 -> 600"),
        ({"launch_hash": "f" * 16}, "kernel's code"),
        ({"protocol": "p2"}, "measuring protocol"),
    ],
)
def test_a_break_is_noted_and_is_no_step(tuner, url, key, noted):
    """The default config is another one behind it, and so is the anchor."""
    for run in range(8):
        fill(url, gain=0.5 + 0.001 * (run % 2) - 0.2 * (run >= 4), key=key if run >= 4 else {})
    rows = rows_of(tuner, "softmax")
    assert [row["run"] for row in rows if row["environment_changes"]] == [5]
    assert rows[4]["note"] == f"environment changed: {noted}"
    assert (rows[4]["change"], rows[4]["verdict"]) == (None, None)
    assert not any(row["step"] for row in rows)


@pytest.mark.parametrize(
    ("key", "anchor"),
    [
        ({"toolchain": NEWER}, "eager"),
        ({"launch_hash": "f" * 16}, "eager"),
        ({"toolchain": replace(NEWER, torch="2.12")}, None),
    ],
)
def test_across_a_break_a_baseline_is_the_anchor_unless_it_changed_too(tuner, url, key, anchor):
    fill(url, gain=0.5, baselines=eager(0.30))
    fill(url, gain=0.5, baselines=eager(0.25), key=key)
    row = rows_of(tuner, "softmax")[1]
    assert row["anchor"] == anchor
    assert row["verdict"] == ("slower" if anchor else None)
    if anchor:
        assert row["change"] == pytest.approx(0.0513, abs=1e-4)
        assert "compared by eager" in row["note"]


def test_what_is_shown_can_be_narrowed(tuner, url):
    small = Workload.of(rows=32, cols=8192, dtype="bfloat16")
    fill(url)
    fill(url, key={"workload": small})
    fill(url, campaign="weekly")
    assert [row["run"] for row in rows_of(tuner, "softmax", "--workload", "rows=32")] == [2]
    assert [row["run"] for row in rows_of(tuner, "softmax", "--campaign", "weekly")] == [3]
    assert {row["run"] for row in rows_of(tuner, "softmax", "--last", 1)} == {2, 3}
    tuner("tag", 3, "baseline")
    assert "baseline" in tuner("history", "softmax").out


def test_a_name_that_is_not_known_names_the_nearest(tuner, url):
    assert "no runs here" in tuner("history", "softmax").err
    fill(url)
    result = tuner("history", "softmx", "-f", "json")
    assert (result.code, json.loads(result.out)) == (1, [])
    assert "did you mean 'softmax'?" in result.err
    assert "--workload 'rows=7'" in tuner("history", "softmax", "--workload", "rows=7").err
    assert "--campaign x" in tuner("history", "softmax", "--campaign", "x").err


def test_hostile_text_is_inert(tuner, url):
    key = {"toolchain": replace(TOOLCHAIN, triton=HOSTILE)}
    fill(url, kernel=HOSTILE)
    fill(url, kernel=HOSTILE, key=key, campaign=HOSTILE)
    for style in ("table", "csv", "md"):
        out = tuner("history", HOSTILE, "-f", style).out
        assert "evil" in out
        assert not set(out) & set("\x1b\u202e")

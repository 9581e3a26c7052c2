"""A column of a listing is defined in one place, for people, programs and live pages."""

from __future__ import annotations

import csv
import io
import json

import pytest
from cli_samples import fill

from results_db import Store
from tuner.base.log_ratio import LogRatio
from tuner.serving.pages import Pages
from tuner.views import outcomes
from tuner.views.column import Column, Listing, estimate_columns


def test_a_column_of_one_list_is_in_every_format_and_on_the_live_page(tuner, url, monkeypatch):
    fill(url)
    twice = Column(
        "twice_us",
        lambda each: 2 * each.ships.median_us,
        lambda each: "[b]twice",
        heading="twofold_time",
        rank=3,
    )
    monkeypatch.setattr(outcomes, "TASKS", (*outcomes.TASKS, twice))
    head, row = tuner("status").out.splitlines()[-2:]
    assert head.endswith("twofold time")
    assert row.endswith("[b]twice")
    head, _, row = tuner("status", "-f", "md").out.splitlines()
    assert head.endswith("| twofold time |")
    assert row.endswith(r"| \[b\]twice |")
    assert json.loads(tuner("status", "-f", "json").out)[0]["twice_us"] == 140.0
    (row,) = csv.DictReader(io.StringIO(tuner("status", "-f", "csv").out))
    assert row["twice_us"] == "140.0"
    with Store.open(url) as store:
        page = Pages(store, lambda tasks: {}).render_run(1, "mark")
    assert "Twofold time" in page
    assert "[b]twice" in page


def test_programs_and_people_read_what_is_meant_for_them():
    columns = (
        Column("median_us"),
        Column("config", rank=1),
        Column("seed", heading=None),
        *estimate_columns(("change", "low", "high"), lambda row: row["ratio"], "+.1%"),
    )
    row = {"median_us": 46900.0, "config": {"b": 2, "a": 1}, "seed": 7, "ratio": LogRatio()}
    listing = Listing(columns, [row])
    (found,) = listing.rows()
    assert found == {
        "median_us": 46900.0, "config": {"b": 2, "a": 1}, "seed": 7,
        "change": 0.0, "low": 0.0, "high": 0.0,
    }  # fmt: skip
    assert list(found) == ["median_us", "config", "seed", "change", "low", "high"]
    assert listing.to_csv().splitlines()[1] == '46900.0,"{""a"":1,""b"":2}",7,0.0,0.0,0.0'
    assert [column.title for column in listing.for_people()] == ["median", "change", "config"]
    assert listing.to_markdown().endswith("| 46.90 ms | +0.0% \\[+0.0%, +0.0%\\] | b=2 a=1 |")


@pytest.mark.parametrize("word", ["faster", "slower"])
def test_the_column_verdict_has_the_tone_of_its_verdict(word):
    assert Column("verdict").find_tone({"verdict": word}) == word
    assert Column("state").find_tone({"state": word}) == ""

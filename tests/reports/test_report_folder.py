"""A folder with the report of every run, and its index."""

from __future__ import annotations

import os

from page_reader import read
from report_samples import MemorySource, measured_task, run_info, sample

from reports.folder import add_report, name_report, write_reports
from search_spaces.records import Workload

HOSTILE = "../</script><img src=x onerror=alert(1)>"


def _links(folder) -> set[str]:
    page = read((folder / "index.html").read_text(encoding="utf-8"))
    return {a.attributes["href"] for table in page.all("table") for a in table.all("a")}


def test_every_run_has_its_file_and_the_index_links_to_those_that_exist(tmp_path):
    source = sample(1, built=0)
    index = write_reports(source, tmp_path)
    names = {"nightly-1.html", "nightly-2.html"}
    assert {path.name for path in tmp_path.iterdir()} == {*names, "index.html"}
    assert _links(tmp_path) == names
    rows = read(index.read_text(encoding="utf-8")).one("tbody").all("tr")
    assert [row.text.split()[:2] for row in rows] == [["run", "2"], ["run", "1"]]
    assert "1.31x" in rows[0].text

    written = (tmp_path / "nightly-1.html").stat().st_mtime_ns
    (tmp_path / "nightly-2.html").unlink()
    write_reports(source, tmp_path)
    assert _links(tmp_path) == names
    assert (tmp_path / "nightly-1.html").stat().st_mtime_ns == written


def test_a_report_from_before_the_end_of_its_run_is_written_again(tmp_path):
    source = MemorySource([run_info(1), run_info(2, "running")])
    write_reports(source, tmp_path)
    for name in ("nightly-1.html", "nightly-2.html"):
        path = tmp_path / name
        path.write_text("old")
        os.utime(path, (0, 0) if name == "nightly-1.html" else None)
    write_reports(source, tmp_path)
    assert all(path.read_text() != "old" for path in tmp_path.iterdir())


def test_hostile_campaigns_stay_in_the_folder_and_are_text(tmp_path):
    source = MemorySource([run_info(1, campaign=HOSTILE), run_info(2, campaign="é")])
    measured_task(source, 1, HOSTILE, Workload.of(M=1), count=20)
    write_reports(source, tmp_path / "reports")
    assert [path.name for path in tmp_path.iterdir()] == ["reports"]
    page = read((tmp_path / "reports" / "index.html").read_text(encoding="utf-8"))
    assert HOSTILE in [heading.text for heading in page.all("h2")]
    assert not page.all("img")
    assert name_report(source.run(2)) == "run-2.html"
    assert _links(tmp_path / "reports") == {name_report(run) for run in source.runs()}


def test_a_run_adds_its_report_and_leaves_the_others(tmp_path):
    source = MemorySource([run_info(1), run_info(2)])
    write_reports(source, tmp_path)
    for name in ("nightly-1.html", "nightly-2.html", "index.html"):
        (tmp_path / name).write_text("old")
    add_report(source, 2, tmp_path)
    assert (tmp_path / "nightly-1.html").read_text() == "old"
    assert (tmp_path / "nightly-2.html").read_text() != "old"
    assert _links(tmp_path) == {"nightly-1.html", "nightly-2.html"}

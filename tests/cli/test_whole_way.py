"""From an empty folder to a table, through the command line alone: a real campaign on the CPU."""

from __future__ import annotations

import html
import json
from datetime import UTC, datetime

import pytest
from cpu_samples import KERNEL as DOUBLE

from results_db import Store

#: With a fourth way, which cannot be built.
KERNEL = DOUBLE.replace('"slow"]', '"slow", "broken"]').replace(
    "        def add(",
    '        if config["way"] == "broken":\n            config["M"]\n        def add(',
)
CONFIG = """version: 1
pool: {kind: local, builders: 1}
measure: {final_pairs: 8, warm_ms: 1}
campaigns:
  c:
    targets: [cpu]
    strategy: {name: exhaustive}
    schedule: {cron: "* * * * *"}
    tasks:
      - kernel: double.py:Double
"""


@pytest.mark.slow
def test_a_campaign_from_plan_to_table_and_again_by_schedule(tuner, folder):
    (folder / "double.py").write_text(KERNEL)
    (folder / "config.yaml").write_text(CONFIG)
    assert tuner("config", "check").code == 0
    assert tuner("spaces", "show", "double.py:Double", "--validate").code == 0

    result = tuner("run", "c")
    assert result.code == 0, result.err
    assert f"report: {folder / 'results' / 'report.html'}" in result.out
    assert "of 4" in result.err

    (task,) = json.loads(tuner("status", "--format", "json").out)
    assert (task["trials"], task["failed"], task["verdict"]) == (4, 2, "faster")
    # A failure names the file and line of the kernel's own code and keeps its traceback.
    page = html.unescape((folder / "results" / "report.html").read_text())
    line = KERNEL[: KERNEL.index('config["M"]')].count("\n") + 1
    assert f"KeyError: 'M' (double.py:{line})" in page
    assert f'double.py", line {line}, in cpu_callable' in page
    assert tuner("export", "-o", "tables").code == 0
    (table,) = (folder / "tables").iterdir()
    assert '"way":"add"' in table.read_text().replace(" ", "")
    assert tuner("check", "tables").code == 0
    assert tuner("check", "tables", "--run", "latest").code == 0
    (folder / "double.py").write_text(KERNEL + "# changed\n")
    table.write_text(table.read_text().replace('"add"', '"slow"'))
    stale = tuner("check", "tables", "--run", 1)
    assert stale.code == 1
    assert table.name in stale.out
    (folder / "double.py").write_text(KERNEL)

    fired = json.loads(tuner("schedule", "tick", "--quiet", "--format", "json").out)
    assert [(fire["schedule"], fire["state"]) for fire in fired] == [("c", "finished")]
    with Store.open(f"sqlite:///{folder / 'results' / 'tuner.db'}") as store:
        (fire,) = [each for each in store.fires() if each.state == "finished"]
        assert fire.run_id == fired[0]["run"]
        assert fire.instant <= datetime.now(UTC)
    again = json.loads(tuner("status", "--format", "json").out)
    assert (again[0]["trials"], again[0]["verdict"]) == (4, "faster")
    assert tuner("compare", 1, fired[0]["run"]).code in (0, 1)

"""`tuner check`: which tables a device uses, what they gain, what tuning costs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tables"))

from table_documents import document, written


def test_each_table_is_judged_for_a_device(folder, tuner):
    entries = [({"n": 64}, {"BLOCK": 1}), ({"n": 128}, {"BLOCK": 2})]
    written(folder / "tables/own@H200.json", document(entries, kernel="own"))
    other = document(entries, kernel="other", device="NVIDIA A100")
    other["device"]["target"] = "cuda:80"
    written(folder / "tables/other@A100.json", other)
    (folder / "tables" / "bad@H200.json").write_text("{")
    done = tuner("check", "tables", "--device", "NVIDIA H200", "--format", "json")
    assert done.code == 1
    rows = {row["kernel"]: row for row in json.loads(done.out)}
    assert rows["own"]["here"] in ("used", "stale")  # by the Triton that is installed
    assert (rows["own"]["entries"], rows["own"]["made on"]) == (2, "NVIDIA H200")
    assert rows["own"]["minutes to tune"] > 0
    assert rows["other"]["here"] == "another device"
    assert rows["bad@H200.json"]["here"] == "malformed"
    assert "tuner check --any-device --retune" in done.err


def test_a_folder_without_tables_and_lone_options_are_refused(folder, tuner):
    (folder / "tables").mkdir()
    assert tuner("check", "tables").error == "tables: there are no tables"
    assert "belong to --library" in tuner("check", "--tp", 2).error

"""The recorded spaces are those their configuration says: known sizes, with the default inside or,
where its way of loading was not recorded, its tile."""

from __future__ import annotations

import re

import yaml
from spaces_devices import H200
from spaces_interpret import ROOT

from search_spaces.records import Workload
from search_spaces.registry import load
from tuner.campaign.task_specs import closest

FILE = ROOT / "benchmarks" / "h200_spaces.yaml"


def test_the_spaces_have_the_sizes_the_file_says_and_hold_the_default_or_its_tile():
    text = FILE.read_text()
    said = [tuple(map(int, pair)) for pair in re.findall(r"# configs: (\d+) of (\d+)", text)]
    found = []
    for task in yaml.safe_load(text)["campaigns"]["spaces"]["tasks"]:
        kernel, (dims,) = load(task["kernel"]), task["workloads"]
        workload = Workload.from_mapping(dims)
        kernel.check_workload(workload)
        whole = kernel.space(workload).bind(workload, H200)
        bound = whole.restrict(task.get("space", {}))
        default = kernel.default_config(workload, H200)
        assert whole.why_not(default) is None, workload.key
        if not bound.feasible(default):
            # The kernel that loads by descriptors and the one in Gluon were not recorded.
            instead = closest(bound, default)
            assert task["space"]["loads"] == ["pointer"]
            assert instead["loads"] == "pointer"
            tile = "BLOCK_M", "BLOCK_N", "BLOCK_K"
            assert [instead[name] for name in tile] == [default[name] for name in tile]
        found.append((bound.size(), whole.size()))
    assert found == said
    assert len(found) >= 12
    total = sum(size for size, _ in found)
    assert f"the sum is {total}." in text
    assert total <= 4000

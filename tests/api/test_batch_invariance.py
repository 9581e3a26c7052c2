"""`tune(..., numerics="batch_invariant")`: one order of summation in a whole range."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from api_kernels import KERNEL, SETTINGS

import tuner

_KERNELS = Path(__file__).parents[1] / "measure" / "row_kernels.py"


def test_a_range_ships_configs_of_the_same_bits(folder):
    (folder / "own.py").write_text(_KERNELS.read_text())
    result = tuner.tune(
        "own.py:RowSum",
        {"rows": tuner.Range.of_sizes({1: 1, 24: 1, 200: 1}), "cols": 512},
        budget=6,
        numerics="batch_invariant",
        settings=SETTINGS,
    )
    trials = pd.concat([each.trials for each in result.results])
    refused = {*trials[trials.status == "correctness"]["config.way"]}
    assert {"by place", "by count"} <= refused
    shipped = {f"{entry.config['way']}".removeprefix("slow ") for entry in result.table.entries}
    assert len(shipped) == 1
    bits = {entry.provenance["row_bits"] for entry in result.table.entries}
    assert len(bits) == 1
    assert result.table.numerics == "batch_invariant"
    assert {entry.implementation for entry in result.table.entries} == {"tuned"}
    (path,) = result.export(folder / "out")
    assert path.name.endswith("_batch_invariant.json")
    assert tuner.runtime.read(path).numerics == "batch_invariant"


@pytest.mark.parametrize(
    ("dims", "numerics", "message"),
    [
        ({"n": 8}, "batch_invariant", "scale n=8: measure.numerics: batch_invariant needs a range"),
        ({"n": 8}, "exact", "measure.numerics"),
    ],
)
def test_what_cannot_be_promised_is_one_line(folder, dims, numerics, message):
    (folder / "own.py").write_text(KERNEL)
    with pytest.raises(tuner.TunerError, match=message):
        tuner.tune("own.py:Scale", dims, numerics=numerics)

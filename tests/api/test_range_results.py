"""`tuner.tune` with a `tuner.Range` in the place of a size."""

from __future__ import annotations

import pytest
from api_kernels import KERNEL, SETTINGS

import tuner


def test_a_range_gives_one_result_with_few_configs(folder):
    (folder / "own.py").write_text(KERNEL)
    result = tuner.tune(
        "own.py:Scale",
        {"n": tuner.Range.of_sizes({200: 1, 300: 5, 400: 1})},
        budget=4,
        settings={**SETTINGS},
    )
    assert isinstance(result, tuner.RangeResult)
    assert [each.workload["n"] for each in result.results] == [200, 300, 400]
    assert result.config(n=333) == {"way": "plain"}
    (coverage,) = result.coverage
    assert (coverage["sizes"], coverage["served"], coverage["configs"]) == ("200, 300, 400", 1.0, 1)
    assert coverage["worst_loss"] is None
    assert "no size was held out" in repr(result)
    assert "n=200..400  way=plain" in repr(result)
    assert ">n=200..400<" in result._repr_html_()
    (path,) = result.export(folder / "out")
    assert tuner.runtime.read(path).entries == result.table.entries
    with pytest.raises(tuner.TunerError, match="scale has no dim m"):
        result.config(m=3)


def test_a_list_of_ranges_is_refused(folder):
    (folder / "own.py").write_text(KERNEL)
    with pytest.raises(tuner.TunerError, match="a range cannot be tuned in a list"):
        tuner.tune("own.py:Scale", [{"n": tuner.Range(1, 8)}, {"n": 9}])

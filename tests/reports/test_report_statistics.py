"""Laws of the report's numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.quantity import (
    NOTHING,
    clean,
    factor,
    finite,
    plain,
    plot_text,
    seconds,
    size,
    span,
    times,
)
from reports.task_data import peak_of, roofline_us
from search_spaces.records import Device, Workload
from tuner.base.log_ratio import LogRatio, Verdict, pick_ratio

anything = st.one_of(st.none(), st.floats())


@given(anything, anything, anything, anything, anything)
def test_a_ratio_is_finite_or_absent(log_ratio, low, high, other, own):
    measured = None if log_ratio is None else LogRatio.of(log_ratio, low, high)
    over = pick_ratio(measured, other, own)
    if over is not None:
        assert math.isfinite(over.ratio)
        assert over.verdict() in Verdict
        assert over.interval is None or all(map(math.isfinite, over.interval))
    for text in (times(over), span(over)):
        assert "nan" not in text
        assert "inf" not in text


@given(anything, anything)
def test_a_ratio_without_a_measurement_is_that_of_the_times(other, own):
    over = pick_ratio(None, other, own)
    if over is not None:
        assert over.ratio == pytest.approx(other / own)
        assert over.interval is None
        assert over.verdict() == "undecided"


@given(anything)
def test_numbers_are_always_readable(value):
    for text in (plain(value), factor(value), seconds(finite(value)), size(finite(value))):
        assert text
        assert "nan" not in text
        assert "inf" not in text
        assert "e+" not in text


@given(st.text())
def test_plot_text_holds_no_tag_and_can_be_encoded(text):
    shown = plot_text(text, 20)
    assert "<" not in shown
    shown.encode()
    assert clean(clean(text)) == clean(text)


def test_words_for_quantities():
    assert plain(0.012345) == "0.0123"
    assert plain(12345.6) == "12,346"
    assert seconds(3725) == "1 h 02 min"
    assert seconds(62) == "1 min 02 s"
    assert size(232_448) == "227 KiB"
    assert span(LogRatio(*map(math.log, (1.2, 1.1, 1.3)))) == "1.10 to 1.30"
    assert span(LogRatio(*map(math.log, (1.2, 1.199, 1.201)))) == "1.199 to 1.201"
    assert factor(None) == NOTHING


def test_the_floor_is_what_the_data_sheet_allows():
    card = Device("cuda", "NVIDIA H200", "cuda:90")
    half = Workload.of(M=4096, dtype="bfloat16")
    assert roofline_us(card, half, {}, 2 * 4096.0**3, 1e6) == pytest.approx(138.9, rel=1e-3)
    assert roofline_us(card, half, {}, 1.0, 4.8e9) == pytest.approx(1000.0)
    single = Workload.of(dtype="float32")
    ieee, tf32, three = (
        roofline_us(card, single, {"precision": name}, 1e12, 0.0)
        for name in ("ieee", "tf32", "tf32x3")
    )
    assert ieee > three > tf32
    assert three == pytest.approx(3 * tf32)
    assert peak_of(Device("cuda", "NVIDIA GH200 480GB", "cuda:90")) is None
    recorded = peak_of(Device("simulated", "NVIDIA H200", "cuda:90"))
    assert recorded == peak_of(Device("cuda", "NVIDIA H200", "cuda:90"))
    assert recorded is not None
    assert peak_of(Device("simulated", "Simulated Device", "simulated")) is None

"""A GPU keeps its calibration between runs as long as a spot check agrees with it."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.records import Device, Toolchain
from workers import user_cache
from workers.job_records import Calibration
from workers.measure.timers.kept_calibration import (
    COPY_LIMIT,
    OVERHEAD_LIMIT_US,
    SpotCheck,
    kept_or_new,
    list_kept,
    place,
)

DEVICE = Device("cuda", "NVIDIA H200", "cuda:90", sm_count=132, uuid="GPU-1")
TOOLCHAIN = Toolchain(python="3.12.3", torch="2.11.0", driver="580.1")
SPOT = SpotCheck(overhead_us=2.5, copy_bytes_per_us=4.2e6)
FOUND = Calibration(0.032, {"events": 2.6, "graph": 3.5}, 38.3, 4.24e6, {"bfloat16": 6.9e8})


class Card:
    """A device that counts how often it is calibrated."""

    def __init__(self) -> None:
        self.calibrations = 0

    def start(
        self, spot: SpotCheck = SPOT, device: Device = DEVICE, tools: Toolchain = TOOLCHAIN
    ) -> Calibration:
        """The calibration that a new process of the card has."""
        return kept_or_new(device, tools, lambda: spot, self._calibrate)

    def _calibrate(self) -> Calibration:
        self.calibrations += 1
        return replace(FOUND, flush_us=FOUND.flush_us + self.calibrations)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(user_cache.VARIABLE, f"{tmp_path / 'cache'}")
    return tmp_path / "cache"


@pytest.fixture
def card(cache) -> Card:
    return Card()


def test_a_later_process_has_the_kept_calibration(card, cache):
    first = card.start()
    nearly = SpotCheck(
        SPOT.overhead_us + 0.9 * OVERHEAD_LIMIT_US,
        SPOT.copy_bytes_per_us * (1 - 0.9 * COPY_LIMIT),
    )
    assert card.start() == first
    now = replace(first, copy_bytes_per_us=nearly.copy_bytes_per_us)
    assert card.start(nearly) == now  # how fast the card is at present
    assert card.calibrations == 1
    assert list_kept() == [place(DEVICE, TOOLCHAIN)]
    assert place(DEVICE, TOOLCHAIN).is_relative_to(cache)


@pytest.mark.parametrize(
    "changed",
    [
        replace(SPOT, overhead_us=SPOT.overhead_us + 1.1 * OVERHEAD_LIMIT_US),
        replace(SPOT, overhead_us=SPOT.overhead_us - 1.1 * OVERHEAD_LIMIT_US),
        replace(SPOT, copy_bytes_per_us=SPOT.copy_bytes_per_us * (1 - 1.1 * COPY_LIMIT)),
        replace(SPOT, copy_bytes_per_us=SPOT.copy_bytes_per_us / (1 - 1.1 * COPY_LIMIT)),
    ],
)
def test_a_spot_check_that_disagrees_calibrates_anew(card, caplog, changed):
    caplog.set_level(logging.INFO)
    first = card.start()
    second = card.start(changed)
    assert second != first
    assert "NVIDIA H200 is calibrated anew" in caplog.text
    assert card.start(changed) == second
    assert card.calibrations == 2


@pytest.mark.parametrize(
    ("device", "tools"),
    [
        (replace(DEVICE, uuid="GPU-2"), TOOLCHAIN),
        (replace(DEVICE, power_limit_w=400.0), TOOLCHAIN),
        (DEVICE, replace(TOOLCHAIN, driver="590.0")),
        (DEVICE, replace(TOOLCHAIN, torch="2.13.0")),
    ],
)
def test_another_card_or_driver_or_toolchain_has_a_calibration_of_its_own(card, device, tools):
    card.start()
    card.start(device=device, tools=tools)
    assert card.calibrations == 2
    assert len(list_kept()) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_text("{"),
        lambda file: file.write_bytes(b"\xff\0"),
        lambda file: file.write_text("[]"),
        lambda file: file.write_text(file.read_text().replace('flush_us": ', 'flush_us": -')),
        lambda file: file.write_text(file.read_text().replace('"graph": 3.5', '"graph": NaN')),
        lambda file: file.write_text(json.dumps({"calibration": {}, "spot_check": {}})),
    ],
)
def test_a_damaged_file_is_ignored_with_one_line_and_replaced(card, caplog, damage):
    card.start()
    file = place(DEVICE, TOOLCHAIN)
    damage(file)
    second = card.start()
    assert card.calibrations == 2
    assert [record.message.count("is damaged and not used") for record in caplog.records] == [1]
    assert card.start() == second
    assert card.calibrations == 2


def test_a_folder_that_others_may_write_to_is_not_used(card, cache):
    card.start()
    os.chmod(cache / "calibrations", 0o777)
    card.start()
    assert card.calibrations == 2


def test_a_cache_that_cannot_be_made_costs_a_calibration_and_no_error(card, cache):
    cache.write_text("a file is in its place")
    assert card.start().quantum_us == FOUND.quantum_us
    card.start()
    assert card.calibrations == 2


def test_the_cache_is_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv(user_cache.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}")
    assert user_cache.place("headers") == tmp_path / "tuner" / "headers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", f"{tmp_path}")
    assert user_cache.place("headers") == tmp_path / ".cache" / "tuner" / "headers"

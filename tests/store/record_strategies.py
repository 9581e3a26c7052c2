"""Any records the store has to keep, as hypothesis draws them."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from results_db import TrialRecord
from results_db.stored_records import BaselineRecord, FinalRecord, SelectionRecord, Source
from search_spaces.records import Status
from tuner.base.log_ratio import LogRatio, Verdict
from workers.job_records import Calibration, Mode

lenient = settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
# Anything Python calls text: NUL, lone surrogates, markup, combining characters.
texts = st.text(st.characters(exclude_categories=()), max_size=30)
json_texts = st.text(max_size=20)
counts = st.integers(0, 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
maybe = st.none() | finite
maybe_ratio = st.none() | st.builds(LogRatio.of, finite, maybe, maybe)
samples = st.lists(finite | st.floats(width=32, allow_nan=False), max_size=20).map(tuple)
values = st.none() | st.booleans() | st.integers() | finite | json_texts
configs = st.dictionaries(json_texts, values, max_size=5)
instants = st.none() | st.datetimes(
    min_value=datetime(1970, 1, 2),
    max_value=datetime(2200, 1, 1),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45))]),
)
facts = st.none() | counts
trials = st.builds(
    TrialRecord,
    attempt_id=texts,
    number=counts,
    config=configs,
    status=st.sampled_from(Status),
    source=st.sampled_from(Source),
    message=texts,
    detail=texts,
    strategy=texts,
    copied_from=texts,
    binary_hash=texts,
    registers=facts,
    spill_bytes=facts,
    shared_bytes=facts,
    binary_bytes=facts,
    build_s=finite,
    device_s=finite,
    timing_s=finite,
    worker=texts,
    method=texts,
    cache=texts,
    incumbent=texts,
    median_us=maybe,
    log_ratio=maybe_ratio,
    error=maybe | st.just(math.inf),
    compiled=counts,
    verified_by=texts,
    deterministic=st.none() | st.booleans(),
    row_bits=st.none() | st.text("0123456789abcdef", max_size=16),
    samples_us=samples,
    incumbent_samples_us=samples,
    clocks=st.dictionaries(json_texts, finite | json_texts, max_size=3),
    finished_at=instants,
)
selections = st.builds(
    SelectionRecord,
    winner=configs,
    tie_set=st.lists(configs, max_size=3).map(tuple),
    verdict=st.sampled_from(Verdict),
    reason=texts,
    runner_up=st.none() | configs,
    default=st.none() | configs,
    median_us=maybe,
    default_us=maybe,
    log_ratio=maybe_ratio,
    samples_us=samples,
    compiled=counts,
    clocks=st.dictionaries(json_texts, finite | json_texts, max_size=3),
    confirmed_at=instants,
)
baselines = st.lists(
    st.builds(
        BaselineRecord,
        name=texts,
        status=st.sampled_from(Status),
        median_us=maybe,
        log_ratio=maybe_ratio,
        error=maybe,
        message=texts,
        samples_us=samples,
    ),
    max_size=3,
    unique_by=lambda baseline: baseline.name,
)
finals = st.lists(
    st.builds(
        FinalRecord,
        stage=st.sampled_from([Mode.RACE, Mode.CONFIRM]),
        config=configs,
        status=st.sampled_from(Status),
        median_us=maybe,
        log_ratio=maybe_ratio,
        samples_us=samples,
        dropped=st.booleans(),
        message=texts,
        method=texts,
        cache=texts,
    ),
    max_size=3,
)
rates = st.dictionaries(json_texts, finite, max_size=3)
calibrations = st.builds(
    Calibration,
    quantum_us=finite,
    overhead_us=rates,
    flush_us=finite,
    copy_bytes_per_us=finite,
    flops_per_us=rates,
)

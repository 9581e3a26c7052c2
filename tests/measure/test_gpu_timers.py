# mypy: ignore-errors
"""The GPU timers on a real GPU: events, graphs and CUPTI."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
from timer_contract import TimerContract
from triton.tools.tensor_descriptor import TensorDescriptor

from workers.job_records import Calibration
from workers.measure.timers.calibration import calibrate_gpu, spot_check_gpu
from workers.measure.timers.cupti import CuptiFailed
from workers.measure.timers.graph import CaptureFailed, GraphTimer
from workers.measure.timers.kept_calibration import difference
from workers.measure.timers.methods import METHODS, gpu_timer
from workers.measure.timers.timer import Candidate, WarmUp

pytestmark = [
    pytest.mark.gpu,
]

CYCLES_PER_US = 1980


@triton.jit
def _plus_one(X, Y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at, mask=at < n) + 1, mask=at < n)


@triton.jit
def _plus_one_by_descriptor(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK
    y.store([at, 0], x.load([at, 0]) + 1)


def _spin(us):
    return Candidate(f"spin {us}", lambda: torch.cuda._sleep(int(us * CYCLES_PER_US)))


@pytest.fixture(scope="module")
def flush():
    size = torch.cuda.get_device_properties().L2_cache_size
    return torch.empty(2 * size, dtype=torch.uint8, device="cuda")


@pytest.fixture(scope="module")
def calibration(flush):
    return calibrate_gpu(flush)


@pytest.fixture
def make(flush):
    return lambda method, known=None, cache="cold": gpu_timer(
        method, flush, WarmUp(), known or Calibration(), cache
    )


class _GpuContract(TimerContract):
    method = ""

    def timer(self, cache="warm"):
        return gpu_timer(self.method, None, WarmUp(), Calibration(), cache)

    def work(self):
        torch.cuda._sleep(2000)


class TestEventTimer(_GpuContract):
    method = "events"


class TestGraphTimer(_GpuContract):
    method = "graph"


class TestCuptiTimer(_GpuContract):
    method = "cupti"


def _median(timer, candidate, passes=20):
    timer.collect([candidate], [[0]])
    return statistics.median(timer.collect([candidate], [[0]] * passes)[0])


def test_a_gpu_is_calibrated_and_its_settings_are_preserved(calibration, flush):
    assert 0 < calibration.quantum_us < 2
    flushed = {"events", "graph"}
    assert set(calibration.overhead_us) == flushed | {f"{method} unflushed" for method in flushed}
    assert all(0 < overhead_us < 10 for overhead_us in calibration.overhead_us.values())
    assert calibration.flush_us > 0
    assert calibration.copy_bytes_per_us > 0
    rates = calibration.flops_per_us
    assert rates["bfloat16"] > rates["float32"] > 0
    assert rates["float16"] > rates["tf32"] > rates["float32"]
    state, precision = torch.cuda.get_rng_state(), torch.backends.cuda.matmul.fp32_precision
    calibrate_gpu(None)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert torch.backends.cuda.matmul.fp32_precision == precision


@pytest.mark.parametrize("method", METHODS)
def test_only_candidates_that_may_throttle_need_a_window(make, method):
    timer, spin = make(method), _spin(50)

    def compared_for(at_peak_us):
        candidate = replace(spin, at_peak_us=at_peak_us)
        return timer.warm(candidate, 20.0, steady=True)

    assert compared_for(0.1) == 0.0
    assert compared_for(40.0) > 0.0
    assert compared_for(None) > 0.0
    assert timer.warm(spin, 20.0) == 0.0


@pytest.mark.parametrize("cache", ["cold", "warm"])
@pytest.mark.parametrize("us", [2, 5, 20])
def test_corrected_events_and_graphs_agree_with_the_device(make, calibration, us, cache):
    measured = {m: _median(make(m, calibration, cache=cache), _spin(us)) for m in METHODS}
    assert measured["events"] == pytest.approx(measured["cupti"], abs=1.0)
    assert measured["graph"] == pytest.approx(measured["cupti"], abs=1.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_a_slow_launch_is_not_measured(make, method, cache):
    def slowly():
        end = time.perf_counter_ns() + 200_000
        while time.perf_counter_ns() < end:
            pass
        torch.cuda._sleep(5 * CYCLES_PER_US)

    timer = make(method, cache=cache)
    at_once, late = _spin(5), Candidate("late", slowly)
    timer.warm(at_once, 20.0)
    rows = timer.collect([at_once, late], [[0, 1], [1, 0]] * 20)
    assert 0.8 < statistics.median(rows[1]) / statistics.median(rows[0]) < 1.25


def test_triton_descriptors_and_eager_calls_can_be_captured(make):
    n = 1 << 20
    x, y = (torch.zeros(n, device="cuda") for _ in range(2))
    shape = [n // 32, 32]
    described = [TensorDescriptor(t.view(shape), shape, [32, 1], [128, 32]) for t in (x, y)]
    a = torch.randn(512, 512, device="cuda")
    kept = {}

    def keep(name):
        def keep_result(result):
            kept[name] = (y if result is None else result).clone()
            y.zero_()

        return keep_result

    def by_descriptor():
        _plus_one_by_descriptor[(n // 32 // 128,)](*described, BLOCK=128)

    field = [
        Candidate("triton", lambda: _plus_one[(n // 1024,)](x, y, n, BLOCK=1024) and None),
        Candidate("descriptor", by_descriptor),
        Candidate("eager", lambda: a @ a),
    ]
    field = [Candidate(c.name, c.run, after_checked_run=keep(c.name)) for c in field]
    for candidate in field:
        candidate.run()
    samples = make("graph").collect(field, [[0, 1, 2], [2, 1, 0]] * 30)
    assert [len(row) for row in samples] == [60, 60, 60]
    assert all(time_us > 0 for row in samples for time_us in row)
    assert torch.equal(kept["triton"], x + 1)
    assert torch.equal(kept["descriptor"], x + 1)
    assert torch.equal(kept["eager"], a @ a)


def test_the_checked_run_of_a_graph_is_a_timed_run(make):
    count, seen = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
    counter = Candidate(
        "counter", lambda: count.add_(1), after_checked_run=lambda _: seen.copy_(count)
    )
    counter.run()
    drawn = set()
    for _ in range(12):
        count.zero_()
        make("graph").collect([counter], [[0]] * 100)
        # Each graph begins with a run that is not timed.
        assert int(count) == 100 + -(-100 // GraphTimer._CHUNK)
        drawn.add(int(seen))
    assert 1 not in drawn
    assert drawn <= set(range(2, int(count) + 1))
    assert len(drawn) > 3


@pytest.mark.parametrize("method", ["graph", "events"])
def test_eager_results_do_not_accumulate(make, method):
    a = torch.randn(4 << 20, device="cuda")
    eager = Candidate("eager", lambda: a * 2 + 1)
    timer = make(method)
    timer.collect([eager], [[0]] * 10)
    before = torch.cuda.memory_reserved()
    for _ in range(5):
        timer.collect([eager], [[0]] * 10)
    assert torch.cuda.memory_reserved() <= before


def _waits():
    return float(torch.ones(8, device="cuda").sum())


def _waits_for_all():
    torch.cuda.synchronize()


def _raises():
    raise ValueError("no such tile")


def _hides_its_failure():
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return


@pytest.mark.parametrize("fault", [_waits, _waits_for_all, _raises, _hides_its_failure])
def test_a_candidate_that_cannot_be_captured_is_named_and_the_device_stays_usable(make, fault):
    good, bad = _spin(5), Candidate("bad one", fault)
    timer = make("graph")
    for _ in range(3):
        with pytest.raises(CaptureFailed, match="`bad one` cannot be captured") as raised:
            timer.collect([good, bad], [[0, 1]] * 3)
        assert raised.value.name == "bad one"
        assert raised.value.reason
    assert not torch.cuda.is_current_stream_capturing()
    assert float(torch.randn(1000, device="cuda").std()) > 0.5
    a = torch.randn(256, 256, device="cuda")
    assert torch.allclose((a @ a).cpu(), a.cpu() @ a.cpu(), atol=1e-2)
    # Memory of the default pool can be released, which an unfinished capture prevents.
    torch.cuda.empty_cache()
    block = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    del block
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved - (512 << 20)
    drawing = Candidate("draws", lambda: torch.randn(1000, device="cuda"))
    assert [len(row) for row in timer.collect([good, drawing], [[0, 1]] * 3)] == [3, 3]
    if fault is not _raises:
        samples = make("events").collect([good, bad], [[0, 1]] * 3)
        assert [len(row) for row in samples] == [3, 3]


def test_a_memset_inside_a_run_is_part_of_it(make):
    big = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")

    def run():
        torch.cuda._sleep(5 * CYCLES_PER_US)
        big.zero_()

    both = Candidate("both", run)
    by_record, by_events = (_median(make(method), both) for method in ("cupti", "events"))
    assert by_record == pytest.approx(by_events, rel=0.25)


def test_runs_with_different_activities_are_refused(make):
    calls = 0
    x = torch.zeros(1024, device="cuda")

    def run():
        nonlocal calls
        calls += 1
        x.add_(1)
        if calls == 7:
            x.sin_()

    with pytest.raises(CuptiFailed, match="the runs of `fickle` differ"):
        make("cupti").collect([Candidate("fickle", run)], [[0]] * 12)


@pytest.mark.parametrize("method", METHODS)
def test_a_flush_makes_reading_a_small_array_slower(make, method):
    x = torch.ones(2 << 20, device="cuda")
    out = torch.empty((), device="cuda")
    read = Candidate("read", lambda: torch.amax(x, out=out))
    # In turn and the least of several: clocks and neighbours move single medians.
    timers = {cache: make(method, cache=cache) for cache in ("cold", "warm")}
    rounds = [{cache: _median(timers[cache], read) for cache in timers} for _ in range(5)]
    assert min(each["cold"] for each in rounds) > min(each["warm"] for each in rounds)


def test_spot_checks_of_one_gpu_agree():
    first, *others = (spot_check_gpu() for _ in range(5))
    assert 0 < first.overhead_us < 10
    assert first.copy_bytes_per_us > 0
    assert [difference(first, other) for other in others] == [None] * len(others)

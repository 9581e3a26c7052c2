"""Stream-K products: whole tiles, shared tiles, and the sum of their parts."""

from __future__ import annotations

import pytest
from spaces_devices import H200, build, meta_tensors, spilled_bytes
from spaces_interpret import wrong

from search_spaces.errors import WorkloadError
from search_spaces.kernels.stream_k_matmul import kernel as stream_k
from search_spaces.records import Workload
from search_spaces.registry import load

pytestmark = pytest.mark.family

TILE = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP_M": 1, "num_warps": 2, "num_stages": 2}
LARGE = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8}
LARGE |= {"num_stages": 3, "resident": 1}


def workload(m: int, n: int, k: int, dtype: str = "float16") -> Workload:
    return Workload.of(M=m, N=n, K=k, dtype=dtype)


def test_shared_tiles_are_right_however_programs_divide_them():
    # 132 programs, and parts of less than a tile: fewer steps than programs, and more.
    jobs = []
    for m, n, k in ((5, 3, 40), (37, 21, 999)):
        config = {**TILE, "resident": 1, "waves": 0}
        jobs.append(("stream_k_matmul", workload(m, n, k), config))
    # Of 160 tiles of two steps, 28 are shared, or all; parts are longer than a tile then.
    for waves in (0, 1):
        config = {**TILE, "BLOCK_K": 64, "resident": 1, "waves": waves, "GROUP_M": 8}
        jobs.append(("stream_k_matmul", workload(150, 245, 99, "float32"), config))
    config = {**TILE, "BLOCK_K": 64, "resident": 1, "waves": 1, "loads": "descriptor"}
    jobs.append(("stream_k_matmul", workload(150, 248, 104, "bfloat16"), config))
    assert wrong(jobs) == []


def test_parts_of_all_steps_add_up_to_whole_tiles():
    """The arithmetic of both launches, for many numbers of tiles, steps and programs."""
    for tiles in (1, 5, 131, 132, 133, 300):
        for steps in (1, 2, 7, 64):
            for programs in (1, 3, 108, 132):
                for waves in (0, 1):
                    streamed = min(tiles % programs + waves * programs, tiles)
                    share = -(-streamed * steps // programs)
                    done = [0] * streamed
                    places = set()
                    for program in range(programs):
                        at = min(program * share, streamed * steps)
                        end = min(at + share, streamed * steps)
                        while at < end:
                            first = at % steps
                            last = min(first + end - at, steps)
                            done[at // steps] += last - first
                            if last - first < steps:
                                place = (program, first == 0)
                                assert place not in places
                                places.add(place)
                            at += last - first
                    assert done == [steps] * streamed
                    for tile in range(streamed):
                        begin = tile * steps
                        over = range(begin // share, (begin + steps - 1) // share + 1)
                        if len(over) > 1:
                            places -= {(each, each * share <= begin) for each in over}
                    assert not places


@pytest.mark.parametrize("loads", ["pointer", "descriptor"])
def test_tiles_use_tensor_cores_and_do_not_spill(loads):
    kernel, large = load("stream_k_matmul"), workload(1024, 5120, 25600, "bfloat16")
    for waves in (0, 1):
        config = {**LARGE, "loads": loads, "waves": waves}
        assert kernel.space(large).bind(large, H200).why_not(config) is None
        launches = kernel.launches(large, config, meta_tensors(kernel, large, config))
        built = [build(launch, H200) for launch in launches]
        assert "wgmma.mma_async" in built[0].asm["ptx"]
        assert [spilled_bytes(one) for one in built] == [0, 0]
        assert all(one.metadata.shared <= H200.shared_bytes for one in built)


def test_binaries_do_not_depend_on_the_number_of_multiprocessors(monkeypatch):
    kernel, large = load("stream_k_matmul"), workload(1024, 5120, 25600, "bfloat16")
    config = kernel.default_config(large, H200)
    found = []
    for multiprocessors in (108, 132, 144):
        monkeypatch.setattr(stream_k, "sm_count", lambda tensor, count=multiprocessors: count)
        launches = kernel.launches(large, config, meta_tensors(kernel, large, config))
        assert launches[0].grid == (multiprocessors,)
        found.append(tuple(build(launch, H200).hash for launch in launches))
    assert len(set(found)) == 1


def test_whole_waves_are_shared_only_where_tiles_leave_a_partial_one():
    kernel = load("stream_k_matmul")
    waves = {}
    for tiles in (100, 132, 200, 264):
        filled = workload(128 * tiles, 128, 4096, "bfloat16")
        config = {**LARGE, "GROUP_M": 1, "loads": "pointer", "waves": 1}
        waves[tiles] = kernel.space(filled).bind(filled, H200).feasible(config)
    assert waves == {100: False, 132: False, 200: True, 264: False}


def test_too_many_steps_are_refused():
    with pytest.raises(WorkloadError, match="K is 8388608, more than the 4194304"):
        load("stream_k_matmul").check_workload(workload(1, 1, 1 << 23))

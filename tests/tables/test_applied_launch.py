"""Launches of a library's kernels from tables, in Triton's interpreter, nothing in it changed."""

from __future__ import annotations

import threading

import pytest
from applied_library import KEYWORDS, MODULE, NAME, OURS, key
from table_documents import document, written
from table_library import count_tensors

import tuner
from tuner import runtime
from tuner.runtime import call_key

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

#: A config that no library lists; blocks of 32 fit all sizes here.
CONFIG = {"BLOCK": 32, "num_warps": 1}


@pytest.fixture(params=list(KEYWORDS))
def name(request, applied_library):
    if request.param == "ours":
        load_again(applied_library, "ours")
    return request.param


def load_again(library, name):
    """A fresh import of the library's module, with our decorator where the kernel has one."""
    return library.load(MODULE + OURS if name == "ours" else MODULE)


def counts_of(application):
    """Hits and misses of its only kernel."""
    (use,) = application.kernels
    return use.hits, use.misses


def test_a_hit_launches_the_config_of_the_table_in_every_stacking(applied_library, name, caplog):
    path = applied_library.table(name, (key(), CONFIG))
    own = applied_library.launch(name, 200)
    benched = len(load_again(applied_library, name).BENCHED)
    with tuner.applied(path) as application:
        for _ in range(3):
            assert applied_library.launch(name) == 32
        assert len(applied_library.kernel("plain").fn.__globals__["BENCHED"]) == benched
        assert applied_library.launch(name, 200) == own
        (use,) = application.kernels
        assert (use.kernel, use.state, use.hits, use.misses) == (f"{NAME}:{name}", "applied", 3, 1)
    assert applied_library.launch(name) == own
    assert application.kernels == (use,)
    ours = [record for record in caplog.records if f"{NAME}:{name}" in record.getMessage()]
    assert len(ours) == 1
    assert "has no config for n=200 dtype=float32" in ours[0].getMessage()


def test_launches_keep_no_tensor(applied_library, name):
    with tuner.applied(applied_library.table(name, (key(), CONFIG), (key(50), CONFIG))):
        applied_library.launch(name, 200)
        before = count_tensors()
        for n in (100, 50, 200, 100):
            applied_library.launch(name, n)
        assert count_tensors() == before


def test_the_dtypes_of_all_tensors_belong_to_the_key(applied_library, name):
    own = applied_library.launch(name, 200)
    mixed = {"x_ptr": "float32", "y_ptr": "float32", "bias_ptr": "float16"}
    for entry, right, other in (
        ((key(), CONFIG), torch.float32, torch.float16),
        ((key(), CONFIG, mixed), torch.float16, torch.float32),
    ):
        with tuner.applied(applied_library.table(name, entry)):
            for _ in range(2):
                assert applied_library.launch(name, bias=torch.ones(100, dtype=right)) == 32
                assert applied_library.launch(name, bias=torch.ones(100, dtype=other)) == own
                assert applied_library.launch(name) == (own if len(entry) == 3 else 32)


def test_a_miss_is_the_librarys_own_launch(applied_library, name):
    """The same configs are tried, the same one is launched, and the kernel is the same object."""
    seen = []
    for tables in ([], [applied_library.table(name, (key(7), CONFIG))]):
        module = load_again(applied_library, name)
        with tuner.applied(tables):
            blocks = [applied_library.launch(name, n) for n in (100, 200, 100)]
        kernel = applied_library.kernel(name)
        tuner_of = kernel if hasattr(kernel, "cache") else getattr(kernel, "fn", None)
        cache = {k: str(v) for k, v in getattr(tuner_of, "cache", {}).items()}
        seen.append((blocks, len(module.BENCHED), module.HOOKED, cache))
    assert seen[0] == seen[1]


def test_a_miss_tunes_nothing_where_it_must_not(applied_library, name, monkeypatch, caplog):
    """The first config of the library's autotuner is launched, or what the caller says."""
    monkeypatch.setenv("TUNER_MISS", "default")
    module = load_again(applied_library, name)
    own = getattr(applied_library.kernel(name), "configs", None)
    with tuner.applied(applied_library.table(name, (key(7), CONFIG))) as application:
        blocks = [applied_library.launch(name, n) for n in (100, 200, 100)]
        assert counts_of(application) == (0, 3)
        assert applied_library.launch(name, 7) == 32
    assert module.BENCHED == []
    assert len(set(blocks)) == 1
    if own:
        assert blocks[0] == own[0].kwargs["BLOCK"]
        assert "launching the default config" in caplog.text


def test_a_config_that_fails_gives_way_to_the_default_config(applied_library, monkeypatch):
    monkeypatch.setenv("TUNER_MISS", "default")
    module = applied_library.load()
    with tuner.applied(applied_library.table("tuned", (key(), {"BLOCK": 100}))) as application:
        assert applied_library.launch("tuned") == applied_library.launch("tuned") == 64
        assert counts_of(application) == (0, 2)
    assert module.BENCHED == []


def test_a_kernel_without_tables_keeps_its_class_and_attributes(applied_library, name):
    kernel = applied_library.kernel(name)
    plain, attributes = type(kernel), set(vars(kernel))
    with tuner.applied(applied_library.table(name, (key(), CONFIG))):
        assert isinstance(kernel, plain)
        assert type(kernel).__name__ == plain.__name__
        assert runtime.kernel_hash(kernel) == runtime.kernel_hash(applied_library.kernel("plain"))
        applied_library.launch(name)
    assert type(kernel) is plain
    assert set(vars(kernel)) - attributes <= {"best_config", "nargs", "_tuner_applied"}


def test_a_tuned_kernel_says_which_config_it_launched(applied_library):
    with tuner.applied(applied_library.table("tuned", (key(), CONFIG))):
        applied_library.launch("tuned")
        assert applied_library.kernel("tuned").best_config.all_kwargs()["BLOCK"] == 32
        assert applied_library.launch("tuned", 200) == 64
        assert applied_library.kernel("tuned").best_config.kwargs == {"BLOCK": 64}


def test_heuristics_see_the_config_of_the_table(applied_library):
    """EVEN is computed of the block: with the caller's block of 64 it would be wrong for 128."""
    path = applied_library.table("computed", (key(192), {"BLOCK": 128}))
    with tuner.applied(path) as application:
        assert applied_library.launch("computed", 192) == 128
        assert application.kernels[0].hits == 1


def test_arguments_by_position_are_replaced_too(applied_library):
    x = torch.ones(100)
    blocks = []

    def grid(meta):
        blocks.append(meta["BLOCK"])
        return (triton.cdiv(100, meta["BLOCK"]),)

    with tuner.applied(applied_library.table("plain", (key(), CONFIG))):
        for _ in range(2):
            y = torch.empty_like(x)
            applied_library.kernel("plain")[grid](x, y, 100, None, 3, 64, False)
            assert torch.equal(y, x * 3)
    assert blocks == [32, 32]


def test_forms_of_call_and_optional_tensors_do_not_mix(applied_library):
    """Launches that differ in what they pass alternate; each finds the entry of its own."""
    kernel = applied_library.kernel("tuned")
    bias = torch.ones(100)
    without = call_key({**_arguments(100), "bias_ptr": None}, len, ["BLOCK"])
    with_bias = call_key({**_arguments(100), "bias_ptr": bias}, len, ["BLOCK"])
    path = applied_library.table(
        "tuned", (without, {"BLOCK": 32}), (with_bias, {"BLOCK": 16}), rule="exact"
    )
    with tuner.applied(path) as application:
        for _ in range(3):
            assert applied_library.launch("tuned") == 32
            assert applied_library.launch("tuned", bias=bias) == 16
            x = torch.ones(100)
            y = torch.empty_like(x)
            kernel[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](
                x_ptr=x, y_ptr=y, n=100, bias_ptr=bias, FACTOR=3, EVEN=False
            )
            assert kernel.best_config.kwargs == {"BLOCK": 16}
            assert torch.equal(y, x * 6)
        assert counts_of(application) == (9, 0)


def test_a_decorator_elsewhere_around_ours_launches_as_before(applied_library):
    """It runs the kernel below, whose name alone is launched from the table that is applied."""
    module = load_again(applied_library, "ours")
    around = triton.heuristics({"FACTOR": lambda args: 3})(module.ours)
    x, y = torch.ones(100), torch.empty(100)
    with tuner.applied(applied_library.table("ours", (key(), CONFIG))) as application:
        for _ in range(2):
            around[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, y, 100, None, EVEN=False)
            assert module.ours.best_config is module.ours.configs[0]
        assert counts_of(application) == (0, 0)
    assert torch.equal(y, x * 3)


def _arguments(n, dtype=torch.float32):
    x = torch.empty(n, dtype=dtype, device="meta")
    return {"x_ptr": x, "y_ptr": x, "n": n, "FACTOR": 3, "EVEN": False}


def test_a_captured_key_tells_dtypes_shapes_flags_and_grids_apart(applied_library):
    """`call_key` is what capture writes; a launch that differs in any part of it is a miss."""
    plain = applied_library.kernel("plain")
    arguments = {**_arguments(128), "bias_ptr": None}
    path = applied_library.table("plain", (call_key(arguments, (4,), ["BLOCK"]), CONFIG))
    with tuner.applied(path) as application:
        own = {"BLOCK": 32, "EVEN": False}
        applied_library.launch("plain", 128, **own)
        for grid in ((4,), (4, 1), (4, 1, 1), (4,)):
            applied_library.launch("plain", 128, grid=grid, **own)
        assert application.kernels[0].hits == 4
        applied_library.launch("plain", 128, grid=(4,), BLOCK=32, EVEN=True)
        applied_library.launch("plain", 128, grid=(4,), **own, dtype=torch.float16)
        applied_library.launch("plain", 128, grid=(5,), **own)
        applied_library.launch("plain", 128, **own)
        applied_library.launch("plain", 128, grid=(4,), bias=torch.ones(128), **own)
        applied_library.launch("plain", 127, grid=(4,), **own)
        assert counts_of(application) == (4, 7)
    assert plain is applied_library.kernel("plain")


def test_a_tuple_grid_keeps_the_parameters_that_it_may_depend_on(applied_library, caplog):
    """With a block of 32, a grid for blocks of 64 would leave half of the output unwritten."""
    with tuner.applied(applied_library.table("plain", (key(128), CONFIG))) as application:
        applied_library.launch("plain", 128, grid=(2,))
        assert application.kernels[0].hits == 0
        assert "sets BLOCK, on which the grid of this launch may depend" in caplog.text
        assert applied_library.launch("plain", 128) == 32
    caplog.clear()
    runtime.clear()
    options = {"BLOCK": 64, "num_warps": 1}
    with tuner.applied(applied_library.table("plain", (key(128), options))) as application:
        applied_library.launch("plain", 128, grid=(2,))
        assert not caplog.records
        applied_library.launch("plain", 128, grid=(1,), BLOCK=128)
        applied_library.launch("plain", 128, grid=(2,))
        assert counts_of(application) == (2, 1)


@pytest.mark.parametrize("config", [{"BLOCK": -1}, {"BLOCK": 100}, {"n": 50, "BLOCK": 32}], ids=str)
@pytest.mark.parametrize("name", ["plain", "tuned"])
def test_a_config_that_cannot_be_launched_is_refused_once(applied_library, caplog, name, config):
    with tuner.applied(applied_library.table(name, (key(), config))) as application:
        assert applied_library.launch(name) == applied_library.launch(name) == 64
        assert counts_of(application) == (0, 2)
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().endswith("launching as the library does")


def test_an_error_of_the_caller_is_raised_as_without_tables(applied_library):
    x = torch.ones(100)
    with tuner.applied(applied_library.table("tuned", (key(), CONFIG))):
        with pytest.raises(Exception, match=r"FACTOR|argument"):
            applied_library.kernel("tuned")[(1,)](x, x, 100, None)
        assert applied_library.launch("tuned") == 32


def test_threads_share_what_is_applied(applied_library):
    """Threads apply and remove tables while one launches; each launch takes a config of its own."""
    table = runtime.read(applied_library.table("tuned", (key(), CONFIG)))
    applied_library.launch("tuned")  # tunes
    stop = threading.Event()

    def work():
        while not stop.is_set():
            with tuner.applied(table):
                assert tuner.applications()

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    blocks = {applied_library.launch("tuned") for _ in range(40)}
    stop.set()
    for worker in workers:
        worker.join()
    assert blocks <= {32, 64}
    assert not tuner.applications()
    assert applied_library.launch("tuned") == 64


def test_a_mapping_names_the_kernel_of_any_table(applied_library):
    content = document(
        [(key(), CONFIG)],
        kernel="scale",
        rule="exact",
        kernel_hash=runtime.kernel_hash(applied_library.kernel("plain")),
        toolchain={"triton": triton.__version__},
    )
    path = written(applied_library.tables / "scale@NVIDIA_H200.json", content)
    with tuner.applied({f"{NAME}:tuned": path}):
        assert applied_library.launch("tuned") == 32
    table = runtime.read(path)
    with tuner.applied({f"{NAME}:plain": [table]}):
        assert applied_library.launch("plain") == 32

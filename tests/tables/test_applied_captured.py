"""From a captured launch to a launch from its table: the key is found again, in every stacking."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from applied_library import KEYWORDS, NAME
from table_documents import WINNER, add_task, outcome

import tuner
from tuner import runtime, tables

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")


ADAM = """
def prune(configs, args, **more):
    return [config for config in configs if config.kwargs["BLOCK"] <= max(64, 2 * args["n"])]


configs = [triton.Config({"BLOCK": block}) for block in (64, 128)]


@triton.autotune(
    configs,
    key=["n"],
    do_bench=bench,
    prune_configs_by={"early_config_prune": prune},
    restore_value=["p", "m"],
)
@triton.jit
def adam(p, g, m, lr, beta, step, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mean = beta * tl.load(m + at, at < n) + (1 - beta) * tl.load(g + at, at < n)
    tl.store(m + at, mean, at < n)
    corrected = mean / (1 - tl.exp(step * tl.log(beta)))
    tl.store(p + at, tl.load(p + at, at < n) - lr * corrected, at < n)
"""


def table_of(kernel, config, folder):
    """A table of a captured kernel, through its file, as `tuner export` writes it."""
    from tuner.tables.results import kernel_facts
    from tuner.tables.text import text_of

    table = runtime.Table(
        kernel=kernel.name,
        space_hash="",
        device=runtime.current_device(),
        toolchain={"triton": triton.__version__},
        entries=tuple(runtime.Entry(w.as_dict(), config) for w in kernel.workloads()),
        provenance=kernel_facts(kernel),
        launch_hash="aa",
        kernel_hashes=kernel.kernel_hashes(),
    )
    path = folder / "captured.json"
    path.write_text(text_of(table))
    return path


@pytest.mark.parametrize(
    "name", [name for name in KEYWORDS if name not in ("ours", "Namespace.plain")]
)
def test_a_captured_launch_is_launched_from_its_table(applied_library, name):
    kernel = captured(applied_library, partial(applied_library.launch, name), {})
    assert kernel.place == f"{NAME}:{name}"
    config = {"BLOCK": 128} if name not in ("plain", "computed") else {}
    path = table_of(kernel, {**config, "num_warps": 2}, applied_library.folder)
    with tuner.applied(path) as application:
        applied_library.launch(name, 100)
        applied_library.launch(name, 101)
        applied_library.launch(name, 100, dtype=torch.float16)
        applied_library.launch(name, 100, bias=torch.ones(100))
        (use,) = application.kernels
    assert (use.state, use.hits, use.misses) == ("applied", 1, 3)


@pytest.fixture
def adam(applied_library):
    """Launches the kernel of a library, checks the result, and gives the block size."""
    module = applied_library.load(ADAM)

    def launch(step=10, lr=1e-3, n=100, dtype=torch.float32, beta=0.9):
        p, g, m = torch.randn(n), torch.randn(n).to(dtype), torch.randn(n)
        blocks, mean = [], beta * m + (1 - beta) * g
        expected = p - lr * mean / (1 - beta**step)

        def grid(meta):
            blocks.append(meta["BLOCK"])
            return (triton.cdiv(n, meta["BLOCK"]),)

        module.adam[grid](p, g, m, lr, beta, step, n)
        close = {"rtol": 1e-2, "atol": 1e-2} if dtype is torch.float16 else {}
        torch.testing.assert_close(p, expected, **close or {"rtol": 1e-4, "atol": 1e-5})
        torch.testing.assert_close(m, mean, **close)
        return blocks[-1]

    return launch


def captured(library, launch, *calls, **declared):
    """The kernel of launches with these arguments."""
    with tuner.capture() as found:
        for given in calls:
            launch(**given)
    return found[found.names[0]].declare(folder=library.folder, **declared)


#: Two launches that have others between them.
BOTH = {"n": 100}, {"n": 1000}


def used(application):
    (use,) = application.kernels
    return use.hits, use.misses


def test_a_table_of_one_step_of_an_optimizer_serves_all_steps(applied_library, adam):
    kernel = captured(applied_library, adam, {"step": 10}, {"step": 12})
    assert kernel.free == ("lr", "beta", "step")
    (workload,) = kernel.workloads()
    assert {*workload} == {"p", "g", "m", "n"}
    path = table_of(kernel, {"BLOCK": 128, "num_warps": 2}, applied_library.folder)
    with tuner.applied(path) as application:
        assert [adam(11, 0.5), adam(11, 0.25), adam(13, 1e-2, beta=0.99), adam(1, 2)] == [128] * 4
    assert used(application) == (4, 0)


def test_a_config_of_the_librarys_own_serves_other_sizes(applied_library, adam):
    kernel = captured(applied_library, adam, {})
    path = table_of(kernel, {"BLOCK": 128, "num_warps": 4}, applied_library.folder)
    with tuner.applied(path) as application:
        assert [adam(11, 0.5, n=n) for n in (100, 1000, 129)] == [128] * 3
        assert used(application) == (3, 0)
        adam(11, 0.5, n=40)  # where the library's pruning drops it
        adam(11, 0.5, n=1)  # which Triton compiles in
        adam(11, 0.5, n=1000, dtype=torch.float16)
    assert used(application) == (3, 3)


def test_a_widened_config_serves_its_own_sizes_alone(applied_library, adam):
    kernel = captured(applied_library, adam, {})
    path = table_of(kernel, {"BLOCK": 128, "num_warps": 8}, applied_library.folder)
    with tuner.applied(path) as application:
        adam(11, 0.5)
        adam(11, 0.5, n=1000)
    assert used(application) == (1, 1)


def between(kernel, *configs, folder, **spans):
    """A table of calls whose configs were verified at sizes of `spans`."""
    path = table_of(kernel, configs[0], folder)
    whole = runtime.read(path)
    sizes = {name: runtime.Span(*ends) for name, ends in spans.items()}
    ordered = sorted(whole.entries, key=lambda entry: entry.key["n"])
    entries = [
        replace(entry, config=config, sizes=sizes)
        for entry, config in zip(ordered, configs, strict=True)
    ]
    return replace(whole, entries=tuple(entries))


def test_a_widened_config_serves_all_sizes_between_those_where_it_was_verified(
    applied_library, adam
):
    kernel = captured(applied_library, adam, *BOTH)
    configs = [{"BLOCK": 128, "num_warps": 8}, {"BLOCK": 256, "num_warps": 8}]
    folder = applied_library.folder
    with tuner.applied(between(kernel, *configs, folder=folder, n=(100, 1000))) as application:
        sizes = (100, 101, 250, 333, 700, 999, 1000)
        assert [adam(11, 0.5, n=n) for n in sizes] == [128, 128, 128, 256, 256, 256, 256]
        assert used(application) == (7, 0)
        for n in (99, 1001):
            adam(11, 0.5, n=n)
    assert used(application) == (7, 2)


def test_a_table_of_the_results_of_several_calls_serves_those_between(
    applied_library, adam, store, run_id
):
    kernel = captured(applied_library, adam, *BOTH)
    for workload in kernel.workloads():
        add_task(store, run_id, workload, kernel=kernel.name, selection=outcome())
    (table,) = tables.build(store, run_id, {kernel.name: kernel})
    assert [dict(entry.config) for entry in table.entries] == [WINNER] * 2
    assert [dict(entry.sizes) for entry in table.entries] == [{"n": runtime.Span(100, 1000)}] * 2
    here = replace(
        table,
        device=runtime.current_device(),
        toolchain={"triton": triton.__version__},
        kernel_hashes=kernel.kernel_hashes(),
    )
    with tuner.applied(here) as application:
        assert [adam(11, 0.5, n=n) for n in (100, 257, 999)] == [128] * 3
    assert used(application) == (3, 0)


def test_a_caller_that_chooses_the_config_is_served_between_verified_sizes(applied_library):
    kernel = captured(applied_library, partial(applied_library.launch, "plain"), *BOTH)
    configs = {"num_warps": 1}, {"num_warps": 2}
    given = between(kernel, *configs, folder=applied_library.folder, n=(100, 1000))
    with tuner.applied(given) as application:
        for n in (100, 101, 333, 999, 1000):
            applied_library.launch("plain", n)
        assert used(application) == (5, 0)
        applied_library.launch("plain", 1001)
        applied_library.launch("plain", 500, dtype=torch.float16)
    assert used(application) == (5, 2)


def test_the_nearest_call_with_a_config_of_the_librarys_own_is_taken(applied_library, adam):
    kernels = [captured(applied_library, adam, {"n": n}) for n in (200, 3000, 6000)]
    given = [{"BLOCK": 64}, {"BLOCK": 128}, {"BLOCK": 64, "num_warps": 1}]
    paths = []
    for at, (kernel, config) in enumerate(zip(kernels, given, strict=True)):
        path = table_of(kernel, {"num_warps": 4, **config}, applied_library.folder)
        paths.append(path.rename(path.with_name(f"{at}.json")))
    whole = runtime.read(paths[0])
    entries = [entry for path in paths for entry in runtime.read(path).entries]
    with tuner.applied(replace(whole, entries=tuple(entries))):
        assert [adam(7, 0.5, n=n) for n in (201, 500, 1000, 5999)] == [64, 64, 128, 128]


def test_a_caller_that_chooses_the_config_is_served_where_it_chooses_that_of_the_table(
    applied_library,
):
    kernel = captured(applied_library, partial(applied_library.launch, "plain"), {})
    path = table_of(kernel, {"num_warps": 4}, applied_library.folder)
    for warps, counts in ((4, (1, 0)), (8, (0, 1))):
        with tuner.applied(path) as application:
            applied_library.launch("plain", 1000, num_warps=warps)
        assert used(application) == counts

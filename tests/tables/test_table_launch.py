"""Launching through the decorator, in Triton's interpreter: hits, misses, hooks, bad configs."""

from __future__ import annotations

import threading

import pytest
from table_library import BIG, MODULE, WITH_HOOK, adopted, count_tensors, key

from tuner import runtime

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")


def test_a_hit_launches_its_config_without_tuning(library, caplog):
    kernel = library.load()
    library.table((key(), BIG), (key(50), {"BLOCK": 32, "num_warps": 1}))
    for _ in range(3):
        assert library.launch() == [128]
    assert library.launch(by_name=True) == [128]
    assert library.launch(120) == [128]  # nearest
    assert library.launch(50) == [32]  # a config the library never listed
    assert library.module.BENCHED == []
    assert not kernel.cache
    assert not caplog.records
    x = torch.zeros(100)
    assert kernel.hit(x, x, 100, FACTOR=3).how == "exact"


def test_a_miss_tunes_as_triton_does_and_warns_once(library, caplog):
    kernel = library.load()
    library.table((key(), BIG))
    for n in (1000, 1001, 1000):
        library.launch(n)
    library.launch(100, torch.float16)
    assert len(library.module.BENCHED) == 6  # three keys, two configs
    assert kernel.best_config.kwargs == {"BLOCK": 64}
    assert len(caplog.records) == 1
    assert "n=1000 dtype=float32" in caplog.text
    assert "triton.autotune" in caplog.text
    assert library.launch(100) == [128]


def test_launches_keep_no_tensor(library):
    """A plan is kept for each kind of launch; with its tensors, it would fill a GPU."""
    library.load('miss="default",')
    library.table((key(), BIG), (key(50), {"BLOCK": 32, "num_warps": 1}))
    library.launch(64)
    before = count_tensors()
    for n in (50, 100, 120, 1000):
        library.launch(n)
    assert count_tensors() == before


FAR = (key(64), {"BLOCK": 32, "num_warps": 1})
#: What no config of a table may set.
FOREIGN = (
    *({"ir_override": "/etc/passwd"}, {"ptx_options": "--help"}, {"extern_libs": "x"}),
    *({"debug": True}, {"grid": 1}, {"warmup": True}, {"n": 1}, {"FACTOR": 4}, {"__class__": 1}),
)


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_miss_launches_the_default_config_where_it_must_not_tune(
    library, caplog, how, monkeypatch
):
    """The first config that the library's pruning keeps; a table does not say of its own default
    config for which sizes it is right."""
    if how == "environment":
        monkeypatch.setenv("TUNER_MISS", "default")
    options = 'miss="default",' if how == "argument" else ""
    kernel = library.load(options + ' prune_configs_by={"early_config_prune": prune},')
    library.table(FAR, default={"BLOCK": 16, "num_warps": 1})
    assert library.launch(1000) == library.launch(1000) == [64]
    x = torch.zeros(1000)
    assert kernel.hit(x, x, 1000, FACTOR=3).how == "default"
    assert library.launch(64) == [32]
    assert library.module.BENCHED == []
    assert caplog.text.count("launching the default config") == 1


@pytest.mark.parametrize("state", ["no table", "a table that is no JSON", "a config that fails"])
def test_nothing_is_tuned_whatever_is_wrong_with_the_table(library, state):
    library.load('miss="default",')
    if state == "a table that is no JSON":
        library.table(FAR).write_text("{")
    elif state == "a config that fails":
        library.table((key(100), {"BLOCK": 100, "num_warps": 1}))
    for _ in range(2):
        assert library.launch(100)[-1:] == [64]
    assert library.module.BENCHED == []


def test_another_word_for_a_miss_is_refused(library, caplog, monkeypatch):
    with pytest.raises(ValueError, match='miss is \'tunes\'; write "tune" or "default"'):
        library.load('miss="tunes",')
    monkeypatch.setenv("TUNER_MISS", "never")
    library.load()
    library.launch(1000)
    library.launch(1001)
    assert len(library.module.BENCHED) == 4
    assert caplog.text.count("TUNER_MISS is never, not tune or default; misses tune") == 1


class Watched:
    """A lock that says when a thread asks for it while another one holds it."""

    def __init__(self):
        self.lock, self.asked = threading.RLock(), threading.Event()

    def __enter__(self):
        if not self.lock.acquire(blocking=False):
            self.asked.set()
            self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_cold_misses_in_two_threads_tune_one_after_the_other(library, monkeypatch):
    library.load()
    watched = Watched()
    monkeypatch.setattr("tuner.runtime._launch._MISS", watched)
    bench, launched = library.module.bench, []
    second = threading.Thread(target=lambda: launched.append(library.launch(200)))

    def bench_beside_another(call, quantiles):
        if not library.module.BENCHED and not second.ident:
            second.start()
            watched.asked.wait()
        return bench(call, quantiles)

    library.module.scale._do_bench = bench_beside_another
    assert library.launch(100)[-1] == 64
    second.join()
    assert [blocks[-1] for blocks in launched] == [64]
    assert len(library.module.BENCHED) == 4


@pytest.mark.parametrize("state", ["absent", "corrupt", "aged", "other source", "other device"])
def test_without_a_usable_table_it_tunes_with_one_warning(library, caplog, state, monkeypatch):
    library.load()
    facts = {
        "aged": {"toolchain": {"triton": "2.0.0"}},
        "other source": {"kernel_hash": "feed"},
        "other device": {"device": "NVIDIA H100"},
    }
    path = library.table((key(), BIG), **facts.get(state, {}))
    if state == "absent":
        path.unlink()
    elif state == "corrupt":
        path.write_text(path.read_text()[:200])
    for n in (100, 200):
        library.launch(n)
        library.launch(n)
    assert len(library.module.BENCHED) == 4
    assert len(caplog.records) == 1
    assert str(library.tables) in caplog.text


def test_a_stale_table_is_used_with_stale_use(library, caplog):
    library.load('stale="use"')
    path = library.table((key(), BIG), toolchain={"triton": "2.0.0"})
    assert library.launch() == library.launch() == [128]
    assert library.module.BENCHED == []
    assert len(caplog.records) == 1
    assert f"using {path}" in caplog.text


def test_the_table_may_be_named_by_argument_or_environment(library, monkeypatch):
    library.load()
    path = library.table((key(), BIG))
    elsewhere = library.folder / "elsewhere.json"
    path.rename(elsewhere)
    library.load(f'table={str(elsewhere)!r}, kernel="scale"')
    assert library.launch() == [128]
    library.load()
    monkeypatch.setenv("TUNER_TABLES", str(elsewhere))
    assert library.launch() == [128]
    assert library.module.BENCHED == []


@pytest.mark.parametrize(
    "config",
    [
        *({"BLOCK": 128, **more} for more in FOREIGN),
        *({"BLOCK": 128, "num_warps": count} for count in ("4", 0, 3, 2**20)),
        *({"BLOCK": 128, "num_stages": count} for count in (2**40, -1)),
        *({"BLOCK": value} for value in ("128", 128.0, True, None)),
        {"num_warps": 4},
        {},
        {"BLOCK": 100},  # fits, and is refused by Triton itself
        {"BLOCK": -1},  # a grid of -100 programs would run none, without a word
    ],
    ids=str,
)
def test_a_config_that_must_not_or_cannot_be_launched_is_a_miss(library, caplog, config):
    kernel = library.load()
    library.table((key(), config))
    assert library.launch()[-1] == library.launch()[-1] == 64
    assert kernel.best_config is kernel.configs[0]
    assert len(library.module.BENCHED) == 2
    assert len(caplog.records) == 1
    assert str(library.tables) in caplog.text


def test_pre_hooks_of_configs_are_called_as_in_any_tuned_launch(library):
    kernel = library.load(source=WITH_HOOK)
    library.table((key(), {"BLOCK": 256}), (key(50), {"BLOCK": 64, "num_warps": 2}))
    assert library.launch() == library.launch() == [256]
    assert library.module.HOOKED == [256, 256]
    assert kernel.best_config is kernel.configs[1]
    assert kernel.best_config.pre_hook is library.module.hook
    assert library.launch(50) == [64]
    assert library.module.HOOKED == [256, 256]
    assert library.module.BENCHED == []


def test_a_config_with_an_unknown_hook_is_a_miss(library, caplog):
    library.load(source=WITH_HOOK)
    library.table((key(), {"BLOCK": 32}))
    library.launch()
    assert len(library.module.BENCHED) == 2
    assert "pre_hook" in caplog.text


def test_reset_to_zero_matters_to_benchmarks_alone(library):
    """As in a launch that Triton has tuned already, an accumulator keeps what it holds."""
    adding = MODULE.replace("tl.store(y_ptr + at, ", "tl.store(y_ptr + at, tl.load(y_ptr + at) + ")
    library.load('reset_to_zero=["y_ptr"]', source=adding)
    library.table((key(64), {"BLOCK": 64, "num_warps": 2}))
    x, y = torch.ones(64), torch.ones(64)
    library.module.scale[(1,)](x, y, 64, FACTOR=3)
    assert torch.equal(y, torch.full((64,), 4.0))


def test_a_near_config_passes_the_librarys_own_pruning(library, caplog):
    library.load('prune_configs_by={"early_config_prune": prune}')
    library.table((key(150), BIG))
    assert library.launch(200) == [128]
    assert set(library.launch(100)) == {64}  # near, but a block of 128 is pruned there
    assert "early_config_prune" in caplog.text


def test_values_json_cannot_hold_are_the_kernels_own(library, caplog):
    """As tables of adopted kernels have them: a dtype as text, what is unset as null."""
    typed = MODULE.replace('{"BLOCK": 64}', '{"BLOCK": 64, "IN": tl.float32}')
    typed = typed.replace('{"BLOCK": 128}', '{"BLOCK": 128, "IN": tl.float16, "waves_per_eu": 2}')
    typed = typed.replace("BLOCK: tl.constexpr)", "BLOCK: tl.constexpr, IN: tl.constexpr)")
    library.load(source=typed.replace("mask=at < n) *", "mask=at < n).to(IN) *"))
    config = {"BLOCK": 64, "IN": "fp32", "num_warps": 2, "maxnreg": None, "waves_per_eu": None}
    library.table((key(), config), (key(50), {**config, "IN": "fp64"}))
    assert library.launch() == library.launch() == [64]
    assert library.module.BENCHED == []
    library.launch(50)
    assert library.module.BENCHED
    assert "sets IN to" in caplog.text


def test_an_adopted_kernel_is_tuned_and_launched_under_one_name(library, monkeypatch):
    """`adopt` reads our decorator as it reads Triton's, and its table is found again."""
    from search_spaces.records import Device, Workload

    monkeypatch.delenv("TRITON_INTERPRET")
    kernel, sized = library.load(), Workload.of(n=100, dtype="float32")
    declared = adopted(kernel, sized)
    assert declared.place == "scale_library:scale"
    kernel_hash = runtime.kernel_hash(kernel)
    assert kernel_hash in declared.kernel_hashes()  # with those that fill outputs
    device = Device("cuda", "NVIDIA H200", "cuda:90")
    configs = list(declared.space(sized).bind(sized, device).enumerate())
    assert len(configs) == 2
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for config in configs:
        runtime.clear()
        library.load()
        entry = (sized.as_dict(), dict(config))
        library.table(entry, kernel=declared.name, kernel_hash=kernel_hash)
        assert library.launch() == [config["BLOCK"]]
        assert library.module.BENCHED == []


def test_it_stands_where_tritons_autotuner_stands(library):
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import KernelInterface

    kernel = library.load()
    direct = runtime.Autotuned(kernel.fn, kernel.configs, ["n"])
    for each in (kernel, direct):
        assert all(isinstance(each, kind) for kind in (Autotuner, KernelInterface))
        assert isinstance(each, runtime.Autotuned)
    assert [config.kwargs for config in kernel.configs] == [{"BLOCK": 64}, {"BLOCK": 128}]
    assert kernel.keys == ["n"]
    assert kernel.arg_names == ["x_ptr", "y_ptr", "n", "FACTOR", "BLOCK"]
    assert kernel.__name__ == "scale"
    assert kernel.src.startswith("def scale(x_ptr")
    assert kernel.base_fn.__name__ == "scale"
    assert kernel.early_config_prune is None  # an attribute of Triton's
    with pytest.raises(AttributeError):
        _ = kernel.no_such_attribute


def test_heuristics_may_stand_on_either_side(library):
    inside = MODULE.replace(
        "@triton.jit", '@triton.heuristics({"FACTOR": lambda args: 3})\n@triton.jit'
    )
    outside = MODULE.replace(
        "@autotune(", '@triton.heuristics({"FACTOR": lambda args: 3})\n@autotune('
    )
    for source in (inside, outside):
        runtime.clear()
        found = library.load(source=source)
        own = found if hasattr(found, "hit") else found.fn
        library.table((key(), BIG), kernel_hash=runtime.kernel_hash(own))
        x = torch.ones(100)
        y = torch.empty_like(x)
        library.module.scale[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, y, 100)
        assert torch.equal(y, x * 3)
        assert library.module.BENCHED == []


def test_a_bad_argument_is_the_callers_and_raises_as_without_a_table(library):
    library.load()
    library.table((key(), BIG))
    x = torch.ones(100)
    with pytest.raises(Exception, match=r"FACTOR|argument"):
        library.module.scale[(1,)](x, x, 100)
    library.module.BENCHED.clear()
    assert library.launch() == [128]
    assert library.module.BENCHED == []
    with pytest.raises(ValueError, match="stale"):
        library.load('stale="maybe"')

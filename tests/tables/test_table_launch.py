"""Launching through the decorator, in Triton's interpreter: hits, misses, hooks, bad configs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import pytest
from table_documents import document, written

from tuner import runtime

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

# A jitted function needs a source file, and is interpreted if it is decorated while
# TRITON_INTERPRET is set; so every test imports a kernel module of its own.
MODULE = '''
import time

import triton
import triton.language as tl

from tuner.runtime import autotune

BENCHED = []
HOOKED = []


def bench(call, quantiles):
    """A stand-in for Triton's timer, which needs a device: it counts."""
    call()
    BENCHED.append(1)
    return [float(len(BENCHED))] * 3


def hook(args):
    HOOKED.append(args["BLOCK"])


def prune(configs, args, **kwargs):
    return [config for config in configs if config.kwargs["BLOCK"] <= args["n"]]


@autotune(
    [triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}, num_warps=4)],
    key=["n"],
    do_bench=bench,
    OPTIONS
)
@triton.jit
def scale(x_ptr, y_ptr, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * FACTOR, mask=at < n)
'''


class Library:
    """A kernel library of one module, in a folder with its tables."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.tables = folder / "tables"
        self.module = None

    def load(self, options: str = "", source: str = MODULE):
        path = written(self.folder / "library.py", source.replace("OPTIONS", options))
        spec = importlib.util.spec_from_file_location("table_library", path)
        self.module = importlib.util.module_from_spec(spec)
        sys.modules["table_library"] = self.module
        spec.loader.exec_module(self.module)
        return self.module.scale

    def table(self, *entries, **facts):
        """Write the library's table; its source hash is the loaded kernel's."""
        facts.setdefault("toolchain", {"triton": triton.__version__})
        facts.setdefault("source_hash", runtime.source_hash(self.module.scale))
        content = document(entries, **facts)
        return written(self.tables / "scale@NVIDIA_H200.json", content)

    def launch(self, n=100, dtype=torch.float32, by_name=False):
        """Launch, check the result, and give the block sizes launched."""
        x = torch.arange(n).to(dtype)
        y = torch.empty_like(x)
        blocks = []

        def grid(meta):
            blocks.append(meta["BLOCK"])
            return (triton.cdiv(n, meta["BLOCK"]),)

        if by_name:
            self.module.scale[grid](x_ptr=x, y_ptr=y, n=n, FACTOR=3)
        else:
            self.module.scale[grid](x, y, n, FACTOR=3)
        assert torch.equal(y, x * 3)
        return blocks


@pytest.fixture
def library(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TUNER_DEVICE", "NVIDIA H200")
    monkeypatch.delenv("TUNER_TABLES", raising=False)
    runtime.clear()
    yield Library(tmp_path)
    sys.modules.pop("table_library", None)


def key(n=100, dtype="float32"):
    return {"n": n, "dtype": dtype}


BIG = {"BLOCK": 128, "num_warps": 4}


def test_a_hit_launches_its_config_without_tuning(library, caplog):
    kernel = library.load()
    library.table((key(), BIG), (key(50), {"BLOCK": 32, "num_warps": 1}))
    for _ in range(3):
        assert library.launch() == [128]
    assert library.launch(by_name=True) == [128]
    assert library.launch(120) == [128]  # nearest
    assert library.launch(50) == [32]  # a config the library never listed
    assert library.module.BENCHED == []
    assert "_tuner" not in vars(kernel)
    assert not caplog.records
    x = torch.zeros(100)
    assert kernel.hit(x, x, 100, FACTOR=3).how == "exact"


def test_a_miss_tunes_as_triton_does_and_says_so_once(library, caplog):
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


@pytest.mark.parametrize("state", ["absent", "corrupt", "aged", "other source", "other device"])
def test_without_a_usable_table_it_tunes_with_one_warning(library, caplog, state, monkeypatch):
    library.load()
    facts = {
        "aged": {"toolchain": {"triton": "2.0.0"}},
        "other source": {"source_hash": "feed"},
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


def test_an_aged_table_is_used_when_the_library_says_so(library, caplog):
    library.load('stale="use"')
    path = library.table((key(), BIG), toolchain={"triton": "2.0.0"})
    assert library.launch() == library.launch() == [128]
    assert library.module.BENCHED == []
    assert len(caplog.records) == 1
    assert f"using {path}" in caplog.text


def test_a_module_hash_is_accepted_too(library):
    import hashlib

    library.load()
    whole = hashlib.sha256((library.folder / "library.py").read_bytes()).hexdigest()[:16]
    library.table((key(), BIG), source_hash=whole)
    assert library.launch() == [128]
    assert library.module.BENCHED == []


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


def test_key_map_names_the_workload(library):
    library.load('key_map=lambda args: {"size": args["n"], "factor": args["FACTOR"]}')
    library.table(({"size": 100, "factor": 3}, BIG))
    assert library.launch() == library.launch() == [128]
    assert library.module.BENCHED == []


@pytest.mark.parametrize(
    "config",
    [
        {"BLOCK": 128, "ir_override": "/etc/passwd"},
        {"BLOCK": 128, "ptx_options": "--help"},
        {"BLOCK": 128, "extern_libs": "x"},
        {"BLOCK": 128, "debug": True},
        {"BLOCK": 128, "grid": 1},
        {"BLOCK": 128, "warmup": True},
        {"BLOCK": 128, "n": 1},
        {"BLOCK": 128, "FACTOR": 4},
        {"BLOCK": 128, "__class__": 1},
        {"BLOCK": "128"},
        {"BLOCK": 128.0},
        {"BLOCK": True},
        {"BLOCK": None},
        {"BLOCK": 128, "num_warps": "4"},
        {"num_warps": 4},
        {},
        {"BLOCK": 100},  # fits, and is refused by Triton itself
        {"BLOCK": -1},  # a grid of -100 programs would run none, without a word
    ],
    ids=str,
)
def test_a_config_that_must_not_or_cannot_be_launched_is_a_miss(library, caplog, config):
    library.load()
    library.table((key(), config))
    assert library.launch()[-1] == library.launch()[-1] == 64
    assert len(library.module.BENCHED) == 2
    assert len(caplog.records) == 1
    assert str(library.tables) in caplog.text


def test_pre_hooks_of_configs_are_called_as_in_any_tuned_launch(library):
    hooked = "triton.Config({'BLOCK': 256}, pre_hook=hook),"
    two = MODULE.replace('triton.Config({"BLOCK": 128}, num_warps=4)', hooked)
    library.load(source=two)
    library.table((key(), {"BLOCK": 256}), (key(50), {"BLOCK": 64, "num_warps": 2}))
    assert library.launch() == library.launch() == [256]
    assert library.module.HOOKED == [256, 256]
    assert library.launch(50) == [64]
    assert library.module.HOOKED == [256, 256]
    assert library.module.BENCHED == []


def test_a_config_whose_hook_nobody_knows_is_a_miss(library, caplog):
    hooked = "triton.Config({'BLOCK': 256}, pre_hook=hook),"
    library.load(source=MODULE.replace('triton.Config({"BLOCK": 128}, num_warps=4)', hooked))
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


def test_a_near_config_is_asked_of_the_librarys_own_pruning(library, caplog):
    library.load('prune_configs_by={"early_config_prune": prune}')
    library.table((key(150), BIG))
    assert library.launch(200) == [128]
    library.launch(100)  # near, but a block of 128 is pruned there
    assert len(library.module.BENCHED) == 1
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
    from search_spaces.adopt import adopt
    from search_spaces.kernel import Cost, TensorSpec
    from search_spaces.records import Device, Workload

    monkeypatch.delenv("TRITON_INTERPRET")
    kernel = library.load()

    def specs(name):
        return lambda w: {name: TensorSpec((w.size("n"),), w.text("dtype"))}

    adopted = adopt(
        kernel,
        name="scale",
        workloads=[Workload.of(n=100, dtype="float32")],
        inputs=specs("x"),
        outputs=specs("y"),
        arguments=lambda w, t: {"x_ptr": t["x"], "y_ptr": t["y"], "n": w.size("n"), "FACTOR": 3},
        grid=lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),),
        reference=lambda w, inputs: inputs["x"] * 3,
        cost=lambda w: Cost(1.0, 1.0),
    )
    source_hash = adopted.source_hash()
    (wanted,) = adopted.workloads()
    device = Device("cuda", "NVIDIA H200", "cuda:90")
    configs = list(adopted.space(wanted).bind(wanted, device).enumerate())
    assert len(configs) == 2
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for config in configs:
        runtime.clear()
        library.load()
        entry = (wanted.as_dict(), dict(config))
        library.table(entry, kernel=adopted.name, source_hash=source_hash)
        assert library.launch() == [config["BLOCK"]]
        assert library.module.BENCHED == []


def test_it_stands_where_tritons_autotuner_stands(library):
    kernel = library.load()
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
        library.load(source=source)
        tuned = getattr(library.module.scale, "fn", None)
        own = library.module.scale if hasattr(library.module.scale, "hit") else tuned
        facts = {"source_hash": runtime.source_hash(own)}
        library.table((key(), BIG), **facts)
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


IMPORT = """
import json, sys
before = set(sys.modules)
import tuner.runtime
tuner.runtime.lookup("k", {"n": 1}, tables="nowhere", device="x")
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(new - set(sys.stdlib_module_names))))
"""


def test_importing_the_runtime_loads_the_standard_library_alone():
    done = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == '["tuner"]'


def test_a_library_may_carry_a_copy_of_the_runtime(tmp_path):
    """Copied elsewhere under another name, it works without the farm being installed."""
    import shutil
    from pathlib import Path

    shutil.copytree(Path(runtime.__file__).parent, tmp_path / "carried" / "tables_runtime")
    written(tmp_path / "k.json", document([({"n": 64}, {"BLOCK": 1})]))
    code = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path / "carried")!r})
        import tables_runtime as runtime
        hit = runtime.lookup(
            "scale", {{"n": 64}}, tables={str(tmp_path / "k.json")!r}, device="NVIDIA H200"
        )
        assert hit.config == {{"BLOCK": 1}}
        assert not any(name.startswith("tuner") for name in sys.modules)
        """
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)

"""What the library promises: right results, launches from its table, and a fallback without it."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton
from tuner import runtime

PACKAGE = Path(__file__).parents[1] / "kernel_library"
CUDA = torch.cuda.is_available()
PLACES = [
    pytest.param("cpu", marks=pytest.mark.skipif(CUDA, reason="needs no CUDA device")),
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs one")]),
]
TABLED = {"BLOCK": 512, "num_warps": 2}  # not among the configs that the library itself lists


@pytest.fixture(params=PLACES)
def library(request, tmp_path, monkeypatch):
    """A copy of the package, with a table for this device, counting what it benchmarks."""
    if request.param == "cpu":
        monkeypatch.setenv("TUNER_DEVICE", "a CPU in the place of a GPU")
    monkeypatch.delenv("TUNER_TABLES", raising=False)
    shutil.copytree(PACKAGE, tmp_path / "kernel_library", ignore=shutil.ignore_patterns("tables"))
    monkeypatch.syspath_prepend(tmp_path)
    forget_package()
    runtime.clear()
    from kernel_library import rmsnorm

    benched = []

    def bench(call, quantiles):
        call()
        benched.append(1)
        return [float(len(benched))] * 3

    rmsnorm.rms_norm_kernel.do_bench = bench
    yield SimpleNamespace(
        rms_norm=rmsnorm.rms_norm,
        kernel=rmsnorm.rms_norm_kernel,
        device=request.param,
        benched=benched,
        table=write_table(tmp_path, rmsnorm.rms_norm_kernel),
    )
    forget_package()


def forget_package():
    for name in [name for name in sys.modules if name.partition(".")[0] == "kernel_library"]:
        del sys.modules[name]


def write_table(folder, kernel):
    """A table as `tuner run` writes it, but with a config of ours and no measurements."""
    device = runtime.current_device()
    entry = {"config": TABLED, "verdict": "undecided"}
    keys = [{"rows": 8, "cols": cols, "dtype": "float16"} for cols in (300, 1500)]
    table = {
        "schema": runtime.SCHEMA,
        "kernel": {
            "name": "rms_norm",
            "launch_hash": "aa",
            "kernel_hashes": [runtime.kernel_hash(kernel)],
        },
        "device": {
            "name": device.name,
            "target": device.target,
            "sm_count": device.sm_count,
            "memory_bytes": device.memory_bytes,
        },
        "toolchain": {"triton": triton.__version__},
        "lookup": {"rule": "nearest_log2", "max_distance": 1.0, "numeric": ["rows"]},
        "entries": [{"key": key, **entry} for key in keys],
    }
    path = folder / "kernel_library" / "tables" / "rms_norm@this.json"
    path.parent.mkdir()
    path.write_text(json.dumps(table))
    return path


def check_result(library, rows=8, cols=1500, dtype=torch.float16):
    x = torch.randn(rows, cols).to(dtype).to(library.device)
    weight = torch.randn(cols).to(dtype).to(library.device)
    out = library.rms_norm(x, weight)
    wide = x.double()
    expected = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.double()
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-2)


def launch(library, rows=8, cols=1500):
    """One launch, giving what Triton launched: None in the interpreter."""
    x = torch.randn(rows, cols, device=library.device).half()
    weight, out = torch.ones_like(x[0]), torch.empty_like(x)
    return library.kernel[(rows,)](x, weight, out, rows, cols, 1e-6)


def test_it_launches_the_tabled_config_without_tuning(library, caplog):
    for rows, cols in ((8, 1500), (8, 300), (13, 1500), (8, 1500)):
        check_result(library, rows, cols)
    compiled = launch(library)
    if library.device == "cuda":
        assert compiled.metadata.num_warps == TABLED["num_warps"]
    assert library.benched == []
    assert not caplog.records


@pytest.mark.parametrize("state", ["deleted", "corrupted", "aged"])
def test_without_its_table_it_tunes_with_one_warning(library, caplog, state):
    text = library.table.read_text()
    if state == "deleted":
        library.table.unlink()
    elif state == "corrupted":
        library.table.write_text(text[: len(text) // 2])
    else:
        library.table.write_text(text.replace(triton.__version__, "2.0.0"))
    for _ in range(2):
        check_result(library)
        check_result(library, cols=300)
    assert len(library.benched) == 2 * len(library.kernel.configs)
    assert len(caplog.records) == 1
    assert str(library.table.parent) in caplog.text


def test_a_shape_far_from_the_tabled_is_tuned_with_one_warning(library, caplog):
    check_result(library, rows=64)
    check_result(library, dtype=torch.float32)
    assert len(library.benched) == 2 * len(library.kernel.configs)
    assert len(caplog.records) == 1


def test_empty_and_misshapen_inputs(library):
    x = torch.empty(0, 300, device=library.device)
    assert library.rms_norm(x, torch.ones(300, device=library.device)).shape == (0, 300)
    with pytest.raises(ValueError, match="weight has shape"):
        library.rms_norm(torch.ones(2, 4), torch.ones(3))


def test_shipped_tables_are_of_the_kernel_as_it_is():
    from kernel_library.rmsnorm import rms_norm_kernel

    for path in PACKAGE.glob("tables/*.json"):
        table = runtime.read(path)
        assert table.kernel == rms_norm_kernel.kernel
        assert table.kernel_hashes == (runtime.kernel_hash(rms_norm_kernel),)
        assert table.entries


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_the_shipped_table_of_this_card_is_launched(caplog, monkeypatch):
    """Where one is shipped that was made with this Triton: every entry, without tuning."""
    monkeypatch.delenv("TUNER_TABLES", raising=False)
    monkeypatch.syspath_prepend(PACKAGE.parent)
    device = runtime.current_device()
    tables = [runtime.read(path) for path in PACKAGE.glob("tables/*.json")]
    ours = [t for t in tables if t.device.matches(device) and not runtime.staleness(t)]
    if not ours:
        pytest.skip(f"no table is shipped for {device.name} and Triton {triton.__version__}")
    forget_package()
    runtime.clear()
    from kernel_library import rmsnorm

    kernel = rmsnorm.rms_norm_kernel
    kernel.do_bench = lambda call, quantiles: pytest.fail("it was tuned")
    for entry in ours[0].entries:
        rows, cols = entry.key["rows"], entry.key["cols"]
        x = torch.randn(rows, cols, device="cuda", dtype=getattr(torch, entry.key["dtype"]))
        weight, out = torch.ones_like(x[0]), torch.empty_like(x)
        compiled = kernel[(rows,)](x, weight, out, rows, cols, 1e-6)
        assert compiled.metadata.num_warps == entry.config["num_warps"]
        assert kernel.hit(x, weight, out, rows, cols, 1e-6).config == entry.config
    assert not caplog.records

"""From a captured launch to a launch from its table: the key is found again, in every stacking."""

from __future__ import annotations

import pytest
from applied_library import KEYWORDS, NAME

import tuner
from tuner import runtime

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")


def table_of(kernel, config, folder):
    """A table of a captured kernel, through its file, as `tuner export` writes it."""
    from tuner.tables.text import text_of

    table = runtime.Table(
        kernel=kernel.name,
        space_hash="",
        device=runtime.current_device(),
        toolchain={"triton": triton.__version__},
        entries=tuple(runtime.Entry(w.as_dict(), config) for w in kernel.workloads()),
        provenance={"place": kernel.place},
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

    with tuner.capture() as calls:
        applied_library.launch(name, 100)
    kernel = calls["body"].declare(folder=applied_library.folder)
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

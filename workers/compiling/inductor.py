"""CPU variants: compiled by one call, each in a separate Inductor cache."""

from __future__ import annotations

import hashlib
import importlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.errors import TunerError
from search_spaces.records import canonical_json, config_key, digest
from tuner.base.tracing import span
from workers import backend_kinds, toolchain
from workers.compiling import headers, isa, linking
from workers.compiling.cache import compile_in_this_thread, pack_files
from workers.compiling.isa import ISA
from workers.compiling.machine_check import check_cpp_builds
from workers.environment import INDUCTOR, set_variables
from workers.host import cpu_device
from workers.job_records import Artifact, BuildJob, Failure, StaticFacts

if TYPE_CHECKING:
    import torch

    from search_spaces.kernel import Kernel

# -- what Inductor does once in a process, done once for all of its forks --------------------------
# The first compilation in a process takes a second more than later ones: Inductor fills its tables
# of patterns and decompositions, and imports what only a compilation needs. A fork server therefore
# compiles a small function before builders and runners fork from it. Its C++ is not compiled, and
# the vector instructions are not probed: both are work of builders, which report what fails.
_ROWS, _COLS = 8, 64


def compile_sample() -> None:
    """Compile a small function in a fork server, all but its C++.

    No device is visible meanwhile: a process that has asked a driver for one cannot be forked.
    Dynamo and Inductor forget the function afterwards.
    """
    import torch
    from torch._inductor import utils

    def sample(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.nn.functional.gelu(x + bias), dim=-1)

    hidden = {one.visible_devices: "" for one in backend_kinds.specs() if one.visible_devices}
    compile_in_this_thread()
    without_timing_guards()
    with (
        tempfile.TemporaryDirectory(prefix="tuner-", ignore_cleanup_errors=True) as folder,
        set_variables(**hidden, TORCHINDUCTOR_CACHE_DIR=folder),
    ):
        try:
            with _without_cpp(), torch.no_grad():
                compiled = torch.compile(sample, dynamic=False)
                compiled(torch.zeros(_ROWS, _COLS), torch.zeros(_COLS))
        finally:
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            clear = getattr(utils, "clear_caches", None) or utils.clear_inductor_caches
            clear()


def without_timing_guards() -> None:
    """Keep Dynamo from timing the guards of each function that it compiles.

    It flushes the caches of the processor for it, which takes 30 ms, and the result is only logged.
    Does nothing where this version of torch does not time guards, or has not loaded Dynamo.
    """
    guards: Any = sys.modules.get("torch._dynamo.guards")
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_, **__: 0.0


@contextmanager
def _without_cpp() -> Iterator[None]:
    """Inductor without vector instructions and with kernels that do nothing, inside the block.

    Raises AttributeError where this version of torch has no such places.
    """
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    instructions: Any = importlib.import_module("torch._inductor.cpu_vec_isa")
    loader = codecache.CppPythonBindingsCodeCache
    progress: Any = getattr(importlib.import_module("torch._inductor.async_compile"), "tqdm", None)
    replaced: list[tuple[Any, str, object]] = [
        (loader, "load_pybinding", lambda *_, **__: _nothing),
        (instructions, "valid_vec_isa_list", list),
    ]
    if hasattr(progress, "monitor_interval"):
        # Else the progress bar, though it is not shown, starts a thread, which may hold a lock
        # when the server forks.
        replaced.append((progress, "monitor_interval", 0))
    # The dictionary's own value: a class method that is read from its class is bound.
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _nothing(*_: object) -> None:
    """A kernel that computes nothing."""


# -- CPU variants ----------------------------------------------------------------------------------
_VARIANTS, _HEADERS, _EMPTY = "variants", "headers", "empty"
#: Shorter parts of a build are in no trace.
_LEAST_S = 0.01


def build_cpu(kernel: Kernel, job: BuildJob, cache_dir: Path) -> Artifact | Failure:
    """Compile a CPU variant for this machine and pack its Inductor cache.

    Each variant has a separate cache folder below `cache_dir/variants`, so that all files in it
    belong to the variant and an unchanged variant is not compiled again.
    """
    from search_spaces.tensors import is_compiled

    _check_target(job)
    check_cpp_builds(cache_dir)
    compile_in_this_thread()
    with span("probe the vector instructions", "build", least_s=_LEAST_S):
        isa.probe_once(cache_dir)
    if isa.headers_precompilable():
        headers.share(cache_dir.resolve() / _HEADERS)
    else:
        isa.without_header_precompilation()
    linking.without_reading_torch(cache_dir.resolve() / _EMPTY)
    without_timing_guards()
    threads = kernel.cpu_threads(job.workload, job.config)
    tools = toolchain.inductor_toolchain()
    code = kernel.launch_hash()
    identity = [code, job.workload.as_dict(), dict(job.config), tools.build_key]
    folder = cache_dir / _VARIANTS / digest([*identity, threads], 32)
    with _fresh_compiler(folder), cpu_conditions(threads):
        inputs = kernel.make_inputs(job.workload, 1, "cpu")
        run = kernel.cpu_callable(job.workload, job.config)
        with span("first call", "build", least_s=_LEAST_S):
            run(inputs)
        whole = is_compiled(run) and _compiled_whole()
    binaries = sorted(folder.rglob("*.so"))
    caches = [p for top in ("fxgraph", "aotautograd") for p in (folder / top).rglob("*")]
    files = pack_files(folder, [*binaries, *(p for p in caches if p.is_file())], INDUCTOR)
    probes = isa.probe_file(cache_dir)
    if probes.is_file():
        files |= pack_files(probes.parent, [probes], ISA)
    return Artifact(
        config=dict(job.config),
        target=job.device.target,
        toolchain=tools,
        binary_hash=_identity(folder, job, [threads, code, _shapes(inputs)], whole=whole),
        facts=StaticFacts(binary_bytes=sum(path.stat().st_size for path in binaries)),
        files=files,
    )


def build_sample(folder: Path) -> None:
    """Compile a small function to C++ in an empty folder. Raises what Inductor raises."""
    import torch

    def sample(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    with _fresh_compiler(folder), cpu_conditions(1):
        torch.compile(sample, dynamic=False)(torch.zeros(64))


@contextmanager
def cpu_conditions(threads: int) -> Iterator[None]:
    """Run a CPU variant under the conditions of its build: `threads` threads, no gradients.

    Both are part of Inductor's cache key, so a runner calls variants inside this block.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _fresh_compiler(folder: Path) -> Iterator[None]:
    """Dynamo and Inductor without state of other variants, with their cache in `folder`."""
    import torch
    from torch._inductor import utils

    clear = getattr(utils, "clear_caches", None) or utils.clear_inductor_caches
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    clear()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with set_variables(TORCHINDUCTOR_CACHE_DIR=str(folder)):
            yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        torch._dynamo.reset()
        clear()


def _check_target(job: BuildJob) -> None:
    here = cpu_device().target
    if job.device.target != here:
        raise TunerError(
            f"a {here} machine cannot build for {job.device.target}",
            "use builders with the same kind of CPU as the runners",
        )


def _compiled_whole() -> bool:
    """Whether all of the variant was compiled since the reset, with no part left to Python."""
    from torch._dynamo.utils import counters

    frames = counters["frames"]
    return not counters["graph_break"] and frames["total"] == frames["ok"]


def _shapes(inputs: Mapping[str, torch.Tensor]) -> list[Any]:
    return [
        [name, f"{tensor.dtype}", list(tensor.shape), list(tensor.stride())]
        for name, tensor in sorted(inputs.items())
    ]


def _identity(folder: Path, job: BuildJob, called: list[Any], *, whole: bool) -> str:
    """Everything that determines a variant: generated C++ and its flags, call order, `called`.

    called: threads, the launches' code and the inputs' shapes. Code that is not compiled leaves no
    trace in the folder. Therefore revisions of the code never share a hash, and configs share one
    only if the `whole` variant is compiled. Inductor names a C++ file by a hash of its text and of
    the compiler's command line.
    """
    sha = hashlib.sha256()
    sources = sorted(folder.rglob("*.cpp"))
    for path in sources:
        sha.update(f"{path.name}\n".encode())
    for path in sorted(folder.rglob("*.py")):
        sha.update(_code_lines(path.read_text()).encode())
    run: list[Any] = [called, job.config.get("precision")]
    if not (sources and whole):
        run.append(config_key(job.config))
    sha.update(canonical_json(run).encode())
    return sha.hexdigest()


def _code_lines(text: str) -> str:
    """A generated wrapper without its comments, which contain positions in the kernel's source."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))

"""The variables of the environment that change what workers compile or time.

Two kinds are told apart. Switches that keep code from being compiled, or that the farm sets itself,
are left out of the environment of all workers. All other variables by which Triton, torch and their
libraries generate other code are part of the toolchain, so that results are kept by their values.
A variable of these libraries that is unknown here counts as one that changes the code.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

#: Folders of the compilers' caches below one cache folder.
TRITON = "triton"
INDUCTOR = "inductor"
#: Has Triton keep its host modules in the user's folder, see `workers.compiling.host_modules`.
HOST_MODULES = {"TRITON_CACHE_MANAGER": "workers.compiling.host_modules:HostModules"}
#: Variables that workers do not get, and what each would do to them.
LEFT_OUT: Mapping[str, str] = {
    "TRITON_INTERPRET": "Triton interprets instead of compiling",
    "TRITON_ALWAYS_COMPILE": "no launch finds its binary",
    "TRITON_KERNEL_OVERRIDE": "other binaries than those that were built are launched",
    "TRITON_STORE_BINARY_ONLY": "what is packed of a build is missing",
    "TORCH_COMPILE_DISABLE": "torch.compile runs code as it is",
    "TORCHDYNAMO_DISABLE": "torch.compile runs code as it is",
    "TORCHDYNAMO_SUPPRESS_ERRORS": "torch.compile runs code as it is after an error",
    "TORCH_COMPILE_OVERRIDE_BACKENDS": "torch.compile compiles with another compiler",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "no launch finds its binary",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "no launch finds its binary",
    "OMP_NUM_THREADS": "variants have their own numbers of threads",
    "OMP_THREAD_LIMIT": "variants have their own numbers of threads",
    "MKL_NUM_THREADS": "variants have their own numbers of threads",
}

_CHANGES_CODE = re.compile(
    # Triton, its compilers and assemblers
    r"TRITON_|MLIR_|LLVM_|AMDGCN_|NVPTX_|PTXAS_|USE_IR_LOC|DISABLE_(PTXAS|LLVM|MMA)"
    # torch and Inductor
    r"|TORCH|PYTORCH_|AOT_INDUCTOR|ATEN_|ENABLE_(PERSISTENT|TEMPLATE|TMA)"
    # compilers of C++ and libraries that variants and baselines call
    r"|(CPP|C|CXX|LD)FLAGS$|C(PLUS_INCLUDE_|_INCLUDE_)?PATH$|LIBRARY_PATH$|LD_PRELOAD$"
    r"|OMP_|GOMP_|KMP_(AFFINITY|BLOCKTIME|HW_SUBSET|LIBRARY)$|MKL_|DNNL_|ONEDNN_|CUBLAS|CUDNN_|NVIDIA_TF32"
    r"|CUDA_(LAUNCH_BLOCKING|FORCE_PTX_JIT|DISABLE_PTX_JIT|DEVICE_MAX_CONNECTIONS)$"
)
_WITHOUT_EFFECT = re.compile(
    # folders, logs and tools, whose versions are in the toolchain by themselves
    r".*_(VERSION|HOME|CACHE_DIR|DUMP|DUMP_\w+|VERBOSE|LOGS?|LOGS_\w+|TRACE|TIMING|TIMEOUT)$"
    r"|TRITON_(CACHE|PRINT|REMOTE|REDIS|PROTON|PROFILE|OVERRIDE_DIR|REPRODUCER)"
    r"|TRITON_(CUPTI|ROC|HSA|LIBCUDA|LIBHIP|CUDA|CUOBJDUMP|NVDISASM|PTXAS)\w*_(PATH|DIR|LIBRARY)$"
    r"|TRITON_(ENABLE_NVTX|ENABLE_LLVM_DEBUG|LLVM_DEBUG_ONLY|ENABLE_PYTHON_STACKTRACE)$"
    r"|TORCH_(CPP_LOG|SHOW_CPP|EXTENSIONS|CUDA_ARCH|NCCL|DISTRIBUTED|FR_)|TORCHELASTIC|TORCHX"
    r"|TORCHDYNAMO_REPRO|PYTORCH_(NVML|KERNEL_CACHE)|LLVM_(SYMBOLIZER|DISABLE_SYMB)|MLIR_CRASH"
    # what the farm sets
    r"|TORCHINDUCTOR_(COMPILE_THREADS|WORKER)|OMP_(WAIT_POLICY|DYNAMIC)$"
)


#: Folders of the caller: workers have their own, and Inductor fails where it cannot write to this
#: one when it is imported.
_FOLDERS = frozenset({"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"})
#: Compilers read and write sources in the encoding of the process, which the locale may set.
_UTF8 = {"PYTHONUTF8": "1"}
#: What `code_variables` is in a worker: libraries set further variables when they are imported.
_GIVEN = "TUNER_CODE_VARIABLES"


def for_workers(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of workers: without the variables that are left out, and in UTF-8."""
    dropped = LEFT_OUT.keys() | _FOLDERS
    kept = {name: value for name, value in environ.items() if name not in dropped}
    return {**kept, **_UTF8, _GIVEN: code_variables(environ)}


def code_variables(environ: Mapping[str, str] = os.environ) -> str:
    """The variables that change generated code, as `NAME=value NAME=value`, sorted by name."""
    if _GIVEN in environ:
        return environ[_GIVEN]
    return " ".join(
        f"{name}={value}"
        for name, value in sorted(environ.items())
        if _CHANGES_CODE.match(name) and not _WITHOUT_EFFECT.match(name) and name not in LEFT_OUT
    )


def remarks() -> list[str]:
    """One line for each variable that is set and left out."""
    return [
        f"{name} is set in the environment; workers run without it, since with it {effect}"
        for name, effect in LEFT_OUT.items()
        if os.environ.get(name, "0") not in ("", "0") and not name.endswith(_THREADS)
    ]


#: No remark: every shell of a cluster sets these, and results do not depend on them.
_THREADS = ("_NUM_THREADS", "_THREAD_LIMIT")


@contextmanager
def set_variables(**values: str) -> Iterator[None]:
    """Environment variables inside the block; restored afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

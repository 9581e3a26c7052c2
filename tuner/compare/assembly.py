"""Build a stored config again for the assembly of its kernels; needs no device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from results_db.stored_records import TaskInfo
from search_spaces import registry
from search_spaces.errors import TunerError
from search_spaces.kernel import Kernel
from search_spaces.records import Config
from tuner.compare.targets import find_spec
from tuner.settings.sections import Settings
from workers.compiling import disassemble, read_files
from workers.compiling.process_builder import ProcessBuilder
from workers.job_records import Artifact, BuildJob, Failure, KernelRef

_NONE = "Triton variants for GPUs have assembly"


def build_assembly(
    settings: Settings,
    base: Path,
    task: TaskInfo,
    config: Config,
    kernels: Mapping[str, Sequence[Kernel]],
) -> tuple[str, dict[str, str]]:
    """The hash of the machine code, and texts by their files' names: PTX and SASS, or AMD's.

    kernels: declarations by name, which precede registered names. Raises `TunerError` where the
    kernel's code is no longer that of the task, or the config does not build here.
    """
    key, paths = task.key, (f"{base.resolve()}",)
    spec = find_spec(key.kernel, key.device.kind, kernels, key.launch_hash)
    if registry.load(spec, paths, key.device).launch_hash() != key.launch_hash:
        raise TunerError(
            f"the code of {key.kernel} has changed since run {task.run_id}",
            "check out the revision of that run; `tuner show` of the run has it",
        )
    options = {key.device.kind: settings.pool.options_of(key.device.kind)}
    timeout_s = settings.pool.build_timeout
    ref = KernelRef(spec, paths)
    job = BuildJob("assembly", ref, key.workload, config, key.device, timeout_s, assembly=True)
    builder = ProcessBuilder(options, paths=paths)
    try:
        artifact = builder.build(job)
    finally:
        builder.close()
    if isinstance(artifact, Failure):
        raise TunerError(f"it does not build here: {artifact.status}: {artifact.message}", "")
    texts = dict(_read_texts(artifact))
    if not texts:
        raise TunerError(f"builds for {key.device.target} have no assembly", _NONE)
    return artifact.binary_hash, texts


def _read_texts(artifact: Artifact) -> Iterator[tuple[str, str]]:
    for suffix in (".ptx", ".amdgcn"):
        for name, text in read_files(artifact, suffix).items():
            yield name, text.decode(errors="replace")
    for name, cubin in read_files(artifact, ".cubin").items():
        if sass := disassemble(cubin):
            yield f"{name.removesuffix('.cubin')}.sass", sass

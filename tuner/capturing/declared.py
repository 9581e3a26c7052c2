"""Captured calls as a kernel that every worker process can import.

A worker finds a kernel by `file.py:object`. So the calls are written to a Python file, whose
`kernel` is made from them. The file is data: a JSON text and one import of the library's module.
"""

from __future__ import annotations

import atexit
import json
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from search_spaces.adoption.autotuned import AutotuneParts
from search_spaces.atomic_file import write_output
from search_spaces.declaration.launch_arguments import known_options
from search_spaces.errors import KernelError, TunerError
from search_spaces.records import digest
from search_spaces.registry import refuse_nested
from search_spaces.size_range import Range
from tuner.capturing.call_kernel import CallKernel, Declared, workload_of_call
from tuner.capturing.call_records import Call
from tuner.capturing.checked_calls import check_place
from tuner.capturing.files import as_json, from_json
from tuner.capturing.lowering import lower
from tuner.capturing.places import NoPlace, load_place, place_of
from tuner.capturing.probe import probe
from tuner.capturing.recorder import parts_of
from tuner.capturing.sized_calls import read_ranges
from tuner.capturing.sorting import correct, sort_call
from tuner.capturing.widening import Opened, check_space

_FILE = '''"""Calls captured by tuner.capture(). Written by tuner; do not edit."""

import sys

sys.path += [folder for folder in {folders!r} if folder not in sys.path]
{imports}from tuner.capturing.declared import kernel_of

kernel = kernel_of(
    {text!r}
)
'''


class NoDevice(TunerError):
    """Calls cannot run in this process."""


def declare(
    captured: Sequence[Call],
    contents: Mapping[str, bytes],
    opened: Opened,
    reference: Callable[..., Any] | None,
    tolerance: float | None,
    folder: Path | None,
    free: Sequence[str] = (),
    sizes: Sequence[str] = (),
    ranges: Mapping[str, Any] | None = None,
) -> CallKernel:
    """The kernel of captured calls, with a file in a folder by which other processes find it."""
    refuse_nested("tuning a captured call")
    where = f"captured kernel {captured[0].kernel}"
    calls = []
    for call in captured:
        if not call.problem:
            parts = parts_of(load_place(call.place), call)
            _check_options(call, parts)
            if call.written is None:
                call = probe(call, parts, contents, device_here())
            call = _sort(call, parts)
            check_space(call, parts, opened)
        if call.problem:
            raise KernelError(f"{where}: {call.problem}", "docs/capture.md lists what is captured")
        calls.append(_without_measurements(call))
    own_place = ""
    if reference is not None:
        try:
            own_place = place_of(reference)
        except NoPlace as problem:
            raise KernelError(
                f"{where}: {problem}", "put reference= at the top level of a module or script"
            ) from None
    distinct = _distinct(correct(calls, free, sizes), opened, captured)
    chosen = read_ranges(where, ranges or {})
    declared = Declared(tuple(distinct), opened, own_place, tolerance, contents, chosen)
    return write_kernel(declared, folder)


def write_kernel(declared: Declared, folder: Path | None) -> CallKernel:
    """The kernel of declared calls, with a file in a folder by which other processes find it."""
    text = _as_text(declared)
    kernel = kernel_of(text)
    with suppress(NoDevice):  # where calls of a file are tuned for a GPU that is elsewhere
        kernel.check_ends(device_here)
    kernel.spec = f"{_write_declaration(kernel.name, kernel.place, text, folder)}:kernel"
    return kernel


def kernel_of(text: str) -> CallKernel:
    """The kernel that a declaration file describes."""
    found = json.loads(text)
    calls, contents = from_json(found["calls"], "captured calls")
    ranges = {name: Range.from_json(sizes) for name, sizes in found["ranges"].items()}
    opened, reference_place = Opened(**found["opened"]), found["reference"]
    declared = Declared(calls, opened, reference_place, found["tolerance"], contents, ranges)
    first = calls[0]
    parts = parts_of(load_place(first.place), *calls)
    reference = load_place(declared.reference) if declared.reference else None
    return CallKernel(parts, declared, reference, write_kernel)


def device_here() -> str:
    """torch's name of the device on which calls are tried: the GPU, or the CPU in Triton's
    interpreter. Raises `NoDevice` where there is neither."""
    import torch
    import triton

    if triton.knobs.runtime.interpret:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    raise NoDevice(
        "captured calls must run once more before they are tuned, and there is no GPU here",
        "write them to a file with `tuner capture -o calls.json -- python ...` where they were "
        "captured: that runs them",
    )


def probe_calls(calls: Iterable[Call], contents: Mapping[str, bytes]) -> list[Call]:
    """The calls with what they write, or with the problem that keeps them from being tuned."""
    found = []
    for call in calls:
        if not call.problem and call.written is None:
            try:
                parts = parts_of(load_place(call.place), call)
                call = _sort(probe(call, parts, contents, device_here()), parts)
            except TunerError as problem:
                call = call.with_problem(problem.message)
        found.append(call)
    return found


def sort_loaded(calls: Iterable[Call]) -> list[Call]:
    """The calls with their free arguments, where this process has imported the kernel."""
    found = []
    for call in calls:
        where = call.place.rpartition(":")[0]
        if call.free is None and not call.problem and (where in sys.modules or is_main(where)):
            with suppress(TunerError):
                call = _sort(call, parts_of(load_place(call.place), call))
        found.append(call)
    return found


def _sort(call: Call, parts: AutotuneParts) -> Call:
    return sort_call(call, parts, lambda: lower(call, parts))


def is_main(file: str) -> bool:
    """Whether a file is the running script."""
    own = getattr(sys.modules.get("__main__"), "__file__", None)
    return own is not None and file == f"{Path(own).resolve()}"


def _check_options(call: Call, parts: AutotuneParts) -> None:
    """Raise `KernelError` in one line for an option that this Triton's compilers do not know."""
    import triton

    given = [call.options, call.default or {}, *parts.configs]
    names = {name for config in given for name in config} - {*parts.arg_names, "ir_override"}
    unknown = sorted(names - known_options("cuda") - known_options("hip"))
    if unknown:
        raise KernelError(
            f"captured kernel {call.kernel}: Triton {triton.__version__} does not know the option "
            f"{', '.join(unknown)} that its library sets",
            "tune it with the Triton that the library is made for",
        )


def _without_measurements(call: Call) -> Call:
    """A call without what differs from one capture to the next and affects nothing."""
    overwritten = {each.buffer for each in call.written or () if not each.updated}
    buffers = tuple(
        replace(buffer, values=None, contents="") if at in overwritten else buffer
        for at, buffer in enumerate(call.buffers)
    )
    return replace(call, count=1, gpu_us=None, buffers=buffers)


def _distinct(calls: Sequence[Call], opened: Opened, captured: Sequence[Call]) -> list[Call]:
    """One call per workload; of several that differ in compiler options, the most frequent."""
    found: dict[Any, tuple[int, Call]] = {}
    for call, recorded in zip(calls, captured, strict=True):
        parts = parts_of(load_place(call.place), call)
        workload = workload_of_call(call, opened.names(parts))
        other = found.get(workload)
        if other is None or recorded.count > other[0]:
            found[workload] = recorded.count, call
    return [call for _, call in found.values()]


def _as_text(declared: Declared) -> str:
    return json.dumps(
        {
            "calls": as_json(declared.calls, declared.contents),
            "opened": asdict(declared.opened),
            "reference": declared.reference,
            "tolerance": declared.tolerance,
            "ranges": {name: sizes.to_json() for name, sizes in declared.ranges.items()},
        }
    )


def _write_declaration(name: str, place: str, text: str, folder: Path | None) -> Path:
    """The path of a declaration file; equal calls have one file."""
    check_place(place)
    module = place.rpartition(":")[0]
    imports = "" if module.endswith(".py") else f"import {module}\n"
    stem = re.sub(r"\W", "_", name).strip("_")[:80]
    file = (folder or _folder()) / f"{stem}_{digest(text)}.py"
    content = _FILE.format(folders=_folders_of(module), imports=imports, text=text)
    if not file.is_file() or file.read_text(encoding="utf-8") != content:
        write_output(file, content.encode(), "name another folder")
    return file.resolve()


def _folders_of(module: str) -> list[str]:
    """The folder that a module is imported from, unless it is installed."""
    if module.endswith(".py"):
        return []
    top = sys.modules.get(module.partition(".")[0])
    files = [getattr(top, "__file__", None), *getattr(top, "__path__", [])]
    folders = {f"{Path(file).resolve().parent}" for file in files[1:] or files if file}
    installed = {f"{Path(path).resolve()}" for path in sysconfig.get_paths().values()}
    return sorted(folders - installed)


@cache
def _folder() -> Path:
    """A folder for the declarations of this process."""
    found = tempfile.mkdtemp(prefix="tuner-calls-")
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    return Path(found)

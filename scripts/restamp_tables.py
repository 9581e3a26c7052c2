"""Give committed tables the identity of today's code, where it launches what the old code launched.

    python scripts/restamp_tables.py [--grown] OLD_REVISION TABLE...

For every entry of a table, the variants of the old revision and of the working tree are compiled
for the table's target with this machine's Triton. A table is rewritten only if, for all entries,

- the enumerated configs of the search space are the same, in the same order; with --grown, the new
  space may have further ones,
- the launches have the same function, grid, arguments and options,
- the binaries are the same in every section that the device executes,
- the inputs, the reference and the output of the baseline `eager` are the same, bit by bit, on the
  kernel's small workload, and so are the tolerance and the names of the baselines,

and if the hashes of the device code are the same; with --grown, there may be further ones. The
times in a table stay true then. Nothing is written for a table that fails; the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Compare, report one line a table, rewrite those that are equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="git revision whose code the tables are stamped with")
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--grown", action="store_true", help="the new space has further configs")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="tuner-restamp-") as scratch:
        old = Path(scratch) / "old"
        unpack(options.revision, old)
        for path in options.tables:
            before, after = evidence(old, path), evidence(ROOT, path)
            if options.grown:
                without_further(before, after)
            differing = [key for key in before["entries"] if not same(before, after, key)]
            equal_code = before["kernel_hashes"] == after["kernel_hashes"]
            if differing or not equal_code or not before["entries"]:
                failed = True
                print(f"{path}: not rewritten, differs for {differing or 'its device code'}")
                continue
            count = sum(len(entry["launches"]) for entry in before["entries"].values())
            restamp(path, after)
            print(f"{path}: {len(before['entries'])} entries, {count} equal launches and binaries")
    return int(failed)


def unpack(revision: str, folder: Path) -> None:
    """The files of a revision, under `folder`."""
    archive = subprocess.run(
        ["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def evidence(tree: Path, table: Path) -> dict[str, Any]:
    """What the code of `tree` makes of each entry of a table, computed in a fresh process."""
    paths = [f"{tree}", f"{ROOT / 'scripts'}"]
    code = (
        f"import sys; sys.path[:0] = {paths!r}; "
        "import restamp_tables; restamp_tables.examine(sys.argv[1])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, f"{table.resolve()}"],
        cwd=tree,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def same(before: dict[str, Any], after: dict[str, Any], key: str) -> bool:
    """Whether both trees make the same of one entry."""
    return before["entries"][key] == after["entries"].get(key)


def without_further(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Leave out of `after` the configs and the device code that `before` does not have."""
    for key, entry in after["entries"].items():
        known = set(before["entries"].get(key, {"configs": ()})["configs"])
        entry["configs"] = [config for config in entry["configs"] if config in known]
    known = set(before["kernel_hashes"])
    after["all_kernel_hashes"] = after["kernel_hashes"]
    after["kernel_hashes"] = [code for code in after["kernel_hashes"] if code in known]


def restamp(path: Path, after: dict[str, Any]) -> None:
    """Rewrite a table with the identity of today's code; nothing else in it changes."""
    from tuner.runtime import read
    from tuner.tables.text import text_of

    hashes = {name: after[name] for name in ("launch_hash", "check_hash", "space_hash")}
    codes = tuple(after.get("all_kernel_hashes", after["kernel_hashes"]))
    table = replace(read(path), **hashes, kernel_hashes=codes)
    path.write_text(text_of(table))


# -- in the process of one tree --------------------------------------------------------------------
def examine(path: str) -> None:
    """Print, as JSON, the identity of a table's kernel and the evidence for each entry."""
    from search_spaces import registry
    from search_spaces.records import Device, Workload, canonical_json, digest

    table = json.loads(Path(path).read_text())
    kernel = registry.load(kernel_spec(Path(path), table["kernel"]["name"]))
    facts = {name: value for name, value in table["device"].items() if name != "fingerprint"}
    device = Device(**facts, registers=65536)
    entries = {}
    hashes = set()
    for entry in table["entries"]:
        workload = Workload.from_mapping(entry["key"])
        bound = kernel.space(workload).bind(workload, device)
        hashes.add(kernel.space_hash(workload))
        entries[workload.key] = {
            "configs": [digest(sorted(config.items())) for config in bound.enumerate()],
            "launches": [
                compiled(launch, device.target)
                for config in (entry["config"], *entry["tie_set"])
                for launch in kernel.launches(workload, config, tensors(kernel, workload, config))
            ],
            "checked": checked(kernel, workload),
        }
    joint = next(iter(hashes)) if len(hashes) == 1 else digest(sorted(hashes))
    result = {
        "launch_hash": kernel.launch_hash(),
        "check_hash": kernel.check_hash(),
        "space_hash": joint,
        "kernel_hashes": list(kernel.kernel_hashes()),
        "entries": entries,
    }
    print(canonical_json(result))


def kernel_spec(table: Path, name: str) -> str:
    """The declaration of a table's kernel: of the example library, or a registered name."""
    if "kernel_library" not in table.parts:
        return name
    return f"examples/kernel_library/kernel_library/tuning.py:{name}"


def tensors(kernel: Any, workload: Any, config: Any) -> dict[str, Any]:
    """Inputs, outputs and scratch of a variant on the `meta` device."""
    from search_spaces.tensors import empty_tensors

    specs = {**kernel.outputs(workload), **kernel.scratch(workload, config)}
    return {**kernel.make_inputs(workload, 0, "meta"), **empty_tensors(specs, "meta")}


def checked(kernel: Any, workload: Any) -> dict[str, Any]:
    """What a variant of the workload is verified with, computed on this machine's processor."""
    small = kernel.small_workload(workload)
    baselines = kernel.baselines(workload)
    values: list[str] = []
    for seed in (1, 2):
        inputs = kernel.make_inputs(small, seed, "cpu")
        found = [inputs, kernel.reference(small, inputs), kernel.baselines(small)["eager"](inputs)]
        values += [bits(group[name]) for group in found for name in sorted(group)]
    return {
        "small": small.key,
        "tolerance": repr(kernel.tolerance(workload)),
        "baselines": sorted(baselines),
        "values": values,
    }


def bits(tensor: Any) -> str:
    """A digest of a tensor's shape, dtype and values."""
    import torch

    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(f"{tensor.dtype}{list(tensor.shape)}".encode() + data).hexdigest()


def compiled(launch: Any, target: str) -> dict[str, Any]:
    """A launch as text, and a digest of its binary for the target."""
    import triton

    triton.runtime.driver.set_active(OfflineDriver(target))
    built = launch.fn.warmup(*launch.args, grid=launch.grid, **launch.kwargs)
    return {
        "function": launch.fn.__name__,
        "grid": list(launch.grid),
        "arguments": [shown(value) for value in launch.args],
        "options": {name: shown(value) for name, value in sorted(launch.kwargs.items())},
        "binary": executed(built.asm["cubin"]),
    }


def shown(value: Any) -> str:
    """An argument as text: of a tensor its shape, dtype and strides, of a descriptor its fields."""
    if hasattr(value, "stride"):
        return f"{value.dtype}{list(value.shape)} by {list(value.stride())}"
    if hasattr(value, "block_shape"):
        fields = [list(value.shape), list(value.strides), list(value.block_shape)]
        return f"descriptor of {shown(value.base)} {fields}"
    return f"{type(value).__name__} {value!r}"


def executed(cubin: bytes) -> str:
    """A digest of a cubin without the sections that hold file names and line numbers."""
    from elftools.elf.elffile import ELFFile

    sha = hashlib.sha256()
    for section in ELFFile(io.BytesIO(cubin)).iter_sections():
        name = section.name
        if ".debug" in name or "nv_debug" in name or name in (".strtab", ".shstrtab", ".symtab"):
            continue
        sha.update(name.encode() + section.data())
    return sha.hexdigest()


class OfflineDriver:
    """Triton's driver for a GPU that this machine does not have."""

    def __init__(self, target: str) -> None:
        from triton.backends.compiler import GPUTarget

        kind, _, capability = target.partition(":")
        self._target = GPUTarget(kind, int(capability), 32)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


if __name__ == "__main__":
    sys.path.insert(0, f"{ROOT}")
    sys.exit(main())

"""Give committed tables the identity of today's code, where it launches what the old code launched.

    python scripts/restamp_tables.py [--grown] [--changed-code] OLD_REVISION TABLE...

For every entry of a table, the variants of the old revision and of the working tree are compiled
for the table's target with this machine's Triton. A table is rewritten only if, for all entries,

- the enumerated configs of the search space are the same, in the same order; with --grown, the new
  space may have further ones,
- the launches of the entry's configs and of the default config have the same function, grid,
  arguments and options,
- the binaries are the same in every section that the device executes,
- the inputs, the reference and the output of the baseline `eager` are the same, bit by bit, on the
  kernel's small workload, and so are the tolerance and the names of the baselines,

and if the hashes of the device code are the same; with --grown, there may be further ones. The
times in a table stay true then. Nothing is written for a table that fails; the exit code is 1.

With --changed-code, the device code's source may differ, and the names of functions and options:
an entry then stands by its own grids, arguments and binaries. The entries that pass are rewritten
with today's identity. Those that fail leave the table, each named, with exit code 1; they have to
be measured again. A table without an entry that passes is not rewritten.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from compiled_launches import ROOT, in_tree, launches, unnamed, unpack

#: Of a multiprocessor of every GPU that tables are of; they do not record it.
_REGISTERS = 65536
#: The folder from which the example library imports itself.
_EXAMPLE = "examples/kernel_library"


def main() -> int:
    """Compare, report one line a table, rewrite those that are equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="git revision whose code the tables are stamped with")
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--grown", action="store_true", help="the new space has further configs")
    parser.add_argument(
        "--changed-code", action="store_true", help="entries with equal binaries pass, others leave"
    )
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory(prefix="tuner-restamp-") as scratch:
        old = Path(scratch) / "old"
        unpack(options.revision, old)
        for path in options.tables:
            before, after = evidence(old, path), evidence(ROOT, path)
            if options.grown:
                without_further(before, after)
            failed |= not judge(path, before, after, options.changed_code)
    return int(failed)


def evidence(tree: Path, table: Path) -> dict[str, Any]:
    """What the code of `tree` makes of each entry of a table, computed in a fresh process."""
    return in_tree(tree, "restamp_tables", "examine", f"{table.resolve()}")


def judge(path: Path, before: dict[str, Any], after: dict[str, Any], changed_code: bool) -> bool:
    """Rewrite a table where it may be, and say what was equal; True where all of it was."""
    differing = [key for key in before["entries"] if not same(before, after, key, changed_code)]
    equal = [key for key in before["entries"] if key not in differing]
    equal_code = changed_code or before["kernel_hashes"] == after["kernel_hashes"]
    if not equal or not equal_code or (differing and not changed_code):
        print(f"{path}: not rewritten, differs for {differing or 'its device code'}")
        return False
    restamp(path, after, set(equal))
    count = sum(len(before["entries"][key]["launches"]) for key in equal)
    print(f"{path}: {len(equal)} entries, {count} equal launches and binaries")
    for key in differing:
        print(f"{path}: left out, differs: {key}")
    return not differing


def same(before: dict[str, Any], after: dict[str, Any], key: str, changed_code: bool) -> bool:
    """Whether both trees make the same of one entry, apart from names where the code may change."""
    old, new = before["entries"][key], after["entries"].get(key)
    if not changed_code or new is None:
        return bool(old == new)
    return bool(
        {**old, "launches": unnamed(old["launches"])}
        == {**new, "launches": unnamed(new["launches"])}
    )


def without_further(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Leave out of `after` the configs and the device code that `before` does not have."""
    for key, entry in after["entries"].items():
        known = set(before["entries"].get(key, {"configs": ()})["configs"])
        entry["configs"] = [config for config in entry["configs"] if config in known]
    known = set(before["kernel_hashes"])
    after["all_kernel_hashes"] = after["kernel_hashes"]
    after["kernel_hashes"] = [code for code in after["kernel_hashes"] if code in known]


def restamp(path: Path, after: dict[str, Any], equal: set[str]) -> None:
    """Rewrite a table with the identity of today's code, its equal entries and their sizes."""
    from search_spaces import registry
    from search_spaces.records import Device, Workload
    from tuner.runtime import read
    from tuner.tables.text import text_of
    from tuner.tables.valid_sizes import renew_sizes, rule_of

    hashes = {name: after[name] for name in ("launch_hash", "check_hash", "space_hash")}
    codes = tuple(after.get("all_kernel_hashes", after["kernel_hashes"]))
    old = read(path)
    kernel = registry.load(kernel_spec(path, old.kernel), [_EXAMPLE])
    facts = asdict(old.device)
    del facts["fingerprint"]
    device = Device(**facts, registers=_REGISTERS)
    entries = tuple(
        renew_sizes(kernel, device, entry, entry)
        for entry in old.entries
        if Workload.from_mapping(entry.key).key in equal
    )
    new = replace(old, **hashes, kernel_hashes=codes, entries=entries, rule=rule_of(entries))
    path.write_text(text_of(new))


# -- in the process of one tree --------------------------------------------------------------------
def examine(path: str) -> None:
    """Print, as JSON, the identity of a table's kernel and the evidence for each entry."""
    from search_spaces import registry
    from search_spaces.records import Device, Workload, canonical_json, digest

    table = json.loads(Path(path).read_text())
    kernel = registry.load(kernel_spec(Path(path), table["kernel"]["name"]), [_EXAMPLE])
    facts = {name: value for name, value in table["device"].items() if name != "fingerprint"}
    device = Device(**facts, registers=_REGISTERS)
    entries = {}
    hashes = set()
    for entry in table["entries"]:
        workload = Workload.from_mapping(entry["key"])
        bound = kernel.space(workload).bind(workload, device)
        default = kernel.default_config(workload, device)
        hashes.add(kernel.space_hash(workload))
        entries[workload.key] = {
            "configs": [digest(sorted(config.items())) for config in bound.enumerate()],
            "launches": [
                launch
                for config in (default, entry["config"], *entry["tie_set"])
                for launch in launches(kernel, workload, config, device.target)
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
    declared = name.title().replace("_", "")
    return f"{_EXAMPLE}/kernel_library/tuning.py:{declared}"


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


if __name__ == "__main__":
    sys.path.insert(0, f"{ROOT}")
    sys.exit(main())

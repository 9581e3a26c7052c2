"""Run configs at sizes where they are valid and a search would not try them; compare with float64.

For every built-in GPU family, workloads are moved to other sizes, odd and prime ones among them,
and get configs drawn from the spaces of the family's listed workloads. Those that `why_invalid`
accepts and `why_not` refuses are launched, and compared with the reference by a loop of this
script's own. On a GPU sizes are up to 4 times those of the listed workloads; without one they are
those of the interpreter's check sizes. Prints one JSON object to stdout.

    TRITON_INTERPRET=1 python benchmarks/valid_configs.py > results/valid_configs.json
"""

import argparse
import json
import platform
import random
import sys
import time
from datetime import UTC, datetime

import torch
import triton

from search_spaces.errors import TunerError
from search_spaces.registry import BUILT_IN, compiles_without_torch, load
from search_spaces.shape_tensor import torch_dtype
from workers import host
from workers.backend_kinds import spec
from workers.backends.interpreter.arithmetic import extend

GPU = torch.cuda.is_available()
PLACE = "cuda" if GPU else "cpu"
#: What a launch may take of memory, inputs and outputs together.
MOST_BYTES = 2**32


def moved(kernel, workload, rng):
    """The workload at other sizes: near those of another listed one or of its check size."""
    other = rng.choice(list(kernel.workloads()))
    sizes = (other if GPU else kernel.small_workload(other)).as_dict()
    found = {}
    for name, size in sizes.items():
        if type(size) is int and name in workload:
            scale = 2.0 ** rng.uniform(-4, 2) if GPU else 1
            found[name] = max(1, int(size * scale) + rng.choice((-3, -1, 0, 0, 1, 2, 5)))
    return workload.with_dims(**found)


def foreign(kernel, device, rng):
    """A workload and a config of another one that is valid there and no point of its space."""
    source = rng.choice(list(kernel.workloads()))
    target = moved(kernel, source, rng)
    kernel.check_workload(target)
    if kernel.cost(target).bytes > MOST_BYTES:
        return None
    bound = kernel.space(target).bind(target, device)
    for config in kernel.space(source).bind(source, device).sample(rng):
        in_gluon = "gluon" in config.values()
        known = bound.why_invalid(config) is None and bound.why_not(config) is not None
        if known and (GPU or not in_gluon):
            return target, config
    return None


def is_right(kernel, workload, config):
    """Whether all outputs are within the tolerance, on inputs that stay as they are."""
    inputs = dict(kernel.make_inputs(workload, 1, PLACE))
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    tensors = dict(inputs)
    for name, item in {**kernel.outputs(workload), **kernel.scratch(workload, config)}.items():
        poison = torch.full(item.shape, float("nan"), device=PLACE)
        tensors[name] = poison.to(torch_dtype(item.dtype))
    for launch in kernel.launches(workload, config, tensors):
        launch.fn[launch.grid](*launch.args, **launch.kwargs)
    tolerance = kernel.tolerance(workload)
    for name, expected in kernel.reference(workload, inputs).items():
        got, exact = tensors[name].double(), expected.double()
        off = (got - exact).abs()
        relative = float((got - exact).norm() / exact.norm()) if exact.norm() else float(off.max())
        elementwise = float((off / (1 + exact.abs())).max())
        if not (relative <= tolerance.relative and elementwise <= tolerance.elementwise):
            return False
    return all(torch.equal(before[name], inputs[name]) for name in inputs)


def judge(kernel, device, count, seconds, rng):
    """Counts of one family, and what was wrong."""
    tried, right, refused, wrong = set(), 0, 0, []
    end = time.monotonic() + seconds
    while len(tried) < count and time.monotonic() < end:
        try:
            found = foreign(kernel, device, rng)
        except TunerError:
            continue
        if found is None or (key := f"{found[0].key} {found[1]}") in tried:
            continue
        tried.add(key)
        try:
            passed = is_right(kernel, *found)
        except triton.runtime.errors.OutOfResources:
            refused += 1
            continue
        right += passed
        if not passed:
            wrong.append({"workload": found[0].as_dict(), "config": found[1]})
    return {"configs": len(tried), "right": right, "refused": refused, "wrong": wrong}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--configs", type=int, default=50, help="of each family")
    parser.add_argument("--seconds", type=float, default=20, help="for each family")
    options = parser.parse_args()
    if not GPU:
        extend()
        torch.set_num_threads(1)
    cuda = spec("cuda")
    device = cuda.find_devices()[0] if GPU else cuda.offline(cuda.usual_target)
    names = options.kernels or sorted(filter(compiles_without_torch, BUILT_IN))
    families = {}
    for name in names:
        families[name] = judge(
            load(name), device, options.configs, options.seconds, random.Random(7)
        )
        print(name, {**families[name], "wrong": len(families[name]["wrong"])}, file=sys.stderr)
    total = {
        name: sum(family[name] for family in families.values())
        for name in ("configs", "right", "refused")
    }
    result = {
        "what": "configs that are valid at a size whose own search would not try them",
        "run by": device.name if GPU else f"Triton's interpreter on {host.cpu_device().name}",
        "target": device.target,
        "toolchain": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": triton.__version__,
        },
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "total": total,
        "families": families,
    }
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()

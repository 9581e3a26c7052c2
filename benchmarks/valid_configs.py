"""Run configs at sizes where they are valid and a search would not try them; compare with float64.

Configs of each GPU family's listed workloads that `why_invalid` accepts and `why_not` refuses at
another size, odd and prime ones among them, are launched there, and compared by a loop of this
script's own. Sizes are up to 4 times those listed; without a GPU, those of the check sizes.

    TRITON_INTERPRET=1 python benchmarks/valid_configs.py > results/valid_configs.json
"""

import argparse
import json
import random
import sys
import time
from contextlib import suppress

import torch
from matmul_tasks import facts
from triton.runtime.errors import OutOfResources

from search_spaces.errors import TunerError
from search_spaces.registry import BUILT_IN, compiles_without_torch, load
from search_spaces.shape_tensor import torch_dtype
from workers import host
from workers.backend_kinds import spec
from workers.backends.interpreter.arithmetic import extend, uninterpretable

GPU = torch.cuda.is_available()
PLACE = "cuda" if GPU else "cpu"
#: What a launch may take of memory, inputs and outputs together.
MOST_BYTES = 2**32


def move_sizes(kernel, workload, rng):
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
    target = move_sizes(kernel, source, rng)
    kernel.check_workload(target)
    if kernel.cost(target).bytes > MOST_BYTES:
        return None
    bound = kernel.space(target).bind(target, device)
    (config,) = kernel.space(source).bind(source, device).sample(rng)
    known = bound.why_invalid(config) is None and bound.why_not(config) is not None
    return (target, config) if known and (GPU or "gluon" not in config.values()) else None


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
    tried, right, refused, wrong, found = set(), 0, 0, [], None
    end = time.monotonic() + seconds
    while len(tried) < count and time.monotonic() < end:
        with suppress(TunerError):
            found = foreign(kernel, device, rng)
        if found is None or (key := f"{found[0].key} {found[1]}") in tried:
            continue
        tried.add(key)
        try:
            passed = is_right(kernel, *found)
        except Exception as error:
            if isinstance(error, OutOfResources) or uninterpretable(error):
                refused += 1
                continue
            passed = False
        right += passed
        wrong += [] if passed else [[found[0].as_dict(), found[1]]]
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
        print(name, families[name], file=sys.stderr)
    result = {
        "what": "configs that are valid at a size whose own search would not try them",
        "run by": device.name if GPU else "Triton's interpreter",
        "target": device.target,
        "host": host.cpu_device().name,
        "toolchain": facts(),
        **{n: sum(f[n] for f in families.values()) for n in ("configs", "right", "refused")},
        "families": families,
    }
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()

"""All kernels under `@triton.autotune` in installed packages, with our decorator in its place.

Every module of the packages that mentions autotune is imported twice, in processes of their own:
with Triton's decorator, and with `tuner.runtime.autotune` in its place. A kernel is importable if
the second import makes it too. Then each kernel is launched without a table under both decorators,
with made-up arguments. These must be equal: the calls of the jitted function with all arguments and
configs, the contents of all tensors afterwards (which hooks change), the chosen configs, any error.
The jitted function itself does not run for that. Kernels of `tests/adopted`, whose arguments are
known, run in Triton's interpreter under both decorators; their outputs must have equal bits. Prints
one JSON object to stdout. Takes about three minutes.

    python benchmarks/survey_autotuned.py > results/survey_autotuned.json
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import platform
import re
import subprocess
import sys
import warnings
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

#: Packages on PyPI and what they import as.
PACKAGES = {
    "cut-cross-entropy": "cut_cross_entropy",
    "fla-core": "fla",
    "liger-kernel": "liger_kernel",
    "torchao": "torchao",
    "xformers": "xformers",
}
MENTION = re.compile(r"autotune\(")
#: Decorators of packages that make a subclass of Triton's Autotuner.
DECORATORS = {"fla": ("fla.ops.utils.cache", "fla_cache_autotune")}
#: Where kernels are declared with true arguments, for launches in Triton's interpreter.
ADOPTED = Path(__file__).resolve().parents[1] / "tests" / "adopted"


def modules_of(package):
    """The package's modules that mention autotune."""
    spec = importlib.util.find_spec(package)
    for folder in spec.submodule_search_locations or ():
        for path in sorted(Path(folder).rglob("*.py")):
            if MENTION.search(path.read_text(errors="replace")):
                parts = path.relative_to(Path(folder).parent).with_suffix("").parts
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(package, ours):
    """Import the package's modules under one decorator: its kernels, and errors by module."""
    import triton
    from triton.runtime import autotuner

    from tuner import runtime
    from tuner.runtime._import_watch import ImportWatch

    made = []

    def recorder(plain):
        def recording(*args, **options):
            decorate = runtime.autotune(*args, **options) if ours else plain(*args, **options)

            def decorated(fn):
                kernel = decorate(fn)
                made.append((kernel, fn, args, options))
                return kernel

            return decorated

        return recording

    plain = autotuner.autotune
    triton.autotune = triton.runtime.autotune = autotuner.autotune = recorder(plain)
    if package in DECORATORS:
        module, name = DECORATORS[package]

        def replace(_, holder):
            setattr(holder, name, recorder(getattr(holder, name)))

        ImportWatch(replace, lambda: None).watch(frozenset([module]))
    errors = {}
    for module in modules_of(package):
        try:
            importlib.import_module(module)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            errors[module] = re.sub(r"[^\s(]*/site-packages/", "", text)[:200]
    return made, errors


# -- launches --------------------------------------------------------------------------------------
def named(fn):
    """The function under the decorators."""
    while not inspect.isfunction(fn):
        fn = fn.fn
    return fn


def jitted(fn):
    while not inspect.isfunction(fn.fn):
        fn = fn.fn
    return fn


def layers(fn):
    while not inspect.isfunction(fn):
        yield fn
        fn = fn.fn


def arguments(kernel, fn, options, seed):
    """Made-up arguments: integers for keys and constants, tensors for all else."""
    import torch

    configs = kernel.configs
    computed = {name for layer in layers(fn) for name in getattr(layer, "values", ())}
    tuned = {name for config in configs for name in config.kwargs}
    tensors = {*kernel.reset_to_zero, *kernel.restore_value}
    found = {}
    for at, (name, parameter) in enumerate(inspect.signature(named(fn)).parameters.items()):
        if name in tuned or name in computed:
            continue
        constant = "constexpr" in str(parameter.annotation)
        if name not in tensors and (constant or name in kernel.keys):
            found[name] = 16 << seed
        else:
            found[name] = torch.full((8,), float(at + seed))
    return found


def text_of(value):
    """An argument of a call as text; a tensor by its contents."""
    return f"tensor {value.tolist()}" if hasattr(value, "tolist") else f"{value!r:.200}"


def trace(make, fn, options):
    """What three launches without a table do: one key twice, and another."""
    import torch

    kernel, events = make(), []
    jit = jitted(fn)
    plain_run = jit.__dict__.get("run")
    timings = iter(range(10**6))

    def run(*args, **kwargs):
        kwargs = {k: text_of(v) for k, v in sorted(kwargs.items()) if k != "grid"}
        events.append(("run", [text_of(v) for v in args], kwargs))

    def bench(call, quantiles):
        call()
        return [float(-next(timings))] * 3  # the last config wins

    jit.run = run
    kernel._do_bench = bench
    try:
        for seed in (0, 0, 1):
            given = arguments(kernel, fn, options, seed)
            try:
                kernel[(1,)](**given)
            except Exception as error:
                events.append(("error", type(error).__name__, str(error)[:200]))
            events.append(
                ("after", {k: text_of(v) for k, v in given.items() if isinstance(v, torch.Tensor)})
            )
            events.append(("best", str(getattr(kernel, "best_config", None))))
        events.append(("cache", sorted(map(str, kernel.cache.items()))))
    finally:
        if plain_run is None:
            del jit.run
        else:
            jit.run = plain_run
    return events


def launched(made):
    """Per kernel: `equal`, `equal error` or what differs between the decorators."""
    from triton.runtime.autotuner import Autotuner

    from tuner import runtime

    results = Counter()
    differing, raised = [], {}
    for _, fn, args, options in made:
        names = ("configs", "key", "prune_configs_by", "reset_to_zero", "restore_value")
        given = {**dict(zip(names, args, strict=False)), **options}
        given.pop("warmup", None), given.pop("rep", None), given.pop("use_cuda_graph", None)
        needed = {"reset_to_zero": None, "restore_value": None}

        def plain(fn=fn, given=given, needed=needed):
            return Autotuner(fn, fn.arg_names, **{**needed, **given})

        def ours(fn=fn, given=given):
            return runtime.autotune(table="/nonexistent", **given)(fn)

        name = f"{named(fn).__module__}:{named(fn).__name__}"
        expected, found = trace(plain, fn, given), trace(ours, fn, given)
        errors = [event[1:] for event in expected if event[0] == "error"]
        if expected != found:
            results["different"] += 1
            differing.append(name)
        elif errors:
            results["equal, an error"] += 1
            raised[name] = ": ".join(errors[0])
        else:
            results["equal"] += 1
    return dict(results), differing, raised


def interpreted():
    """Per kernel of `tests/adopted`, whether a miss in the interpreter has Triton's outputs."""
    import tempfile

    import torch
    import triton

    sys.path.insert(0, str(ADOPTED))
    from adopted_kernels import KERNELS, _grid, call, filled, swapped

    def launch(kernel, tuner, launched, workload):
        timings = iter(range(10**6))
        tuner.__dict__.pop("do_bench", None)
        tuner.cache.clear()

        def bench(call, quantiles):
            call()
            return [float(-next(timings))] * 3

        tuner._do_bench = bench
        config = kernel.parts.configs[0]
        tensors = filled(kernel, workload, config, "cpu")
        args, kwargs = call(kernel, workload, tensors, config)
        launched[_grid(kernel, workload, tensors, config)](*args, **kwargs)
        outputs = {name: tensors[name] for name in kernel.outputs(workload)}
        return outputs, str(tuner.best_config)

    results = {}
    for name, adopted in KERNELS.items():
        kernel = adopted.load()
        parts = kernel.parts
        workload = kernel.small_workload(kernel.workloads()[-1])
        plain = parts.tuner
        for rules in reversed(parts.outer):
            plain = triton.heuristics(rules)(plain)
        with tempfile.TemporaryDirectory() as empty:
            ours = swapped(adopted, kernel, empty)
            try:
                expected = launch(kernel, parts.tuner, plain, workload)
            except Exception as error:
                results[name] = f"cannot be interpreted: {error}".splitlines()[0][:120]
                continue
            found = launch(kernel, *ours, workload)
        same = expected[1] == found[1] and all(
            torch.equal(tensor.nan_to_num(), found[0][at].nan_to_num())
            for at, tensor in expected[0].items()
        )
        results[name] = "equal" if same else "different"
    return results


def hooks_of(made):
    return sum(
        any(config.pre_hook for config in kernel.configs)
        or kernel.user_defined_pre_hook
        or kernel.user_defined_post_hook
        for kernel, *_ in made
    )


def child(package, ours):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    out, sys.stdout = sys.stdout, sys.stderr
    if package == "interpreter":
        print(json.dumps(interpreted()), file=out)
        return
    made, errors = imported(package, ours)
    places = [f"{named(fn).__module__}:{named(fn).__name__}" for _, fn, *_ in made]
    result = {"kernels": places, "errors": errors}
    if ours:
        launches, differing, raised = launched(made)
        result |= {
            "with_hooks": hooks_of(made),
            "launches": launches,
            "differing": differing,
            "raised": raised,
        }
    print(json.dumps(result), file=out)


def in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, __file__, "--child", "interpreter"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
    if done.returncode:
        sys.exit(f"interpreter: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def of_package(distribution, package):
    results = []
    for ours in ("0", "1"):
        command = [sys.executable, __file__, "--child", package, "--ours", ours]
        environment = {**os.environ, "CCE_AUTOTUNE": "1"}  # else cut-cross-entropy tunes nothing
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
        if done.returncode:
            sys.exit(f"{package}: {done.stderr[-2000:]}")
        results.append(json.loads(done.stdout.splitlines()[-1]))
    plain, ours = results
    refused = sorted((Counter(plain["kernels"]) - Counter(ours["kernels"])).elements())
    return {
        "version": importlib.metadata.version(distribution),
        "kernels": len(plain["kernels"]),
        "importable": len(plain["kernels"]) - len(refused),
        "refused": refused,
        "with_hooks": ours["with_hooks"],
        "miss": ours["launches"],
        "miss_differs": ours["differing"],
        "miss_raises_equally": ours["raised"],
        "modules_that_need_more_to_be_imported": plain["errors"],
        "modules_that_fail_with_ours_alone": {
            name: text for name, text in ours["errors"].items() if name not in plain["errors"]
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--ours", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.ours == "1")
        return
    packages = {name: of_package(name, package) for name, package in PACKAGES.items()}
    totals = Counter()
    for found in packages.values():
        totals.update({key: found[key] for key in ("kernels", "importable", "with_hooks")})
        totals.update({f"miss: {key}": count for key, count in found["miss"].items()})
    result = {
        "what": "kernels under triton.autotune with tuner.runtime.autotune in its place",
        "toolchain": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("torch", "triton")},
        },
        "date": datetime.now(UTC).date().isoformat(),
        "totals": dict(totals),
        "miss_in_the_interpreter": in_the_interpreter(),
        "packages": packages,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

"""Edit a kernel's code one place after the other and see its identity change.

Run as a program in a folder with a copy of the code: `identity_edits.py SPEC=FILE,FILE...` prints,
as JSON, for each spec and edit the halves that reach the edited place and the halves that changed.
What is reached is found without the code under test: by tracing calls, from byte code, and, for
device code, from what Triton itself says it depends on.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import importlib
import json
import random
import sys
from pathlib import Path
from types import CodeType

HALVES = {
    "launch": ("launches", "cpu_callable", "cpu_threads", "outputs", "scratch"),
    "check": ("reference", "make_inputs", "tolerance", "baselines", "small_workload"),
}
#: What must not count; of all else that a family does not reach, nothing is claimed.
SILENT = ("workloads", "check_workload", "space", "default_config", "cost", "CONSTRAINTS")


# -- loading ---------------------------------------------------------------------------------------
def fresh(spec, modules):
    """The kernel of `module:attribute`, imported again; our own and Triton's state is kept."""
    for name in modules:
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    place, _, attribute = spec.partition(":")
    found = getattr(importlib.import_module(place), attribute)
    return found() if isinstance(found, type) else found


def identity(kernel):
    return {"launch": kernel.launch_hash(), "check": kernel.check_hash()}


# -- what is reached -------------------------------------------------------------------------------
class Trace:
    """Code objects that were run, by half, and the device functions that were launched."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.codes = {half: set() for half in HALVES}
        self.jitted = []

    def run(self):
        from search_spaces.records import Device

        device = Device(
            "cuda", "NVIDIA H200", "cuda:90", sm_count=132, shared_bytes=232_448, registers=65536
        )
        for workload in [*self.kernel.workloads()][:4]:
            small = self.kernel.small_workload(workload)
            bound = self.kernel.space(workload).bind(workload, device)
            for config in bound.sample(random.Random(0), 12):
                self._launch(workload, config)
            self._check(small)
        return self

    def _launch(self, workload, config):
        import torch

        kernel = self.kernel
        tensors = dict(kernel.make_inputs(workload, 0, "meta"))
        with self._traced("launch"):
            specs = {**kernel.outputs(workload), **kernel.scratch(workload, config)}
            for name, spec in specs.items():
                dtype = getattr(torch, spec.dtype)
                tensors[name] = torch.empty(spec.shape, dtype=dtype, device="meta")
            if "cpu" in kernel.kinds:
                kernel.cpu_threads(workload, config)
                run = kernel.cpu_callable(workload, config)
        if "cpu" in kernel.kinds:
            inputs = kernel.make_inputs(kernel.small_workload(workload), 0, "cpu")
            with self._traced("launch"):
                run(inputs)
            return
        with self._traced("launch"):
            for launch in kernel.launches(workload, config, tensors):
                fn = launch.fn
                while not hasattr(fn, "cache_key"):
                    fn = fn.fn
                self.jitted.append(fn)

    def _check(self, workload):
        kernel = self.kernel
        with self._traced("check"):
            kernel.small_workload(workload)
            inputs = kernel.make_inputs(workload, 1, "cpu")
            kernel.reference(workload, inputs)
            kernel.tolerance(workload)
            for baseline in kernel.baselines(workload).values():
                with contextlib.suppress(RuntimeError):  # a vendor's, on a machine without a GPU
                    baseline(inputs)

    @contextlib.contextmanager
    def _traced(self, half):
        def seen(frame, event, _):
            if event == "call":
                self.codes[half].add(frame.f_code)

        sys.setprofile(seen)
        try:
            yield
        finally:
            sys.setprofile(None)


def reached(kernel, root):
    """Places by half: (file, line of a definition) of functions, (file, name) of constants."""
    trace = Trace(kernel).run()
    found = {half: set() for half in HALVES}
    for half, codes in trace.codes.items():
        for code in codes:
            if code.co_filename.startswith(root):
                found[half].add((code.co_filename, code.co_firstlineno))
                found[half] |= {(code.co_filename, name) for name in loaded(code)}
    for fn in trace.jitted:
        found["launch"] |= device_places(fn, set())
    return found


def loaded(code):
    """Names of globals that code loads, directly or in inner functions."""
    names = {
        i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= loaded(constant)
    return names


def device_places(fn, seen):
    """A jitted function, the constants it uses and its callees, as Triton finds them."""
    if fn.fn.__code__ in seen or fn.fn.__module__.startswith("triton"):
        return set()
    seen.add(fn.fn.__code__)
    _ = fn.cache_key
    code = fn.fn.__code__
    places = {(code.co_filename, code.co_firstlineno)}
    for name, _place in fn.used_global_vals:
        places.add((code.co_filename, name))
    for name in loaded(code):
        callee = fn.fn.__globals__.get(name)
        if hasattr(callee, "used_global_vals"):
            places |= device_places(callee, seen)
    for constant in ast.walk(ast.parse(fn.src)):  # callees of other modules: ops.helper
        if isinstance(constant, ast.Attribute) and isinstance(constant.value, ast.Name):
            module = fn.fn.__globals__.get(constant.value.id)
            callee = getattr(module, constant.attr, None)
            if hasattr(callee, "used_global_vals"):
                places |= device_places(callee, seen)
    return places


# -- edits -----------------------------------------------------------------------------------------
def edits(file):
    """(places, name, text with that place edited) of every function and constant of a file."""
    text = file.read_text()
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
            lambdas = [n for n in ast.walk(node.value) if isinstance(n, ast.Lambda)]
            for lambda_ in lambdas:
                new = replaced(text, lambda_.body, "[", "][0]")
                yield [lambda_.lineno], f"{names[0]}, line {lambda_.lineno}", new
            changed = None if lambdas else changed_value(text, node.value)
            if changed is not None:
                yield names, names[0], changed
        for function in functions(node):
            first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
            last = function.body[-1]
            new = inserted(text, last, "assert 1")
            yield [first], f"{function.name}", new


def functions(node):
    if isinstance(node, ast.FunctionDef):
        yield node
    elif isinstance(node, ast.ClassDef):
        for inner in node.body:
            yield from functions(inner)


def changed_value(text, value):
    """The first number, text or name of an expression, as another one."""
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str):
            other = node.value + "x" if isinstance(node.value, str) else node.value * 2 + 1
            return replaced(text, node, "", "", repr(other))
    return None


def replaced(text, node, before, after, other=None):
    starts = [0]
    data = text.encode()
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    begin = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    kept = other.encode() if other is not None else data[begin:end]
    return (data[:begin] + before.encode() + kept + after.encode() + data[end:]).decode()


def inserted(text, statement, line):
    lines = text.splitlines(keepends=True)
    indent = " " * statement.col_offset
    first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", []))])
    lines.insert(first - 1, f"{indent}{line}\n")
    return "".join(lines)


def cosmetic(text):
    """The same code with comments, docstrings and places changed."""
    tree = ast.parse(text)
    documented = [
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    ]
    for node in sorted(documented, key=lambda node: -node.lineno):
        text = replaced(text, node, "", "", '"""Other words."""')
    # Not before a __future__ import, which must come first.
    return text.replace("\nimport ", "\n# A comment.\n\n\nimport ", 1) + "\n# The end.\n"


# -- the program -----------------------------------------------------------------------------------
def main(arguments):
    root = str(Path.cwd())
    sys.path.insert(0, root)
    sys.dont_write_bytecode = True  # edits of one second and size look alike to it
    import torch

    torch.compile = lambda fn, **options: fn
    report = {}
    for spec, _, files in (argument.partition("=") for argument in arguments):
        report[spec] = examine(spec, files.split(","), root)
    print(json.dumps(report))


def examine(spec, files, root):
    paths = [Path(root) / name for name in files]
    modules = [name.removesuffix(".py").replace("/", ".") for name in files]
    kernel = fresh(spec, modules)
    before, places = identity(kernel), reached(kernel, root)
    report = {"edits": [], "cosmetic": []}
    for path in paths:
        text = path.read_text()
        known = {half: {p for f, p in places[half] if f == str(path)} for half in HALVES}
        for marks, name, new in edits(path):
            expected = [half for half in HALVES if known[half] & set(marks)]
            if not expected and spec.startswith("search_spaces.") and name not in SILENT:
                continue
            path.write_text(new)
            after = identity(fresh(spec, modules))
            changed = [half for half in HALVES if after[half] != before[half]]
            report["edits"].append([path.name, name, expected, changed])
        path.write_text(cosmetic(text))
        report["cosmetic"].append([path.name, identity(fresh(spec, modules)) == before])
        path.write_text(text)
    fresh(spec, modules)
    return report


if __name__ == "__main__":
    main(sys.argv[1:])

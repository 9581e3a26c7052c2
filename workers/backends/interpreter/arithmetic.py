"""Corrections of Triton's interpreter: narrow floats, fma, loop counters, clear refusals.

numpy has neither bfloat16 nor float8, so the interpreter stores their bits as uint16 and uint8.
Apart from some casts, the interpreter computes with these bits as if they were integers. `extend`
makes every operation compute in float32 and round its result to bfloat16 or float8e4nv, to nearest,
ties to even; float8e4nv saturates, as on devices. numpy rounds the product of an fma; `extend`
rounds once.

The counter of a `range` is a Python integer in the interpreter and an int32 tensor in compiled
code; `extend` makes it a tensor. Functions of libdevice are empty stubs in the interpreter;
`extend` makes them raise `NotImplementedError`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import linecache
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from workers.backends.interpreter.combining import combine_by_pairs

_ARITHMETIC = (
    *(f"create_f{name}" for name in ("add", "mul", "div", "rem", "sub", "ma")),
    *(f"create_fcmp{o}{name}" for o in "OU" for name in ("LT", "GT", "LE", "GE", "EQ", "NE")),
    *("create_precise_divf", "create_minimumf", "create_minnumf", "create_clampf", "create_dot"),
    *("create_maximumf", "create_maxnumf", "create_precise_sqrt", "create_sqrt", "create_rsqrt"),
    *("create_exp", "create_exp2", "create_log", "create_log2", "create_sin", "create_cos"),
    *("create_floor", "create_ceil", "create_erf"),
)
_EXTENDED = "tuner_extended"
_LIBDEVICE = "triton.language.extra.libdevice"
#: Part of Triton's message about a built-in function that the interpreter does not replace.
_NOT_REPLACED = "Did you forget to add @triton.jit"


def extend() -> None:
    """Correct the interpreter of this process; call it before a kernel's module is imported."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    builder = interpreter.InterpreterBuilder
    if hasattr(builder, _EXTENDED):
        return
    setattr(builder, _EXTENDED, True)
    bits = _Bits(interpreter)
    for name in _ARITHMETIC:
        setattr(builder, name, bits.calculating(getattr(builder, name)))
    builder.create_fma = bits.fusing(builder.create_fma)
    builder.cast_impl = bits.casting(builder.cast_impl)
    builder.create_fp_to_fp = bits.converting(builder.create_fp_to_fp)
    builder.get_bf16 = lambda _, value: bits.constant(value)
    builder.create_masked_load = bits.masking(builder.create_masked_load, 1)
    builder.create_masked_store = bits.masking(builder.create_masked_store, 2)
    builder.create_atomic_rmw = bits.refusing(builder.create_atomic_rmw)
    reductions = interpreter.ReduceScanOpInterface
    reductions.apply = bits.reducing(reductions.apply)
    combine_by_pairs(interpreter)
    interpreter.FunctionRewriter.ast_transformer = _with_counters(interpreter.ASTTransformer)()
    _index_by_items(interpreter)
    replace_once_a_launch(interpreter)
    _leave_out_unread_checks(interpreter.interpreter_builder)
    libdevice = importlib.import_module(_LIBDEVICE)
    for name, stub in inspect.getmembers(libdevice, inspect.isfunction):
        if stub.__module__ == _LIBDEVICE:
            setattr(libdevice, name, partial(_missing, f"libdevice.{name}"))


def uninterpretable(error: BaseException) -> str:
    """The operation that the interpreter cannot run, and its place; empty for any other error.

    The compiler has accepted the kernel, so an exception inside it is a limit of the interpreter.
    Assertions are not: they are the kernel's own, or report misaligned descriptors.
    """
    from triton.runtime.errors import InterpreterError

    root = error
    while isinstance(root, InterpreterError) and root.__cause__ is not None:
        root = root.__cause__
    frames = traceback.extract_tb(root.__traceback__)
    inside = bool(frames) and frames[-1].filename.endswith("triton/runtime/interpreter.py")
    if isinstance(root, AssertionError) or not (root is not error or inside):
        return ""
    lines = f"{root}".strip().splitlines()
    what = lines[0] if lines else type(root).__name__
    if _NOT_REPLACED in what:
        what = "a built-in function that exists on devices only"
    elif not isinstance(root, NotImplementedError):
        what = f"{type(root).__name__}: {what}"
    own = [frame for frame in frames if "/triton/" not in frame.filename.replace("\\", "/")]
    kernel = [frame for frame in own if frame.filename != __file__]
    if kernel and (line := linecache.getline(kernel[-1].filename, kernel[-1].lineno or 0).strip()):
        file = kernel[-1].filename.rpartition("/")[2]
        what += f", in `{line}` ({file}:{kernel[-1].lineno})"
    return what


class _Bits:
    """Wraps methods of the interpreter's builder: narrow floats to float32 and back."""

    def __init__(self, interpreter: Any) -> None:
        import triton.language as tl

        self._tl, self._handle = tl, interpreter.TensorHandle
        self._semantic, self._ir = interpreter.interpreter_semantic, interpreter._ir
        self._stored = interpreter._get_np_dtype

    def constant(self, value: float) -> Any:
        import numpy

        constant = self._handle(numpy.array([value], numpy.float32), self._tl.float32)
        return self._narrow(constant, self._tl.bfloat16)

    def calculating(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The operation in float32; the result has the type of the last operand, or is boolean."""

        def call_wide(builder: Any, *arguments: Any) -> Any:
            operands = [item for item in arguments if isinstance(item, self._handle)]
            if not any(map(self._is_narrow, operands)):
                return method(builder, *arguments)
            result = method(builder, *(self._wide(argument) for argument in arguments))
            rounds = self._is_narrow(operands[-1]) and result.data.dtype.kind == "f"
            return self._narrow(result, operands[-1].dtype) if rounds else result

        return call_wide

    def fusing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The fma of float32, rounded once: float64 holds the product exactly."""
        import numpy

        def fuse(builder: Any, x: Any, y: Any, z: Any) -> Any:
            if z.dtype.scalar != self._tl.float32:
                return method(builder, x, y, z)
            exact = (value.data.astype(numpy.float64) for value in (x, y, z))
            first, second, third = exact
            return self._handle((first * second + third).astype(numpy.float32), self._tl.float32)

        return fuse

    def casting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Casts between a narrow float and float32, to nearest; `method` does all others."""

        def cast(builder: Any, source: Any, target: Any) -> Any:
            if self._is_narrow(source) and target.scalar == self._tl.float32:
                return self._wide(source)
            if source.dtype.scalar == self._tl.float32 and target.scalar in self._narrow_types:
                return self._narrow(source, target)
            return method(builder, source, target)

        return cast

    def converting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Conversions of a narrow float to another float or back, to nearest."""

        def convert(builder: Any, source: Any, target: Any, rounding: Any) -> Any:
            known = self._is_narrow(source) or source.data.dtype.kind == "f"
            narrow = self._is_narrow(source) or target.scalar in self._narrow_types
            floats = known and target.scalar in (*self._narrow_types, *self._wide_types)
            if not (narrow and floats and rounding in (None, self._ir.ROUNDING_MODE.RTNE)):
                return method(builder, source, target, rounding)
            wide = self._wide(source)
            if target.scalar in self._narrow_types:
                return self._narrow(wide, target)
            return self._handle(wide.data.astype(self._stored(target)), target.scalar)

        return convert

    def masking(self, method: Callable[..., Any], mask_at: int) -> Callable[..., Any]:
        """The access with a mask of booleans.

        In the interpreter `mask & (0 < n)` is an int32, as `0 < n` is Python's. Triton 3.9 refuses
        such masks, earlier versions take them.
        """

        def apply_mask(builder: Any, *arguments: Any, **named: Any) -> Any:
            before, mask, rest = arguments[:mask_at], arguments[mask_at], arguments[mask_at + 1 :]
            if isinstance(mask, self._handle) and mask.data.dtype.kind in "iu":
                mask = self._handle(mask.data != 0, self._tl.int1)
            return method(builder, *before, mask, *rest, **named)

        return apply_mask

    def reducing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Reductions and scans; their combining functions compute in their arguments' type."""

        def apply(operation: Any, given: Any) -> Any:
            narrow, wide = self._tl.bfloat16, self._tl.float32
            tensors = given if isinstance(given, tuple) else (given,)
            if all(tensor.dtype != narrow for tensor in tensors):
                return method(operation, given)
            cast = self._semantic.cast
            combined = method(operation, tuple(
                cast(tensor, wide) if tensor.dtype == narrow else tensor for tensor in tensors
            ))  # fmt: skip
            results = (
                tuple(
                    cast(result, narrow)
                    if tensor.dtype == narrow and result.dtype == wide
                    else result
                    for tensor, result in zip(tensors, combined, strict=False)
                )
                + combined[len(tensors) :]
            )
            return results if isinstance(given, tuple) else results[0]

        return apply

    def refusing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """The atomic operation, which raises `NotImplementedError` for bfloat16."""

        def atomic(builder: Any, operation: Any, at: Any, value: Any, *rest: Any) -> Any:
            if self._is_narrow(value):
                raise NotImplementedError("atomic operations on bfloat16")
            return method(builder, operation, at, value, *rest)

        return atomic

    @property
    def _narrow_types(self) -> tuple[Any, ...]:
        return self._tl.bfloat16, self._tl.float8e4nv

    @property
    def _wide_types(self) -> tuple[Any, ...]:
        return self._tl.float16, self._tl.float32, self._tl.float64

    def _is_narrow(self, value: Any) -> bool:
        return isinstance(value, self._handle) and value.dtype.scalar in self._narrow_types

    def _wide(self, value: Any) -> Any:
        import numpy

        if not self._is_narrow(value):
            return value
        if value.dtype.scalar == self._tl.float8e4nv:
            data = _float8_values()[value.data]
        else:
            data = (value.data.astype(numpy.uint32) << 16).view(numpy.float32)
        return self._handle(data, self._tl.float32)

    def _narrow(self, value: Any, dtype: Any) -> Any:
        import numpy

        data = numpy.ascontiguousarray(value.data, numpy.float32)
        if dtype.scalar == self._tl.float8e4nv:
            return self._handle(_float8_bits(data), self._tl.float8e4nv)
        bits = data.view(numpy.uint32).astype(numpy.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet = (bits >> 16) | 0x40
        narrow = numpy.where(numpy.isnan(data), quiet, rounded).astype(numpy.uint16)
        return self._handle(narrow, self._tl.bfloat16)


@cache
def _float8_values() -> Any:
    """The value of each of the 256 codes of float8_e4m3fn, as float32."""
    import torch

    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()


def _float8_bits(data: Any) -> Any:
    """The codes of float32 values, to nearest, ties to even; beyond 448 they saturate."""
    import torch

    clipped = torch.from_numpy(data.clip(-448.0, 448.0))
    return clipped.to(torch.float8_e4m3fn).view(torch.uint8).numpy()


def _index_by_items(interpreter: Any) -> None:
    """Let tensors of one element be bounds of loops. Triton 3.6 converts arrays with a dimension,
    which numpy refuses from 2.4 on."""
    patch = interpreter._patch_lang_tensor

    def patch_scope(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_scope


def _leave_out_unread_checks(builder: Any) -> None:
    """Compute no conditions for the overflow of integers, which nothing reads.

    They are operands of device assertions, and these are left out unless `debug` is set, in the
    interpreter as in compiled code. They take half of the interpreter's time.
    """
    options = builder.options
    if not options.debug and getattr(options, "sanitize_overflow", False):
        builder.options = replace(options, sanitize_overflow=False)


def _with_counters(base: Any) -> Any:
    """The interpreter's rewriter of functions, extended to turn loop counters into tensors."""

    class Counters(base):  # type: ignore[misc]
        def visit_For(self, node: ast.For) -> ast.For:
            self.generic_visit(node)
            if _is_range(node.iter) and isinstance(node.target, ast.Name):
                name = node.target.id
                text = f"{name} = interpreter_semantic.to_tensor({name}, False)"
                first = ast.parse(text).body[0]
                for part in ast.walk(first):
                    ast.copy_location(part, node)
                node.body.insert(0, first)
            return node

    return Counters


def _is_range(expression: ast.expr) -> bool:
    """Whether a loop is over `range(...)` or `tl.range(...)`; `static_range` has constants."""
    if not isinstance(expression, ast.Call):
        return False
    function = expression.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    return bool(name == "range")


def _missing(name: str, *_: Any, **__: Any) -> Any:
    raise NotImplementedError(name)


def replace_once_a_launch(interpreter: Any) -> None:
    """Make the module `triton.runtime.interpreter` replace the language once in a launch."""
    once = _Once(interpreter._patch_lang)
    interpreter._patch_lang = once.replace
    interpreter.GridExecutor.__call__ = once.launching(interpreter.GridExecutor.__call__)


class _Once:
    """Skips replacements that the present launch has made."""

    def __init__(self, replace: Callable[[Any], Any]) -> None:
        self._replace = replace
        self._replaced: set[frozenset[str]] = set()
        self._modules: dict[Any, frozenset[str]] = {}

    def launching(self, launch: Callable[..., Any]) -> Callable[..., Any]:
        """A launch, which undoes its own replacements at its end."""

        def run(*arguments: Any, **by_name: Any) -> Any:
            self._replaced.clear()
            try:
                return launch(*arguments, **by_name)
            finally:
                self._replaced.clear()

        return run

    def replace(self, fn: Any) -> Any:
        """Replace the language modules that a function names; nothing if that has been done."""
        modules = self._modules.get(fn)
        if modules is None:
            modules = self._modules[fn] = _language_modules(fn)
        if modules in self._replaced:
            return None
        self._replaced.add(modules)
        return self._replace(fn)


def _language_modules(fn: Any) -> frozenset[str]:
    """The names of the language modules among a function's globals."""
    found = (value for value in fn.__globals__.values() if inspect.ismodule(value))
    names = {module.__name__ for module in found}
    return frozenset(names & {"triton.language", "triton.language.core"})

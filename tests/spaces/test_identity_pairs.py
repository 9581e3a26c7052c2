"""Two versions of one file: whatever changes the launched code changes its identity."""

from __future__ import annotations

import importlib
import itertools
import linecache
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from search_spaces.errors import KernelError
from search_spaces.kernel import Kernel, closure
from tuner.runtime.identity import IdentityError, closure_of

ROOT = Path(__file__).parents[2]
_NUMBERS = itertools.count()
HEAD = """
import array, collections, ctypes, dataclasses, enum, functools, importlib, itertools, operator
import random, re, sys, threading, time, types, typing, weakref
"""
KERNEL = """
class Owner:
    def launches(self, x):
        return {expression}
"""

#: Title: what precedes the kernel, with a place for a value; the expression that is launched.
PAIRS = {
    # what a class or its instance shows without storing it under that name
    "field of a named tuple": ("class N(typing.NamedTuple):\n    a: int\nd = N({})", "d.a"),
    "field of a nested named tuple": (
        "N = collections.namedtuple('N', 'a')\nd = {{'q': [N({})]}}",
        "d['q'][0].a",
    ),
    "property of a named tuple in a list": (
        "class N(typing.NamedTuple):\n    a: int\n"
        "    @property\n    def k(self): return {}\nd = [N(1)]",
        "d[0].k",
    ),
    "value of an enumeration": ("class E(enum.Enum):\n    A = {}", "E.A.value"),
    "structured value of an enumeration": ("class E(enum.Enum):\n    A = [1, {}]", "E.A.value[1]"),
    "method of an enumeration's member": (
        "class E(enum.Enum):\n    A = 1\n    def k(self): return {}\nd = {{'q': E.A}}",
        "d['q'].k()",
    ),
    "attribute of an enumeration's member": (
        "class E(enum.Enum):\n    A = 1\nE.A.k = {}",
        "E.A.k",
    ),
    "attribute behind __getattr__": (
        "class D:\n    def __init__(self, k): self._k = {{'a': k}}\n"
        "    def __getattr__(self, name): return self._k[name]\nd = D({})",
        "d.a",
    ),
    "attribute behind a module's __getattr__": (
        "_K = {}\ndef __getattr__(name): return _K\nme = sys.modules[__name__]",
        "me.a",
    ),
    "descriptor that reads the instance": (
        "class De:\n    def __get__(self, o, t=None): return o.inner\n"
        "class D:\n    a = De()\nd = D()\nd.inner = {}",
        "d.a",
    ),
    "private slot": (
        "class D:\n    __slots__ = ('__a',)\n    def __init__(self, a): self.__a = a\n"
        "    def k(self): return self.__a\nd = D({})",
        "d.k()",
    ),
    "private attribute": (
        "class D:\n    def __init__(self, a): self.__a = a\n    def k(self): return self.__a\n"
        "d = D({})",
        "d.k()",
    ),
    "slots behind a repr": (
        "class D:\n    __slots__ = ('a',)\n    def __repr__(self): return 'D'\nd = D()\nd.a = {}",
        "f(d)",
    ),
    "attribute of a list subclass in a dict": (
        "class L(list): pass\nd = {{'q': L()}}\nd['q'].k = {}",
        "d['q'].k",
    ),
    "method of an int subclass in a list": (
        "class I(int):\n    def k(self): return {}\nd = [I(1)]",
        "d[0].k()",
    ),
    "int subclass that hides its value": (
        "class I(int):\n    def __repr__(self): return 'I'\nd = I({})",
        "x * d",
    ),
    "attribute of a function": ("def k(x): return k.a\nk.a = {}", "k(x)"),
    "attribute of a function as an argument": ("def k(): pass\nk.a = {}", "f(k)"),
    "documentation that is read": ("def k():\n    '{}'", "k.__doc__"),
    "__class__ of an instance": (
        "class D:\n    Z = {}\n    def k(self): return self.__class__.Z\nd = D()",
        "d.k()",
    ),
    "__class__ of a method": (
        "class D:\n    Z = {}\n    def k(self): return __class__.Z\nd = D()",
        "d.k()",
    ),
    "class method of a subclass": (
        "class B:\n    @classmethod\n    def k(cls): return cls.h()\n"
        "class D(B):\n    @staticmethod\n    def h(): return {}",
        "D.k()",
    ),
    "class method through super": (
        "class B:\n    @classmethod\n    def k(cls): return {}\n"
        "class D(B):\n    @classmethod\n    def k(cls): return super().k()",
        "D.k()",
    ),
    "property through super": (
        "class B:\n    @property\n    def k(self): return {}\n"
        "class D(B):\n    @property\n    def k(self): return super().k\nd = D()",
        "d.k",
    ),
    "method of a metaclass": (
        "class M(type):\n    def k(cls): return cls.Z\nclass D(metaclass=M):\n    Z = {}",
        "D.k()",
    ),
    "metaclass of a class as an argument": (
        "class M(type):\n    Z = {}\nclass D(metaclass=M): pass",
        "f(D)",
    ),
    "cached method": (
        "class D:\n    def __init__(self, z): self.z = z\n    @functools.lru_cache\n"
        "    def k(self): return self.z\nd = D({})",
        "d.k()",
    ),
    "partial method": (
        "class D:\n    def h(self, z): return z\n    k = functools.partialmethod(h, {})\nd = D()",
        "d.k()",
    ),
    "method under a decorator without named arguments": (
        "def deco(g):\n    def wrap(*a): return g(*a)\n    return wrap\n"
        "class D:\n    def __init__(self, z): self.z = z\n"
        "    @deco\n    def k(self): return self.z\nd = D({})",
        "d.k()",
    ),
    "single dispatch": (
        "@functools.singledispatch\ndef k(x): return 0\n@k.register\ndef _(x: int): return {}",
        "k(x)",
    ),
    # names that are read in other ways
    "globals": ("K = {}", "globals()['K']"),
    "eval": ("K = {}", "eval('K')"),
    "global with underscores": ("__K__ = {}", "__K__"),
    # values of the standard library
    "bound builtin of a dict": ("C = {{'a': {}}}.get", "C('a')"),
    "bound builtin of a number": ("C = ({}).__add__", "C(1)"),
    "bound method of a text": ("C = '{}'.join", "C('ab')"),
    "factory of a default dict": ("C = collections.defaultdict(lambda: {})", "C['q']"),
    "length of a deque": ("C = collections.deque((), {})", "C.maxlen"),
    "chain of maps": ("C = collections.ChainMap({{'a': {}}})", "C['a']"),
    "user dict": ("C = collections.UserDict(a={})", "C['a']"),
    "structure of ctypes": (
        "class S(ctypes.Structure):\n    _fields_ = [('a', ctypes.c_int)]\nd = S({})",
        "d.a",
    ),
    "array of ctypes": ("d = (ctypes.c_int * 2)(1, {})", "d[1]"),
    "array": ("class A(array.array): pass\nd = A('i', [{}])", "d[0]"),
    "random numbers": ("d = random.Random({})", "d.random()"),
    "object in a method caller": (
        "class D:\n    def __init__(self, k): self.k = k\nC = operator.methodcaller('k', D({}))",
        "C(x)",
    ),
    "iterator": ("C = itertools.cycle([{}])", "next(C)"),
    "weak reference": (
        "class D:\n    def __init__(self, k): self.k = k\nkept = D({})\nd = weakref.ref(kept)",
        "d().k",
    ),
    "long regular expression": ("C = re.compile('a' * 300 + '{}')", "C.pattern"),
    "compiled expression": ("C = compile('{}', 'x', 'eval')", "eval(C)"),
}

#: The same edits in another module, which the kernel names in various ways.
IMPORTS = {
    "import of a submodule": "(__import__('PACKAGE.inner').inner.C)",
    "literal import": "importlib.import_module('PACKAGE.inner').C",
}


@pytest.fixture
def digest(tmp_path, monkeypatch):
    """`digest(pre, expression, **files)`: the identity of a kernel in a new module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"pair_of_{next(_NUMBERS)}"

    def of(pre: str, expression: str, files: dict[str, str] | None = None) -> str:
        for module in [known for known in sys.modules if known.startswith((name, f"in_{name}"))]:
            del sys.modules[module]
        for file, text in (files or {}).items():
            path = tmp_path / file.replace("PACKAGE", f"in_{name}")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        text = HEAD + textwrap.dedent(pre) + "\ndef f(x): return x\n"
        text += KERNEL.format(expression=expression)
        (tmp_path / f"{name}.py").write_text(text.replace("PACKAGE", f"in_{name}"))
        importlib.invalidate_caches()
        linecache.clearcache()
        return closure_of(importlib.import_module(name).Owner(), ("launches",)).digest

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield of
    for module in [known for known in sys.modules if known.startswith((name, f"in_{name}"))]:
        del sys.modules[module]


@pytest.mark.parametrize("title", PAIRS)
def test_an_edit_that_changes_what_is_launched_changes_the_identity(digest, title):
    pre, expression = PAIRS[title]
    first = digest(pre.format(2), expression)
    assert digest(pre.format(2), expression) == first, "it is equal for equal code"
    assert digest(pre.format(3), expression) != first


@pytest.mark.parametrize("title", IMPORTS)
def test_a_module_that_is_imported_where_it_is_used_counts(digest, title):
    files = {"PACKAGE/__init__.py": "", "PACKAGE/inner.py": "C = 2"}
    first = digest("", IMPORTS[title], files)
    assert digest("", IMPORTS[title], {**files, "PACKAGE/inner.py": "C = 3"}) != first


@pytest.mark.parametrize(
    ("pre", "expression"),
    [
        ("t = time", "t"),
        ("t = sys", "getattr(t, 'maxsize')"),
        ("lock = threading.Lock()", "lock.acquire()"),
        ("import logging\nlog = logging.getLogger('x')", "log.info('x')"),
        ("out = sys.stderr", "print(file=out)"),
        ("local = threading.local()", "local"),
        ("ids = itertools.count()", "next(ids)"),
    ],
)
def test_modules_locks_and_loggers_have_an_identity(digest, pre, expression):
    assert digest(pre, expression) == digest(pre, expression)


@pytest.mark.parametrize(
    ("pre", "named"),
    [
        ("C = (n for n in [1])", "generator"),
        ("C = memoryview(b'a')", "memoryview"),
        ("class P(ctypes.Structure):\n    _fields_ = [('a', ctypes.c_void_p)]\nC = P(1)", r"\.P"),
        ("C = open(__file__)", "TextIOWrapper"),
    ],
)
def test_a_value_without_a_digest_is_an_error_that_names_the_place(digest, pre, named):
    with pytest.raises(
        IdentityError, match=rf"pair_of_\d+\.py:\d+, Owner.launches: C is .*{named}"
    ):
        digest(pre, "f(C)")


def test_the_command_line_gets_the_place_and_a_remedy():
    class Stuck(Kernel):
        name = "stuck"

        def launches(self, workload, config, tensors):
            return GENERATOR

    Stuck.__abstractmethods__ = frozenset()
    with pytest.raises(KernelError, match=r"kernel stuck: .*launches: GENERATOR is a") as caught:
        closure(Stuck(), ("launches",))
    assert "build it inside the function" in caught.value.hint


GENERATOR = (number for number in ())


_OPERATOR = """
import sys

import torch
from tuner.runtime.identity import closure_of

{lines}
@torch.library.custom_op("tuner_identity::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * {factor}


@scale.register_fake
def _(x):
    return torch.empty_like(x)


class Owner:
    def launches(self, x):
        return scale(x)


print(closure_of(Owner(), ["launches"]).digest)
"""


def test_an_operator_of_torch_counts_by_its_functions(tmp_path):
    """Its registration with torch's dispatcher and its place in the file do not count. A name of an
    operator is registered once in a process."""
    digests = []
    for number, (factor, lines) in enumerate([(2, ""), (2, "# a comment\n"), (3, "")]):
        script = tmp_path / f"{number}" / "operator_kernel.py"
        script.parent.mkdir()
        script.write_text(_OPERATOR.format(factor=factor, lines=lines))
        done = subprocess.run(
            [sys.executable, f"{script}"],
            env={**os.environ, "PYTHONPATH": f"{ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.returncode, done.stderr
        digests.append(done.stdout)
    first, moved, edited = digests
    assert first == moved != edited

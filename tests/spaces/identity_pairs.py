"""Pairs of kernels that differ in one thing, by what makes them differ.

Of each pair the first is `2` where the second is `3`, in a text, an object, a file or a variable.
"""

from __future__ import annotations

import importlib
import itertools
import linecache
import shutil
import sys
import textwrap
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from search_spaces.identity import identity_of

_NUMBERS = itertools.count()
HEAD = """
import collections, dataclasses, enum, functools, glob, importlib, json, os, pathlib, sys, types
import numpy, torch, triton, triton.language as tl
from tuner import Choice, Cost, Kernel, Launch, SearchSpace, TensorSpec, Tolerance, Workload
HERE = pathlib.Path(__file__).parent

class Own(Kernel):
    name = "own"
    kinds = ("cpu",)
    def workloads(self): return [Workload.of(n=64)]
    def check_workload(self, workload): pass
    def make_inputs(self, workload, seed, device): return {"x": torch.ones(64, device=device)}
    def outputs(self, workload): return {"y": TensorSpec((64,), "float32")}
    def reference(self, workload, inputs): return {"y": inputs["x"]}
    def tolerance(self, workload): return Tolerance(1e-5, 1e-5)
    def cost(self, workload): return Cost(1.0, 1.0)
    def space(self, workload): return SearchSpace([Choice("way", [1, 2])], [], kernel=self.name)
    def baselines(self, workload): return {}
    def cpu_callable(self, workload, config): return lambda inputs: {"y": inputs["x"] * scale()}

def make(**held):
    found = Own()
    vars(found).update(held)
    return found

"""

#: Edits of text: the kernel's module; `files` are beside it, `PKG` in their names is a package.
TEXTS = {
    "constant": "Z = @@\ndef scale(): return Z",
    "nothing uses it": "def scale(): return 1\ndef other(): return @@",
    "default argument": "def scale(z=@@): return z",
    "decorator": "def by(z): return lambda f: lambda: z\n@by(@@)\ndef scale(): pass",
    "class attribute": "class A:\n    z = @@\ndef scale(): return A.z",
    "metaclass": "class M(type):\n    Z = @@\nclass A(metaclass=M): pass\ndef scale(): return A.Z",
    "descriptor": "class D:\n    def __get__(self, o, t=None): return @@\n"
    "class A:\n    z = D()\ndef scale(): return A().z",
    "own autograd function": "class F(torch.autograd.Function):\n    @staticmethod\n"
    "    def forward(ctx, x): return x * @@\ndef scale(): return F.apply(torch.ones(1))",
    "inherited library method": "class U(collections.UserDict): pass\n"
    "u = U(z=@@)\ndef scale(): return u['z']",
    "registered operator": "@torch.library.custom_op('own::NAME', mutates_args=())\n"
    "def scale(x: torch.Tensor) -> torch.Tensor: return x * @@",
    "opaque value": "import contextvars\nV = contextvars.ContextVar('v', default=@@)\n"
    "def scale(): return V.get()",
    "attribute beside a value": "class L(list): pass\nv = L()\nv.z = @@\ndef scale(): return v.z",
    "annotation": "class A:\n    z: '@@'\ndef scale(): return A.__annotations__['z']",
    "generated code": "exec('def scale(): return @@')",
    "generated class": "A = type('A', (), {'z': @@})\ndef scale(): return A.z",
    "generated module": "m = types.ModuleType('m')\nexec('Z = @@', vars(m))\n"
    "def scale(): return m.Z",
    "device code": "@triton.jit\ndef fn(x, BLOCK: tl.constexpr):\n    tl.store(x, @@)",
    "type of an argument": "def scale(x: 'int@@' = 1): return x",
}
IMPORTED = {
    "import": "import helper_NAME\ndef scale(): return helper_NAME.Z",
    "from import": "from helper_NAME import Z\ndef scale(): return Z",
    "star import": "from helper_NAME import *\ndef scale(): return Z",
    "in a function": "def scale():\n    import helper_NAME as h\n    return h.Z",
    "in a method": "class A:\n    def z(self):\n        from helper_NAME import Z\n"
    "def scale(): return A().z()",
    "behind a condition": "if sys.argv is None:\n    import helper_NAME",
    "tried": "try:\n    import helper_NAME\nexcept ImportError:\n    pass",
    "literal": "def scale(): return importlib.import_module('helper_NAME').Z",
    "dunder import": "def scale(): return __import__('helper_NAME').Z",
}
#: Modules that the kernel's imports in turn.
PACKAGES = {
    "submodule": ("import pkg_NAME.inner", "inner.py"),
    "of a package": ("from pkg_NAME import inner", "inner.py"),
    "relative": ("from pkg_NAME import outer", "inner.py"),
    "package": ("import pkg_NAME.inner", "__init__.py"),
}
#: State of the kernel object: what `make` is given.
STATES = {
    "number": "make(z=@@)",
    "text": "make(z='@@')",
    "nested": "make(z={'a': [(1, {'b': @@})]})",
    "set": "make(z={1, @@, 7})",
    "order": "make(z=dict(sorted({1: 1, @@ - 2.5: 2}.items())))",
    "sign of zero": "make(z=0.0 * (2.5 - @@))",
    "true and one": "make(z=@@ == 2 or 1)",
    "closure": "make(z=(lambda z: lambda x: x * z)(@@))",
    "default": "make(z=(lambda x, z=@@: x * z))",
    "keyword default": "make(z=(lambda x, *, z=@@: x * z))",
    "partial": "make(z=functools.partial(pow, @@))",
    "bound method": "make(z=Held(@@).get)",
    "bound builtin": "make(z={'a': @@}.get)",
    "attribute of a function": "make(z=marked(@@))",
    "instance": "make(z=Held(@@))",
    "slots": "make(z=Slotted(@@))",
    "private slot": "make(z=Private(@@))",
    "dataclass": "make(z=Data(@@))",
    "list of own class": "make(z=listed(@@))",
    "number of own class": "make(z=Number(@@))",
    "named tuple": "make(z=collections.namedtuple('N', 'a')(@@))",
    "enumeration": "make(z=Side(@@))",
    "default dict": "make(z=collections.defaultdict(lambda: @@))",
    "deque": "make(z=collections.deque((), @@))",
    "tensor": "make(z=torch.full((3,), @@))",
    "dtype of a tensor": "make(z=torch.zeros(3, dtype=torch.float32 if @@ == 2 else torch.int32))",
    "strides of a tensor": "make(z=torch.zeros(4, 4).t() if @@ == 2 else torch.zeros(4, 4))",
    "array": "make(z=numpy.full(3, @@))",
    "module of weights": "make(z=weighted(@@))",
    "path": "make(z=pathlib.Path('a@@'))",
    "class made by a function": "make(z=classed(@@))",
    "class of the kernel": "subclass(@@)()",
    "jitted function": "make(z=jitted(@@))",
    "heuristics": "make(z=triton.heuristics({'A': (lambda z: lambda args: z)(@@)})(jitted(1)))",
    "compiled expression": "make(z=compile('@@', 'x', 'eval'))",
    "cache over a closure": "make(z=functools.lru_cache((lambda z: lambda x: x * z)(@@)))",
    "regular expression": "make(z=__import__('re').compile('a' * 300 + '@@'))",
    "random numbers": "make(z=__import__('random').Random(@@))",
    "structure of C": "make(z=Structure(@@))",
    "cycle": "make(z=cyclic(@@))",
}
_STATE = """
import ctypes
def scale(): return 1
def marked(z):
    def f(x): return x * f.z
    f.z = z
    return f
class Held:
    def __init__(self, z): self.z = z
    def get(self): return self.z
class Slotted:
    __slots__ = ("z",)
    def __init__(self, z): self.z = z
    def __repr__(self): return "Slotted"
class Private:
    __slots__ = ("__z",)
    def __init__(self, z): self.__z = z
@dataclasses.dataclass(frozen=True)
class Data:
    z: int
class Number(int):
    def __repr__(self): return "Number"
class Side(enum.Enum):
    A = 2
    B = 3
class Structure(ctypes.Structure):
    _fields_ = [("a", ctypes.c_int)]
def listed(z):
    class L(list): pass
    found = L()
    found.z = z
    return found
def weighted(z):
    found = torch.nn.Linear(3, 3, bias=False)
    found.weight.data.fill_(z)
    return found
def classed(z):
    class A:
        k = z
    return A
def subclass(z):
    class K(Own):
        k = z
    return K
def jitted(z):
    factor = tl.constexpr(z)
    @triton.jit
    def fn(x, BLOCK: tl.constexpr):
        tl.store(x, factor)
    return fn
def cyclic(z):
    found = {"z": z}
    found["self"] = found
    return found
"""
#: Files beside the module: name of the file, the text that names it.
FILES = {
    "by its name": ("scale.json", "Z = json.loads((HERE / 'scale.json').read_text())"),
    "by its ending": ("scale.json", "def scale(n): return open(HERE / f'{n}.json').read()"),
    "by its stem": ("scale.txt", "def scale(e): return open(HERE / ('scale' + e)).read()"),
    "by a wildcard": ("scale.json", "def scale(): return glob.glob('s*.json')"),
    "by listing": ("scale.bin", "def scale(): return [p.read_bytes() for p in HERE.iterdir()]"),
    "by listing below": ("data/scale.bin", "def scale(): return [*(HERE / 'data').rglob('*')]"),
    "in a folder": ("data/scale.json", "def scale(): return open(HERE / 'data/scale.json').read()"),
    "split name": ("data/scale.npy", "def scale(): return numpy.load(HERE / 'data' / 'scale.npy')"),
    "two folders down": ("data/a/s.pt", "def scale(): return torch.load(HERE / 'data/a/s.pt')"),
    "resource": ("scale.toml", "import importlib.resources\n"
     "def scale(): return importlib.resources.files('x') / 'scale.toml'"),
    "absolute": ("scale.cfg", "def scale(): return open('FOLDER/scale.cfg').read()"),
    "library of C": ("libscale.so", "def scale(): return __import__('ctypes').CDLL('libscale.so')"),
    "operators in C": ("ops.so", "def scale(): torch.ops.load_library(HERE / 'ops.so')"),
    "extension": (f"fast_NAME{EXTENSION_SUFFIXES[0]}", "def scale():\n    import fast_NAME"),
    "extension in a package": (
        f"pkg_NAME/fast{EXTENSION_SUFFIXES[0]}",
        "def scale():\n    from pkg_NAME import fast",
    ),
    "source of an extension": ("scale.cpp", "def scale(load): return load(sources=['scale.cpp'])"),
    "header of a source": (
        "scale.h",
        "def scale(load): return load(sources=['scale.cpp'])",
        {"scale.cpp": '#include "scale.h"'},
    ),
    "generated kernels": (
        "made_NAME.py",
        "def scale():\n    import made_NAME\n    return made_NAME.Z",
    ),
    "template": ("kernel.py.in", "exec((HERE / 'kernel.py.in').read_text().format('2'))"),
    "byte code": ("scale.pyc_data", "def scale(): return open(HERE / 'scale.pyc_data', 'rb')"),
}  # fmt: skip
#: Layout only: two texts of one meaning.
LAYOUTS = {
    "comment": ("def scale(): return 2", "# c\ndef scale():  # d\n    # e\n    return 2"),
    "blank lines": ("def scale(): return 2", "\n\n\ndef scale():\n\n    return 2\n\n"),
    "docstring": ("def scale(): return 2", "def scale():\n    '''Doc.'''\n    return 2"),
    "docstring of a class": ("class A:\n    z = 1", "class A:\n    '''Doc.'''\n    z = 1"),
    "only a docstring": ("class A:\n    'x'", "class A:\n    'y'"),
    "quotes": ("Z = 'a'", 'Z = "a"'),
    "raw text": ("Z = 'a\\\\d'", "Z = r'a\\d'"),
    "joined texts": ("Z = 'ab'", "Z = 'a' 'b'"),
    "trailing comma": ("Z = [1, 2]", "Z = [\n    1,\n    2,\n]"),
    "parentheses": ("Z = 1 + 2 * 3", "Z = (1 + (2 * 3))"),
    "line continuation": ("Z = 1 + 2", "Z = 1 + \\\n    2"),
    "digits": ("Z = 1000", "Z = 1_000"),
    "hexadecimal": ("Z = 255", "Z = 0xFF"),
    "exponent": ("Z = 1000.0", "Z = 1e3"),
    "tabs": ("def scale():\n    return 2", "def scale():\n\treturn 2"),
    "carriage returns": ("def scale():\n    return 2", "def scale():\r\n    return 2\r\n"),
    "semicolon": ("Y = 1\nZ = 2", "Y = 1; Z = 2"),
    "one line": ("if True:\n    Z = 1", "if True: Z = 1"),
    "type comment": ("Z = 1", "Z = 1  # type: int"),
    "directive": ("Z = 1", "Z = 1  # noqa: E501"),
    "end of file": ("Z = 1", "Z = 1\n\n\n"),
    "form feed": ("Y = 1\nZ = 2", "Y = 1\n\f\nZ = 2"),
    "unused text": ("Z = 1", "Z = 1\n'a note'"),
    "arguments by line": ("def scale(a, b): return a", "def scale(\n    a,\n    b,\n): return a"),
    "call by line": ("Z = max(1, 2)", "Z = max(\n    1,\n    2,\n)"),
    "imports by line": ("from os import path, sep", "from os import (\n    path,\n    sep,\n)"),
    "else with if": (
        "if 0: Z = 1\nelif 1: Z = 2",
        "if 0:\n    Z = 1\nelse:\n    if 1:\n        Z = 2",
    ),
    "prefix of a text": ("Z = 'a'", "Z = u'a'"),
    "spaces": ("Z = {1: 2}", "Z={1:2}"),
    "comment in a call": ("Z = max(1, 2)", "Z = max(  # of both\n    1,\n    # and\n    2)"),
}


class Folder:
    """A folder on the import path with the module of a kernel, which is imported anew each time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"pair_{next(_NUMBERS)}"
        sys.path.insert(0, f"{path}")

    def fill(self, text: str) -> str:
        return text.replace("NAME", self.name).replace("FOLDER", f"{self.path}")

    def write(self, file: str, content: str | bytes) -> None:
        path = self.path / self.fill(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(data)

    def identity(self, text: str, made: str = "make()", *, name: str = "kernel_NAME") -> str:
        """The identity of the kernel `made`, of a module with this text."""
        module = self.fill(name)
        given = self.fill(HEAD + textwrap.dedent(text))
        self.write(f"{module}.py", f"{given}\nkernel = make()\n")
        self.forget()
        found = importlib.import_module(module)
        return identity_of(eval(made, vars(found))).digest

    def forget(self) -> None:
        """Remove the modules of this folder from the process."""
        for known, module in list(sys.modules.items()):
            if f"{getattr(module, '__file__', None)}".startswith(f"{self.path}/"):
                del sys.modules[known]
        shutil.rmtree(self.path / "__pycache__", ignore_errors=True)
        importlib.invalidate_caches()
        linecache.clearcache()

    def close(self) -> None:
        self.forget()
        sys.path.remove(f"{self.path}")


def of(text: str, value: object) -> str:
    return text.replace("@@", f"{value}")


def texts(folder: Folder, title: str) -> list[str]:
    """Identities before and after an edit of the kernel's module."""
    return [folder.identity(of(TEXTS[title], value)) for value in (2, 2, 3)]


def imported(folder: Folder, title: str) -> list[str]:
    found = []
    for value in (2, 2, 3):
        folder.write("helper_NAME.py", f"Z = {value}\n")
        found.append(folder.identity(IMPORTED[title]))
    return found


def packages(folder: Folder, title: str) -> list[str]:
    text, edited = PACKAGES[title]
    files = {"__init__.py": "", "inner.py": "", "outer.py": "from . import inner\n"}
    found = []
    for value in (2, 2, 3):
        for name, content in files.items():
            more = f"Z = {value}\n" if name == edited else ""
            folder.write(f"pkg_NAME/{name}", content + more)
        found.append(folder.identity(text))
    return found


def states(folder: Folder, title: str) -> list[str]:
    """Identities of objects that one text makes."""
    return [folder.identity(_STATE, of(STATES[title], value)) for value in (2, 2, 3)]


def files(folder: Folder, title: str) -> list[str]:
    name, text, *more = FILES[title]
    for other, content in (more[0] if more else {}).items():
        folder.write(other, content)
    if name.startswith("pkg_NAME"):
        folder.write("pkg_NAME/__init__.py", "")
    for other in ("scale.json", "s.json"):
        if not (folder.path / other).exists() and other != name:
            folder.write(other, "{}")
    found = []
    for value in (2, 2, 3):
        folder.write(name, f"Z = {value}" if name.endswith(".py") else f"{value}")
        found.append(folder.identity(text))
    return found


def layouts(folder: Folder, title: str) -> list[str]:
    return [folder.identity(text) for text in LAYOUTS[title]]


#: Kinds of edits that have to be seen, with their cases and what gives their identities.
SEEN = {
    "text": (TEXTS, texts),
    "imported module": (IMPORTED, imported),
    "package": (PACKAGES, packages),
    "state": (STATES, states),
    "file": (FILES, files),
}

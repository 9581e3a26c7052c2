"""Kernels by name: built-in families, entry points, `module:object`, `file.py:object`, recordings.

Listing never imports a kernel; loading imports only the named one.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

from search_spaces import kernels
from search_spaces.absent_device import fake_driver
from search_spaces.absent_device.module_sets import has_several, modules_of
from search_spaces.errors import KernelError, TunerError
from search_spaces.foreign_imports import contain_foreign_code, make_importable
from search_spaces.import_stamps import note_imports
from search_spaces.kernel import Kernel
from search_spaces.near_names import did_you_mean
from search_spaces.plugins import PluginGroup
from search_spaces.records import Device
from search_spaces.source_positions import one_line
from search_spaces.source_reach import module_file
from tuner.base.import_names import ImportClash
from tuner.base.tracing import span


def _families() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name, place and kinds of the kernels that the folders of `search_spaces.kernels` declare.

    A folder's package has `KERNELS`, places inside the folder by name, and `KINDS` where its
    kernels do not run on GPUs. No kernel is imported.
    """
    for found in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        if found.ispkg:
            package = importlib.import_module(found.name)
            kinds = getattr(package, "KINDS", Kernel.kinds)
            for name, place in package.KERNELS.items():
                yield name, f"{found.name}.{place}", kinds


_FAMILIES = sorted(_families())
#: The built-in families and where each is defined.
BUILT_IN = {name: place for name, place, _ in _FAMILIES}
KERNELS = PluginGroup(
    "tuner.kernels",
    "kernel",
    BUILT_IN,
    KernelError,
    otherwise="write module:object or path/to/file.py:object",
)
_RECORDED = "recorded:"
_KINDS = {name: kinds for name, _, kinds in _FAMILIES}
#: Kernels that load faster are in no trace.
_LEAST_LOAD_S = 0.01
#: The spec of the kernel whose code is being imported.
_under_import: ContextVar[str | None] = ContextVar("under_import", default=None)


class NestedError(KernelError):
    """The import of a kernel starts a run, which would import the kernel again."""


def refuse_nested(what: str) -> None:
    """Raise `NestedError` during the import of a kernel, which must not start a run.

    The driver, builders and runners import the file or module of a kernel, each in its process.
    """
    spec = _under_import.get()
    if spec is not None:
        raise NestedError(
            f"{what} is called by the import of kernel {spec}, which workers import as well",
            'put the call under `if __name__ == "__main__":`',
        )


def available() -> dict[str, str]:
    """Registered names and where each kernel lives; entry points do not replace built-in names."""
    return KERNELS.places()


def kinds_by_name(spec: str) -> tuple[str, ...] | None:
    """The kinds of a kernel, known from its spec alone; None where only its import shows them."""
    if spec.startswith(_RECORDED):
        return ("simulated",)
    return _KINDS.get(spec)


def may_run_on(spec: str, target: str | None) -> bool:
    """Whether the kernel may run on the target (None: any), as far as its spec alone tells."""
    kinds = kinds_by_name(spec)
    return target is None or kinds is None or target.partition(":")[0] in kinds


def compiles_without_torch(spec: str) -> bool:
    """Whether builds of the kernel need no torch: those of built-in families for GPUs."""
    return _KINDS.get(spec) == Kernel.kinds


def load(spec: str, paths: Sequence[str] = (), device: Device | None = None) -> Kernel:
    """The kernel a spec names, with `kernel.spec` set.

    spec: a name of `available()`, `module:object`, `path/to/file.py:object` or `recorded:FILE`;
    the object is a `Kernel` class, an instance, or a factory without arguments. paths: folders
    added to the end of the import path, and searched for files before the working folder. device:
    what torch and Triton describe to its modules; None: this machine.
    Raises `KernelError` in one line.
    """
    with modules_of(None if is_ours(spec) else device):
        return _load(spec, paths)


def load_undecided(spec: str, paths: Sequence[str] = (), device: Device | None = None) -> Kernel:
    """A kernel whose device is not known yet; `for_device` gives the kernel for a device.

    device: the most likely one. The import is tried for that device, then for a machine without
    GPUs, then for a stand-in; the first success counts.
    """
    tried = [device] if device is not None else []
    first: KernelError | None = None
    for candidate in dict.fromkeys([*tried, fake_driver.NO_GPU, fake_driver.STAND_IN]):
        queries = fake_driver.query_count()
        try:
            return load(spec, paths, candidate)
        except KernelError as error:
            queried = fake_driver.query_count() > queries
            first = error if first is None or queried else first
            # Queries to Triton's own driver, which Triton loads with itself, are not counted.
            if not queried and "triton" not in sys.modules:
                break
    assert first is not None
    raise first


def for_device(kernel: Kernel, device: Device) -> Kernel:
    """The kernel for that device; another object only if a module has queried the device."""
    if not kernel.spec or is_ours(kernel.spec) or not fake_driver.query_count():
        return kernel
    return load(kernel.spec, (), device)


def is_ours(spec: str) -> bool:
    """Whether a kernel's module never queries the device: a built-in family or a recording."""
    return spec in BUILT_IN or spec.startswith(_RECORDED)


def _load(spec: str, paths: Sequence[str]) -> Kernel:
    for path in paths:
        folder = str(Path(path).expanduser().resolve())
        if folder not in sys.path:
            sys.path.append(folder)
    if spec.startswith(_RECORDED):
        return _load_recording(spec, paths)
    place, _, attribute = spec.rpartition(":")
    if spec.removesuffix(":").endswith(".py"):
        raise _without_object(spec.removesuffix(":"), paths)
    if not place or not attribute:
        return _load_named(spec)
    if place.endswith(".py"):
        file = find_file(place, paths)
        if file is None:
            raise KernelError(
                f"kernel {spec}: there is no file {place}",
                "give an absolute path, or one relative to the folder of config.yaml",
            )
        return _kernel_of(_import_file(file, spec), attribute, f"{file}:{attribute}")
    return _kernel_of(_import_module(place, spec), attribute, spec)


def spec_of(kernel: Kernel) -> str:
    """A spec by which another process finds this kernel; raises `KernelError` when there is none.

    Tried in order: the spec it was loaded by, a registered name, a module that holds the kernel (or
    its class) under some name, and the file of the running script.
    """
    if kernel.spec:
        return kernel.spec
    owner = type(kernel)
    for name, place in BUILT_IN.items():
        if place == f"{owner.__module__}:{owner.__qualname__}":
            return name
    for module, attribute in _holders(kernel):
        spec = _module_spec(module, attribute)
        if spec:
            return spec
    raise KernelError(
        f"kernel {kernel.name}: no other process can find it",
        "put it into a .py file or a module, at top level (not in a notebook cell or a function), "
        "and load it as module:object or path/to/file.py:object",
    )


def place_of(spec: str, paths: Sequence[str] = ()) -> tuple[Path, str] | None:
    """The file that a spec names, and the name of its module.

    None for a part of tuner and for a file that cannot be found. Imports nothing.
    """
    place = spec if spec.endswith(".py") else spec.rpartition(":")[0]
    if spec.startswith(_RECORDED):
        file = _find_recording(spec, paths)
        return (file, "") if file else None
    if place.endswith(".py"):
        file = find_file(place, paths)
        return (file, _file_module(file)) if file else None
    if not place:
        if KERNELS.is_built_in(spec):
            return None
        place = KERNELS.place(spec).partition(":")[0]
    origin = module_file(place)
    return (Path(origin), place) if origin else None


# -- loading ---------------------------------------------------------------------------------------
def _load_named(name: str) -> Kernel:
    module, _, attribute = KERNELS.place(name).partition(":")
    return _kernel_of(_import_module(module, name), attribute, name)


def _load_recording(spec: str, paths: Sequence[str]) -> Kernel:
    recorded = _import_module("search_spaces.recorded.recorded_kernel", spec)
    file = _find_recording(spec, paths)
    kernel: Kernel = recorded.load_kernel(file or spec.removeprefix(_RECORDED))
    return kernel


def _find_recording(spec: str, paths: Sequence[str]) -> Path | None:
    """The file of a recording: the user's own, else one of the package."""
    packaged = f"{Path(__file__).with_name('recorded')}"
    return find_file(spec.removeprefix(_RECORDED), (*paths, ".", packaged))


def find_file(place: str, paths: Sequence[str] = ()) -> Path | None:
    """The file of that name in the first of the folders, else in the working folder."""
    for folder in (*paths, "."):
        file = (Path(folder).expanduser() / Path(place).expanduser()).resolve()
        if file.is_file():
            return file
    return None


def import_file(file: str) -> ModuleType:
    """The module of a Python file, imported once; raises `KernelError` in one line."""
    found = find_file(file)
    if found is None:
        raise KernelError(f"there is no file {file}", "it was there when a call was captured")
    return _import_file(found, file)


def _file_module(file: Path) -> str:
    """The import name of a kernel's file; the same in every process."""
    tag = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    return f"tuner_kernels_{file.stem.replace('-', '_').replace('.', '_')}_{tag}"


def _import_file(file: Path, spec: str) -> ModuleType:
    """Import a file once, under a name that is the same in every process."""
    name = _file_module(file)
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, file)
    if found is None or found.loader is None:
        raise KernelError(f"kernel {spec}: {file} is no Python file", "name a .py file")
    make_importable(file, spec)
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        with _importing(spec):
            found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str, spec: str) -> ModuleType:
    with _importing(spec):
        return importlib.import_module(name)


@contextmanager
def _importing(spec: str) -> Iterator[None]:
    token = _under_import.set(spec)
    try:
        with (
            contain_foreign_code(),
            span(f"load kernel {spec}", "import", least_s=_LEAST_LOAD_S),
            note_imports(),
        ):
            yield
    except NestedError:
        raise
    except (Exception, SystemExit) as error:
        raise _import_failed(spec, error) from error
    finally:
        _under_import.reset(token)


def _import_failed(spec: str, error: BaseException) -> KernelError:
    if isinstance(error, ImportClash):
        return KernelError(f"kernel {spec}: {error}", error.remedy)
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    hint = "correct the module, and try `python -c 'import ...'` on it"
    if isinstance(error, TunerError):
        hint = error.hint
    elif missing:
        hint = f"install {missing}, or add its folder to the import path"
    elif has_several():
        hint += "; if it cannot be imported for two devices, run each target separately"
    return KernelError(f"kernel {spec}: importing it fails with {one_line(error)}", hint)


def _kernel_of(module: ModuleType, attribute: str, spec: str) -> Kernel:
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            place = spec.rpartition(":")[0].rpartition("/")[2]
            raise KernelError(
                f"kernel {spec}: {place or module.__name__} has no {attribute}"
                f"{did_you_mean(part, vars(module))}",
                "name a Kernel class, an instance, or a function that returns one",
            )
        found = getattr(found, part)
    kernel = _instance(found, spec)
    _check_identity(kernel, spec)
    kernel.spec = spec
    return kernel


def _without_object(place: str, paths: Sequence[str]) -> KernelError:
    """The error for a file without an object: it names the kernels in the file."""
    file = find_file(place, paths)
    if file is None:
        return KernelError(f"there is no file {place}", "name a kernel as file.py:object")
    module = _import_file(file, place)
    names = [
        name
        for name, each in vars(module).items()
        if isinstance(each, Kernel)
        or (_is_declaration(each) and each.__module__ == module.__name__)
    ]
    if not names:
        return KernelError(f"{place} has no kernel", "declare one there, or use tuner.adopt(...)")
    specs = " or ".join(f"{place}:{name}" for name in names)
    return KernelError(f"{place} is a file; did you mean {specs}?", "name a kernel of the file")


def _is_declaration(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, Kernel) and not inspect.isabstract(found)


def _instance(found: object, spec: str) -> Kernel:
    if inspect.isclass(found) and inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise KernelError(f"kernel {spec}: it does not define {missing}", "define them")
    if not isinstance(found, Kernel) and (inspect.isclass(found) or inspect.isroutine(found)):
        try:
            with contain_foreign_code():
                found = found()
        except TunerError:
            raise
        except (Exception, SystemExit) as error:
            raise KernelError(
                f"kernel {spec}: making it fails with {one_line(error)}",
                "it is called without arguments",
            ) from error
    if isinstance(found, Kernel):
        return found
    adoptable = hasattr(found, "configs") and hasattr(found, "keys")
    raise KernelError(
        f"kernel {spec}: it is a {type(found).__name__}, not a Kernel",
        "wrap it with tuner.adopt(...)" if adoptable else "see docs/search_spaces.md",
    )


def _check_identity(kernel: Kernel, spec: str) -> None:
    """What every other part takes for granted of a kernel: its name and its kinds of backend."""
    name, kinds = getattr(kernel, "name", None), kernel.kinds
    if not isinstance(name, str) or not name:
        raise KernelError(f"kernel {spec}: it has no name", 'add `name = "..."` to the class')
    if not isinstance(kinds, tuple) or not kinds or not all(isinstance(k, str) for k in kinds):
        raise KernelError(
            f"kernel {spec}: kinds is {kinds!r}, not a tuple of backends",
            'write kinds = ("cuda", "hip"), or kinds = ("cpu",)',
        )


# -- finding a spec --------------------------------------------------------------------------------
def _holders(kernel: Kernel) -> Iterator[tuple[ModuleType, str]]:
    """Modules and names that hold the kernel itself, then its class; its own module first."""
    home = type(kernel).__module__
    modules = sorted(sys.modules.copy().items(), key=lambda item: item[0] != home)
    for module_name, module in modules:
        if not isinstance(module, ModuleType) or module_name == "__mp_main__":
            continue
        for attribute, value in list(vars(module).items()):
            if value is kernel:
                yield module, attribute
    owner = type(kernel)
    own = sys.modules.get(home)
    if own is not None and _is_stateless(kernel):
        for attribute, value in list(vars(own).items()):
            if value is owner:
                yield own, attribute


def _is_stateless(kernel: Kernel) -> bool:
    """Whether calling the class again makes an equal kernel."""
    return not getattr(kernel, "__dict__", None)


def _module_spec(module: ModuleType, attribute: str) -> str | None:
    found = getattr(module, "__spec__", None)
    name = found.name if module.__name__ == "__main__" and found else module.__name__
    if name != "__main__" and not name.startswith("tuner_kernels_"):
        return f"{name}:{attribute}"
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        return None
    return f"{Path(file).resolve()}:{attribute}"

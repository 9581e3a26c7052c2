"""An operator: a function of tensors that runs the implementation measured fastest for each call.

An operator has a schema, a function of torch, and a `Problem` for the calls that a kernel can take.
The function of torch defines what the operator means: it runs for all other calls, for shapes
without an entry, on other devices, under vmap, and for tensor subclasses.

A call takes one of three ways:

1. plain tensors: the decision for these shapes, strides, dtypes, alignments and scalars, made at
   the first such call and kept (`choosing.py`, `planning.py`), in a function of autograd where a
   gradient is needed that a kernel computes;
2. `torch.compile`, `torch.export` and fake tensors: the operator `torch.ops.tuner.<name>`, which
   runs 1. inside;
3. all else: the function of torch, with torch's own gradients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, count
from operator import itemgetter
from types import NoneType
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes as outside_of_tracing

from search_spaces.baselines import find_baseline
from search_spaces.records import Value
from tuner.ops import compiling, decompositions
from tuner.ops.choosing import (
    ANY,
    EAGER,
    TUNED,
    Choice,
    choose,
    list_substitutes,
    numerics_of_calls,
    warn_of_torch,
)
from tuner.ops.overriding import leave_to_torch
from tuner.ops.planning import Plan, launch_all
from tuner.ops.problem import PLAIN, Problem
from tuner.ops.small_launches import interprets
from tuner.runtime import NotCompiled, without_compiler

_NAMESPACE = "tuner"
#: Decisions that an operator keeps; it forgets all of them when there are more.
_MOST_KEPT = 8192
#: What autocast does to floating-point arguments: they get its dtype, or float32; nothing, since
#: results are float32 whatever they are; or torch's function runs, whose results differ in dtype.
LOWER, FLOAT32, WIDE, TORCHS = "lower", "float32", "wide", "torch"

#: What an operator returns: a tensor or a tuple of tensors.
Result = TypeVar("Result")
#: A call, as far as its decision depends on it.
_Key: TypeAlias = tuple[Any, ...]
#: Runs an implementation; None where torch's function does.
_Run: TypeAlias = Callable[[Sequence[Any]], Any]

_deciding = threading.RLock()
#: All operators by name.
OPERATORS: dict[str, Operator[Any]] = {}
_versions = count(1)
_version = [0]
#: Called with the decisions of an operator before it forgets them.
BEFORE_FORGETTING: list[Callable[[list[Decision]], None]] = []


@dataclass(slots=True)
class Decision:
    """What runs for calls of one kind."""

    choice: Choice
    #: The problem as text; empty where no kernel takes the call.
    workload: str
    run: _Run | None
    #: Whether it holds only as long as nothing may be compiled.
    waits: bool = False
    calls: int = 0
    #: The kernel and its workload as tables have it; empty where no kernel takes the call.
    kernel: str = ""
    key: Mapping[str, Value] = field(default_factory=dict)


class Operator(Generic[Result]):
    """One operator, registered as `torch.ops.tuner.<name>`.

    schema: as `torch.library` has it, without the name: `(Tensor x) -> Tensor`. reference: the
    function of torch. problem: of the same arguments; None for a call that no kernel takes. It
    gives the tensor arguments under the kernel's names, in their order. setup_context, backward: as
    `torch.library.register_autograd` takes them; without, torch differentiates the reference.
    fake: the results without data, where those of the reference depend on more than shapes.
    autocast: one of the names above, or empty for what autocast leaves alone; arguments of the
    names `keeps` are never cast.
    eagerly: of the arguments, what stands for torch's function where that is faster than a kernel,
    outside of graphs, without a gradient; by default the reference.
    least_gain: over compiled code of torch's function, for an operator to stay one in a graph that
    is compiled (`decompositions.py`).
    """

    def __init__(
        self,
        name: str,
        schema: str,
        reference: Callable[..., Result],
        problem: Callable[..., Problem | None],
        *,
        setup_context: Callable[..., None] | None = None,
        backward: Callable[..., Any] | None = None,
        fake: Callable[..., Result] | None = None,
        autocast: str = "",
        keeps: Sequence[str] = (),
        eagerly: _Run | None = None,
        least_gain: float = decompositions.FUSED,
    ) -> None:
        self.name, self.reference, self._shape = name, reference, fake or reference
        self._problem, self._autocast, self._least_gain = problem, autocast, least_gain
        self._eagerly = eagerly
        self._decisions: dict[_Key, Decision] = {}
        #: Runs in a function of autograd; None where torch differentiates the reference.
        self._differentiated = backward and _differentiate(setup_context, backward)
        place = f"{_NAMESPACE}::{name}"
        torch.library.define(place, schema, tags=(torch.Tag.needs_exact_strides,))
        torch.library.impl(place, "CompositeExplicitAutograd")(self._execute)
        torch.library.register_fake(place)(self._fake)
        if backward is not None:
            torch.library.register_autograd(place, backward, setup_context=setup_context)
        self._op = getattr(getattr(torch.ops, _NAMESPACE), name).default
        self._kept = [each.name in keeps for each in self._op._schema.arguments]
        decompositions.register(self._op, self._decompose)
        OPERATORS[name] = self

    # -- the three ways ------------------------------------------------------------------------
    def __call__(self, *arguments: Any) -> Result:
        if torch._C._is_any_autocast_enabled():
            if _autocasts_itself(arguments):
                return self.reference(*arguments)
            if self._autocast not in ("", WIDE) and autocasts(arguments):
                return self._cast(arguments)
        if torch.compiler.is_compiling():
            needs_torch = self._differentiated is None and needs_gradient(arguments)
            # Dynamo guards what it reads here: other numerics make it trace another graph.
            if needs_torch or is_transformed() or not numerics_of_calls():
                return self.reference(*arguments)
            return self._call_op(arguments)
        key, gradient, way = _read(arguments)
        if way is not None:
            return self._call_op(arguments) if way else self.reference(*arguments)
        decision = self._decisions.get(key)
        if decision is None or decision.waits:
            decision = self._decide(key, arguments)
        decision.calls += 1
        run = decision.run
        if run is None:
            return self._leave_to_torch(arguments)
        if gradient and torch.is_grad_enabled():
            if self._differentiated is None:
                warn_of_torch(f"gradients of {self.name}")
                return self._leave_to_torch(arguments)
            differentiated: Result = self._differentiated(*arguments, run)
            return differentiated
        found: Result = run(arguments)
        return found

    def _leave_to_torch(self, arguments: Sequence[Any]) -> Result:
        if not _len_torch_function_stack():
            return self.reference(*arguments)
        return leave_to_torch(self.reference, *arguments)

    def serves(self, *arguments: Any) -> bool:
        """Whether something but torch runs such a call, or the operator itself is traced."""
        if _autocasts_itself(arguments):
            return False
        if torch.compiler.is_compiling():
            return not is_transformed()
        key, _, way = _read(arguments)
        if way is not None:
            return way
        return self._find_decision(key, arguments).run not in (None, self._eagerly)

    def find(self, *arguments: Any) -> tuple[_Run | None, bool] | None:
        """What runs a call of plain tensors, and whether an argument needs a gradient: for a
        function that calls it in an autograd function of its own. None for all other calls."""
        if torch.compiler.is_compiling() or _autocasts_itself(arguments):
            return None
        key, gradient, way = _read(arguments)
        if way is not None:
            return None
        decision = self._find_decision(key, arguments)
        decision.calls += decision.run is not None
        return decision.run, gradient and torch.is_grad_enabled()

    def _call_op(self, arguments: Sequence[Any]) -> Result:
        found: Result = self._op(*arguments)
        return found

    def _execute(self, *arguments: Any) -> Any:
        """The implementation of `torch.ops.tuner.<name>`: new contiguous tensors."""
        key, _, way = _read(arguments)
        run = None
        if way is None:
            decision = self._find_decision(key, arguments)
            decision.calls += 1
            run = decision.run
        return self._run_torch(arguments) if run is None else run(arguments)

    def _run_torch(self, arguments: Sequence[Any]) -> Any:
        with torch.autocast("cuda", enabled=False):
            return _contiguous(self.reference(*arguments), arguments)

    def _fake(self, *arguments: Any) -> Any:
        decompositions.hand_over()
        return _contiguous(self._shape(*arguments), arguments)

    def _decompose(self, *arguments: Any) -> Any:
        """torch's function where a compiler makes faster code of it, else NotImplemented."""
        device = _device_of(arguments)
        with outside_of_tracing():
            stays = _takes_kernels(device) and self._stays(arguments, device)
        return NotImplemented if stays else self._run_torch(arguments)

    def _stays(self, arguments: Sequence[Any], device: torch.device) -> bool:
        known = decompositions.without_data(arguments)
        if known is None or _has_empty(known):
            return False
        problem = self._problem(*known)
        if problem is None and numerics_of_calls() != ANY:
            problem = self._problem(*_make_contiguous(known))
        if problem is None:
            return False
        with _select(device):
            choice = choose(problem)
        gain = choice.gain_over_compile
        stays = gain is None or gain >= self._least_gain or numerics_of_calls() != ANY
        return choice.entry is not None and stays

    def _cast(self, arguments: Sequence[Any]) -> Result:
        dtype = torch.get_autocast_dtype("cuda") if self._autocast == LOWER else torch.float32
        kept = zip(arguments, self._kept, strict=False)
        cast = [each if keep else lower_dtype(each, dtype) for each, keep in kept]
        if self._autocast == TORCHS and any(
            one is not other for one, other in zip(cast, arguments, strict=True)
        ):
            return self.reference(*arguments)
        with torch.autocast("cuda", enabled=False):
            return self(*cast)

    def decisions(self) -> list[Decision]:
        """What runs for each kind of call so far."""
        return [*self._decisions.values()]

    def forget(self) -> None:
        """Forget all decisions, as after another table was installed."""
        for call in BEFORE_FORGETTING:
            call(self.decisions())
        self._decisions.clear()
        exchange_version(next_version())

    def exchange(self, decisions: dict[_Key, Decision]) -> dict[_Key, Decision]:
        """Keep decisions in this dictionary from now on; returns the former one."""
        former, self._decisions = self._decisions, decisions
        return former

    # -- decisions -----------------------------------------------------------------------------
    def _find_decision(self, key: _Key, arguments: Sequence[Any]) -> Decision:
        decision = self._decisions.get(key)
        if decision is None or decision.waits:
            decision = self._decide(key, arguments)
        return decision

    def _decide(self, key: _Key, arguments: Sequence[Any]) -> Decision:
        with _deciding:
            known = self._decisions.get(key)
            if known is not None and not (known.waits and compiling.refuse() == ""):
                return known
            if len(self._decisions) >= _MOST_KEPT:
                self.forget()
            self._decisions[key] = decision = self._make_decision(arguments)
            return decision

    def _make_decision(self, arguments: Sequence[Any]) -> Decision:
        device, empty = _device_of(arguments), _has_empty(arguments)
        if empty:
            return Decision(Choice(EAGER, "an argument is empty"), "", None)
        if not _takes_kernels(device):
            warn_of_torch(f"{self.name} on {device.type}")
            return Decision(Choice(EAGER, f"no kernel runs on {device.type}"), "", None)
        problem = self._problem(*arguments)
        if problem is None:
            return self._decide_of_copies(arguments)
        failed: dict[str, str] = {}
        missed = False
        dims = problem.workload.key
        decide = partial(Decision, workload=dims, kernel=problem.kernel, key=problem.key)
        with torch.no_grad(), _select(device):
            while True:
                choice = choose(problem, failed)
                wait = "" if choice.implementation != TUNED else compiling.refuse()
                if wait:
                    return decide(Choice(EAGER, wait), run=None, waits=True)
                try:
                    choice, run = self._prepare_first(problem, choice, arguments)
                    break
                except Exception as error:
                    line = f"{type(error).__name__}: {error}".splitlines()[0][:200]
                    failed[choice.implementation] = f"{choice.implementation} failed: {line}"
                    missed |= isinstance(error, NotCompiled)
        known = choice.known and not missed
        choice = replace(choice, reason="; ".join([*failed.values(), choice.reason]), known=known)
        return decide(choice, run=run)

    def _decide_of_copies(self, arguments: Sequence[Any]) -> Decision:
        """What runs a call that no kernel takes: torch; under numerics, what runs one of contiguous
        copies, such as of the heads that attention gets as views."""
        copies = _make_contiguous(arguments) if numerics_of_calls() != ANY else arguments
        if copies is not arguments and self._problem(*copies) is not None:
            decision = self._make_decision(copies)
            run = decision.run
            if run is not None and run is not self._eagerly:
                decision.run = lambda given: run(_make_contiguous(given))
            return decision
        warn_of_torch(f"{self.name} of these arguments")
        return Decision(Choice(EAGER, "no kernel takes this call"), "", None)

    def _prepare_first(
        self, problem: Problem, choice: Choice, arguments: Sequence[Any]
    ) -> tuple[Choice, _Run | None]:
        """What runs a choice; with TUNER_COMPILE=never that of the next best that is compiled."""
        error: NotCompiled | None = None
        for each in chain([choice], list_substitutes(problem, choice)):
            try:
                with without_compiler():
                    return each, self._prepare(problem, each, arguments)
            except NotCompiled as found:
                error = error or found
        assert error is not None
        raise error

    def _prepare(self, problem: Problem, choice: Choice, arguments: Sequence[Any]) -> _Run | None:
        if choice.implementation in (EAGER, *problem.replaced) or choice.kernel is None:
            return self._eagerly
        kernel, config = choice.kernel, choice.config
        if choice.implementation != TUNED:
            if problem.strided:
                return None
            return self._prepare_baseline(problem, choice, arguments)
        assert config is not None
        device = next(iter(problem.tensors.values())).device
        if device.type == "cpu":
            return self._solve(lambda again: launch_all(again, kernel, config, device))
        return Plan(problem, kernel, config, arguments)

    def _prepare_baseline(self, problem: Problem, choice: Choice, arguments: Sequence[Any]) -> _Run:
        assert choice.kernel is not None
        baseline = find_baseline(choice.kernel, problem.workload, choice.implementation)
        baseline(problem.tensors)  # what is not installed, or refuses this call, says so here
        views, outputs = _list_views(problem, arguments), problem.outputs.items()

        def run(arguments: Sequence[Any]) -> Any:
            found = baseline({name: view(arguments) for name, view in views})
            return _one_or_all([_own(found[name], arguments, shape) for name, shape in outputs])

        return run

    def _solve(self, solve: Callable[[Problem], Mapping[str, torch.Tensor]]) -> _Run:
        """Makes the problem of each call anew, and its outputs as the caller wants them."""

        def run(arguments: Sequence[Any]) -> Any:
            problem = self._problem(*arguments)
            assert problem is not None
            found = solve(problem)
            shapes = problem.outputs.items()
            return _one_or_all([_own(found[name], arguments, shape) for name, shape in shapes])

        return run


def _differentiate(
    setup: Callable[..., None] | None, backward: Callable[..., Any]
) -> Callable[..., Any]:
    """Autograd around what a decision runs, which follows the arguments, outside of transforms.

    Outside of graphs it takes the place of the operator's own, which costs ten times as much host
    time (`torch.library` has its dispatch in Python).
    """

    class Differentiated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            arguments = given[:-1]
            found = given[-1](arguments)
            if setup is not None:
                setup(ctx, arguments, found)
            return found

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            found = backward(ctx, *grads)
            return *(found if isinstance(found, tuple) else (found,)), None

    # `apply` in C: what torch has before it in Python is for transforms.
    apply: Callable[..., Any] = super(torch.autograd.Function, Differentiated).apply
    return apply


def version() -> int:
    """Of the decisions of this process: another number after any were forgotten or exchanged."""
    return _version[0]


def next_version() -> int:
    """A number that no decisions have had."""
    return next(_versions)


def exchange_version(number: int) -> int:
    """Give the present decisions the number that they had; returns that of the former ones."""
    former, _version[0] = _version[0], number
    return former


def watch_calls() -> Callable[[], list[Decision]]:
    """Begin to watch; what it returns lists the decisions that have been called since."""
    before = {id(each): each.calls for each in _list_decisions()}
    return lambda: [e for e in _list_decisions() if e.calls > before.get(id(e), 0)]


def _list_decisions() -> list[Decision]:
    return [each for operator in OPERATORS.values() for each in operator.decisions()]


def _read(arguments: Sequence[Any]) -> tuple[_Key, bool, bool | None]:
    """The key of a call, whether an argument needs a gradient, and None for plain tensors.

    Else whether the operator takes the call, as for fake tensors; torch's function does where not,
    as under vmap, for dual numbers and for tensor subclasses.
    """
    if forward_ad._current_level >= 0:
        return (), False, False
    if _len_torch_dispatch_stack():
        return (), False, True
    if peek_interpreter_stack() is not None:
        return (), False, False
    gradient = False
    key: list[Any] = []
    for each in arguments:
        if type(each) in PLAIN:
            # Contiguous tensors of one shape differ at most in strides that lead nowhere.
            key += (
                each.shape, each.is_contiguous() or each.stride(), each.dtype,
                each.get_device() if each.is_cuda else each.device,  # numbers compare faster
                each.data_ptr() & 15,
            )  # fmt: skip
            if each.requires_grad:
                gradient = True
        elif isinstance(each, torch.Tensor):
            return (), False, isinstance(each, FakeTensor | FunctionalTensor)
        else:
            key.append(each)
    return tuple(key), gradient, None


def takes_plain(arguments: Sequence[Any]) -> bool:
    """Whether these are plain tensors with data, outside of transforms and modes of dispatch."""
    return _read(arguments)[2] is None


def is_transformed() -> bool:
    """Whether vmap, jvp or another transform runs; traced, `is None` would never be true."""
    return not isinstance(peek_interpreter_stack(), NoneType)


def _device_of(arguments: Sequence[Any]) -> torch.device:
    return next(each.device for each in arguments if isinstance(each, torch.Tensor))


def _select(device: torch.device) -> torch.cuda.device:
    """Selects the GPU of a call; where there is none, graphs can still be traced for one."""
    return torch.cuda.device(device if device.type == "cuda" and torch.cuda.is_available() else -1)


def _has_empty(arguments: Sequence[Any]) -> bool:
    return any(isinstance(each, torch.Tensor) and not each.numel() for each in arguments)


def needs_gradient(arguments: Sequence[Any]) -> bool:
    """Whether autograd records a call of these arguments."""
    return torch.is_grad_enabled() and any(
        isinstance(each, torch.Tensor) and each.requires_grad for each in arguments
    )


def lower_dtype(argument: Any, dtype: torch.dtype) -> Any:
    """An argument as autocast hands it on: 64-bit and integer tensors stay."""
    if not isinstance(argument, torch.Tensor) or not argument.is_floating_point():
        return argument
    return argument if argument.dtype is torch.float64 else argument.to(dtype)


def _contiguous(found: Any, arguments: Sequence[Any]) -> Any:
    """Results of torch's function as those of kernels are."""
    if isinstance(found, torch.Tensor):
        return _own(found, arguments, found.shape)
    return tuple(_own(each, arguments, each.shape) for each in found)


def _make_contiguous(arguments: Sequence[Any]) -> list[Any]:
    return [each.contiguous() if isinstance(each, torch.Tensor) else each for each in arguments]


def _list_views(
    problem: Problem, arguments: Sequence[Any]
) -> list[tuple[str, Callable[[Sequence[Any]], torch.Tensor]]]:
    """The problem's tensors as views of the arguments of any call of this kind, in their order."""
    places = [at for at, each in enumerate(arguments) if isinstance(each, torch.Tensor)]
    return [
        (name, _view_of(at, arguments[at], tensor))
        for at, (name, tensor) in zip(places, problem.tensors.items(), strict=True)
    ]


def _view_of(
    at: int, given: torch.Tensor, tensor: torch.Tensor
) -> Callable[[Sequence[Any]], torch.Tensor]:
    shape, stride = tensor.shape, tensor.stride()
    if given.data_ptr() != tensor.data_ptr():
        raise TypeError("an input of the kernel is no view of its argument")
    if (given.shape, given.stride()) == (shape, stride):
        return itemgetter(at)
    return lambda arguments: arguments[at].as_strided(shape, stride)


def _own(
    found: torch.Tensor, arguments: Sequence[Any], shape: Sequence[int | torch.SymInt]
) -> torch.Tensor:
    """A result in its shape: contiguous, no memory of an argument, and no view to autograd, which
    would refuse to change it in place."""
    root = _root(found)
    if any([isinstance(each, torch.Tensor) and _root(each) is root for each in arguments]):
        found = found.clone(memory_format=torch.contiguous_format)
    found = found.contiguous()
    if found.shape == shape and not found._is_view():
        return found
    view: torch.Tensor = torch.ops.aten._unsafe_view.default(found, shape)
    return view


def _root(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a view is of; else the tensor itself."""
    base = tensor._base
    return tensor if base is None else base


def _one_or_all(found: Sequence[torch.Tensor]) -> Any:
    return found[0] if len(found) == 1 else tuple(found)


def autocasts(arguments: Sequence[Any]) -> bool:
    """Whether autocast of GPUs is on for a call; in the interpreter, a CPU stands for one."""
    gpu = _device_of(arguments).type == "cuda" or interprets()
    return gpu and torch.is_autocast_enabled("cuda")


def _autocasts_itself(arguments: Sequence[Any]) -> bool:
    """Whether torch's functions cast by the policy of another device, which is theirs to know."""
    return _device_of(arguments).type == "cpu" and torch.is_autocast_enabled("cpu")


def policy_of(function: str, policy: str) -> str:
    """The policy where autocast of this version of torch has the function: `aten::rms_norm`."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key(function, "AutocastCUDA")
    return policy if has else ""


def may_run_kernels(arguments: Sequence[Any]) -> bool:
    """Whether these are plain tensors, outside of graphs and transforms, where kernels run."""
    return _takes_kernels(_device_of(arguments)) and takes_plain(arguments)


def _takes_kernels(device: torch.device) -> bool:
    return device.type == "cuda" or (device.type == "cpu" and interprets())

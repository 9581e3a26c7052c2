"""What an `@triton.autotune` kernel declares: its configs as a search space, its pruning as a rule.

Works on any object with the decorator's attributes (`configs`, `keys`, `fn`), such as those of
`triton.autotune` and `tuner.runtime.autotune`, alone or nested with `@triton.heuristics`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from search_spaces.errors import KernelError
from search_spaces.near_names import did_you_mean
from search_spaces.params import (
    Choice,
    Parameter,
    PowerOfTwo,
    is_member,
    is_power_of_two,
    plain_value,
)
from search_spaces.records import Config, Value, config_key
from search_spaces.source_positions import one_line
from tuner.runtime.device_code import place_text

Rules: TypeAlias = Mapping[str, Callable[[Mapping[str, Any]], Any]]
_OPTIONS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None, "ir_override": None}


@dataclass(frozen=True)
class AutotuneParts:
    """An autotuned kernel taken apart."""

    #: What the user calls the kernel; for messages.
    name: str
    #: The `@triton.jit` function.
    fn: Any
    #: The object with the configs.
    tuner: Any
    #: Constexprs computed before a config is chosen: heuristics above the tuner, outermost first.
    outer: tuple[Rules, ...]
    #: Constexprs computed from a config as well: heuristics below the tuner.
    inner: tuple[Rules, ...]
    #: The tuned values of each `triton.Config`; unset ones are left out.
    configs: tuple[Config, ...]
    #: What a plain value stands for, by name.
    originals: Mapping[tuple[str, Value], Any]
    #: Arguments that callers pass by keyword, and with them all that come later.
    keywords: tuple[str, ...] = ()
    #: Whether the caller does the work of pre_hooks; otherwise configs with hooks are refused.
    hooks: bool = False

    @property
    def arg_names(self) -> tuple[str, ...]:
        return tuple(self.fn.arg_names)

    @property
    def reset_to_zero(self) -> tuple[str, ...]:
        return tuple(getattr(self.tuner, "reset_to_zero", None) or ())

    @property
    def restore_value(self) -> tuple[str, ...]:
        return tuple(getattr(self.tuner, "restore_value", None) or ())

    @property
    def pruner(self) -> Callable[..., Any] | None:
        """`early_config_prune`; without a choice Triton calls neither it nor the model."""
        found = getattr(self.tuner, "early_config_prune", None)
        return found if len(self.configs) > 1 else None

    @property
    def model(self) -> Callable[..., Any] | None:
        found = getattr(self.tuner, "perf_model", None)
        return found if len(self.configs) > 1 else None

    def launch_values(self, config: Config) -> dict[str, Any]:
        """A config as the keyword arguments of a launch; what is None is left to Triton."""
        return {
            name: self.originals.get((name, value), value)
            for name, value in config.items()
            if value is not None
        }

    def split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments as a caller passes them: by position up to the first that is tuned, computed or
        one of `keywords`."""
        rest = dict(arguments)
        positional = []
        for name in self.arg_names:
            if name not in rest or name in self.keywords:
                break
            positional.append(rest.pop(name))
        return tuple(positional), rest

    def constants(self, arguments: Mapping[str, Any], tuned: Mapping[str, Any]) -> dict[str, Any]:
        """What the heuristics compute from all other arguments."""
        found = self._compute(self.outer, {**arguments, **tuned})
        return {**found, **self._compute(self.inner, {**arguments, **tuned, **found})}

    def _compute(self, rules: Sequence[Rules], given: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for group in rules:
            for name, rule in group.items():
                found[name] = rule({**given, **found})
        return found

    def plain(self, item: Any) -> Config:
        """A `triton.Config` as plain values."""
        return _plain_configs(self.name, [item], {})[0][0]

    def parameters(self) -> list[Parameter]:
        """One parameter per tuned name: powers of two where all its values are, else a choice."""
        names = list(dict.fromkeys(name for config in self.configs for name in config))
        return [_parameter(name, [config.get(name) for config in self.configs]) for name in names]

    # -- pruning -------------------------------------------------------------------------------
    def apply_pruner(self, arguments: Mapping[str, Any], grid: Any) -> AutotuneParts:
        """The kernel with the configs that its own `early_config_prune` makes of its configs.

        arguments: all but the tuned and computed ones. The pruner is called as `Autotuner.run`
        does, with copies: it may change them.
        """
        if self.pruner is None:
            return self
        found = self._early(list(map(_copy_config, self.tuner.configs)), arguments, grid)
        configs, originals = _plain_configs(self.name, found, self.originals)
        return replace(self, configs=configs, originals=originals)

    def keeps(self, config: Config, arguments: Mapping[str, Any], grid: Any) -> bool:
        """Whether `early_config_prune` keeps a config that is none of the kernel's own."""
        if self.pruner is None:
            return True
        values = self.launch_values(config)
        import triton

        options = {name: values.pop(name) for name in _OPTIONS if name in values}
        found = self._early([triton.Config(values, **options)], arguments, grid)
        key = config_key(given_values(config))
        return any(config_key(item) == key for item in _plain_configs(self.name, found, {})[0])

    def _early(self, configs: list[Any], arguments: Mapping[str, Any], grid: Any) -> list[Any]:
        prune = self.bound_pruner(arguments, grid)
        assert prune is not None
        return prune(configs)

    def bound_pruner(
        self, arguments: Mapping[str, Any], grid: Any
    ) -> Callable[[list[Any]], list[Any]] | None:
        """The pruner with the arguments of a launch; it may change the configs that it is given.

        Raises `KernelError` where the pruner raises, or makes configs with hooks that are refused.
        """
        pruner = self.pruner
        if pruner is None:
            return None

        def prune(configs: list[Any]) -> list[Any]:
            named, keywords = self._call(arguments, grid)
            with self._asking("early_config_prune"):
                found = list(pruner(configs, named, **keywords))
            if not self.hooks and any(getattr(item, "pre_hook", None) for item in found):
                raise _hooks_refused(self.name, "its early_config_prune makes configs with a")
            return found

        return prune

    def best(self, arguments: Mapping[str, Any], grid: Any) -> list[Config]:
        """The configs that `perf_model` ranks first, `top_k` of them."""
        if self.model is None:
            return list(self.configs)
        top = getattr(self.tuner, "configs_top_k", 1.0)
        count = int(len(self.tuner.configs) * top) if isinstance(top, float) else int(top)
        if len(self.configs) <= count:
            return list(self.configs)
        named, keywords = self._call(arguments, grid)
        usual = {name: value for name, value in _OPTIONS.items() if value is not None}
        with self._asking("perf_model"):
            times = [
                self.model(**{**named, **keywords, **usual, **self.launch_values(config)})
                for config in self.configs
            ]
        order = sorted(range(len(times)), key=times.__getitem__)
        return [self.configs[at] for at in order[:count]]

    def _call(
        self, arguments: Mapping[str, Any], grid: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments as the tuner hands them on: those by position, named, and the keywords."""
        positional, keywords = self.split(arguments)
        named = dict(zip(self.arg_names, positional, strict=False))
        computed = self._compute(self.outer, {**named, **keywords})
        return named, {**keywords, **computed, "grid": grid, "warmup": False}

    @contextmanager
    def _asking(self, function: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            lacking = isinstance(error, KeyError | TypeError | AttributeError)
            raise KernelError(
                f"kernel {self.name}: its {function} raises {one_line(error)}",
                "name in keywords=(...) what your library passes by keyword"
                if lacking
                else "it is called as the autotuner calls it, with tensors on the device meta",
            ) from error


def given_values(config: Config) -> Config:
    """A config without what it leaves to Triton."""
    return {name: value for name, value in config.items() if value is not None}


def under_autotuner(fn: Any, configs: Sequence[Any], key: Sequence[str], name: str) -> Any:
    """A plain `@triton.jit` kernel, perhaps under heuristics, with an autotuner around it."""
    import triton

    if _is_tuner(fn) or _is_tuner(getattr(fn, "fn", None)):
        raise KernelError(
            f"kernel {name}: it is under @triton.autotune, which has configs already",
            "leave out configs= and key=",
        )
    if not hasattr(fn, "arg_names") or not all(isinstance(c, triton.Config) for c in configs):
        raise KernelError(
            f"kernel {name}: configs= goes with a @triton.jit function",
            "give that function and a list of triton.Config",
        )
    if not configs:
        raise KernelError(f"kernel {name}: configs=[] leaves nothing to tune", "list some configs")
    return triton.runtime.Autotuner(fn, fn.arg_names, list(configs), list(key), None, None)


def _is_tuner(fn: Any) -> bool:
    return hasattr(fn, "configs") and hasattr(fn, "keys")


def take_apart(
    autotuned: Any, name: str, keywords: Sequence[str] = (), *, hooks: bool = False
) -> AutotuneParts:
    """The parts of an autotuned kernel; raises `KernelError` for what cannot be adopted.

    hooks: whether the caller does the work of pre_hooks and post_hooks; otherwise they are refused.
    """
    tuner, fn = None, autotuned
    outer: list[Rules] = []
    inner: list[Rules] = []
    while True:
        if _is_tuner(fn):
            tuner = fn
        elif isinstance(getattr(fn, "values", None), dict):
            (outer if tuner is None else inner).append(fn.values)
        within = getattr(fn, "fn", None)
        if hasattr(fn, "params") or within is None or not hasattr(within, "arg_names"):
            break
        fn = within
    if tuner is None or not hasattr(fn, "arg_names"):
        raise KernelError(
            f"kernel {name}: {type(autotuned).__name__} is not under @triton.autotune",
            "adopt the decorated kernel itself, give configs=[triton.Config(...), ...] for a plain "
            "@triton.jit kernel, or declare a Kernel",
        )
    if not hooks:
        _refuse_hooks(tuner, name)
    named = {"keywords": keywords}
    for option in ("reset_to_zero", "restore_value"):
        named[option] = tuple(getattr(tuner, option, None) or ())
    for option, arguments in named.items():
        for unknown in (each for each in arguments if each not in fn.arg_names):
            raise KernelError(
                f"kernel {name}: {option} names {unknown}, which is no argument of the kernel"
                f"{did_you_mean(unknown, fn.arg_names)}",
                f"the arguments are {', '.join(fn.arg_names)}",
            )
    configs, originals = _plain_configs(name, tuner.configs, {})
    return AutotuneParts(
        name, fn, tuner, tuple(outer), tuple(inner), configs, originals, tuple(keywords), hooks
    )


def _refuse_hooks(tuner: Any, name: str) -> None:
    own = [getattr(tuner, f"user_defined_{hook}_hook", False) for hook in ("pre", "post")]
    if any(own) or any(getattr(item, "pre_hook", None) for item in tuner.configs):
        raise _hooks_refused(name, "its")


def _hooks_refused(name: str, whose: str) -> KernelError:
    return KernelError(
        f"kernel {name}: {whose} pre_hook or post_hook, which runs Python before a launch",
        "adopt knows reset_to_zero and restore_value; for other hooks declare a Kernel, whose "
        "launches() does their work",
    )


def _copy_config(item: Any) -> Any:
    """A `triton.Config` that may be changed without a change of the original."""
    found = copy.copy(item)
    found.kwargs = dict(item.kwargs)
    return found


def _plain_configs(
    kernel: str, items: Iterable[Any], known: Mapping[tuple[str, Value], Any]
) -> tuple[tuple[Config, ...], dict[tuple[str, Value], Any]]:
    """Distinct configs as plain values, and what these stand for; `known` is part of that.

    Raises `KernelError` for two values of one parameter that have the same text.
    """
    configs: dict[str, Config] = {}
    originals = dict(known)
    texts: set[tuple[str, Value]] = set()
    for item in items:
        config: dict[str, Value] = {}
        for name, given in _read_settings(item).items():
            plain, value = _plain(kernel, name, given)
            config[name] = plain
            if plain is value:
                texts |= {(name, plain)} if isinstance(plain, str) else set()
            elif not _is_alike(originals.setdefault((name, plain), value), value):
                raise _alike(kernel, name, plain)
        configs.setdefault(config_key(config), config)
    for name, plain in texts & originals.keys():
        raise _alike(kernel, name, plain)
    return tuple(configs.values()), originals


def _read_settings(item: Any) -> dict[str, Any]:
    """What a `triton.Config` sets: constexprs and options that are not the usual ones."""
    given = dict(item.kwargs)
    for option, usual in _OPTIONS.items():
        value = getattr(item, option, None)
        if value is not None and (option in ("num_warps", "num_stages") or value != usual):
            given[option] = value
    return given


def _plain(kernel: str, name: str, given: Any) -> tuple[Value, Any]:
    """A value of a config as a table holds it, and as it is launched."""
    given = getattr(given, "value", given) if type(given).__name__ == "constexpr" else given
    value = plain_value(given)
    if isinstance(value, float) and not math.isfinite(value):
        raise KernelError(
            f"kernel {kernel}: a config sets {name} to {value}, and JSON has no such number",
            "leave the config out, or let a text or a flag stand for the value",
        )
    if isinstance(value, bool | int | float | str):
        return value, value
    text = place_text(value)
    if " at 0x" in text:
        raise KernelError(
            f"kernel {kernel}: a config sets {name} to {text}, which has no name",
            "define it at the top level of a module, so that other processes find it",
        )
    return text, value


def _is_alike(known: Any, value: Any) -> bool:
    """Whether two objects of one text are the same, perhaps made again by a pruner."""
    code = getattr(known, "__code__", None)
    if known is value or (code is not None and code is getattr(value, "__code__", None)):
        return True
    try:
        return type(known) is type(value) and bool(known == value)
    except Exception:  # such as arrays, or a comparison of the user's
        return False


def _alike(kernel: str, name: str, text: Value) -> KernelError:
    return KernelError(
        f"kernel {kernel}: its configs set {name} to two values that both read {text!r}",
        "give them different names; texts such as 'None' cannot stand beside None",
    )


def _parameter(name: str, values: Sequence[Value]) -> Parameter:
    distinct: list[Value] = []
    for value in values:
        if not is_member(value, distinct):
            distinct.append(value)
    powers = sorted(value for value in distinct if type(value) is int and is_power_of_two(value))
    if len(powers) == len(distinct) and powers[-1] == powers[0] << (len(powers) - 1):
        return PowerOfTwo(name, powers[0], powers[-1])
    return Choice(name, distinct)

"""What an `@triton.autotune` kernel declares: its configs as a search space, its pruning as a rule.

Works on any object with the decorator's attributes (`configs`, `keys`, `fn`), such as those of
`triton.autotune` and `tuner.runtime.autotune`, alone or nested with `@triton.heuristics`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.errors import KernelError
from search_spaces.params import Choice, Parameter, PowerOfTwo, is_member, is_power_of_two
from search_spaces.records import Config, Value, config_key

_OPTIONS = {"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None, "ir_override": None}


@dataclass(frozen=True)
class Autotuned:
    """An autotuned kernel taken apart.

    fn: the `@triton.jit` function. tuner: the object with the configs. heuristics: constexprs
    computed from the arguments, in the order in which they apply. configs: the tuned values of each
    `triton.Config`, the unset ones left out. originals: what a plain value stands for, by name.
    """

    fn: Any
    tuner: Any
    heuristics: tuple[Mapping[str, Callable[[Mapping[str, Any]], Any]], ...]
    configs: tuple[Config, ...]
    originals: Mapping[tuple[str, Value], Any]

    @property
    def arg_names(self) -> tuple[str, ...]:
        return tuple(self.fn.arg_names)

    def launch_values(self, config: Config) -> dict[str, Any]:
        """A config as the keyword arguments of a launch; what is None is left to Triton."""
        return {
            name: self.originals.get((name, value), value)
            for name, value in config.items()
            if value is not None
        }

    def split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments as a caller passes them: those before the first tuned one by position."""
        rest = dict(arguments)
        positional = []
        for name in self.arg_names:
            if name not in rest:
                break
            positional.append(rest.pop(name))
        return tuple(positional), rest

    def constants(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What the heuristics compute from all other arguments."""
        found: dict[str, Any] = {}
        for rules in self.heuristics:
            for name, rule in rules.items():
                found[name] = rule({**arguments, **found})
        return found

    def parameters(self) -> list[Parameter]:
        """One parameter per tuned name: powers of two where all its values are, else a choice."""
        names = list(dict.fromkeys(name for config in self.configs for name in config))
        return [_parameter(name, [config.get(name) for config in self.configs]) for name in names]

    def pruned(self, config: Config, arguments: Mapping[str, Any], listed: bool) -> bool:
        """Whether the kernel's own `prune_configs_by` drops a config on these arguments.

        `early_config_prune` sees the kernel's configs or, for a config that is none of them, that
        one alone. `perf_model` with `top_k` ranks listed configs only.
        """
        early = getattr(self.tuner, "early_config_prune", None)
        model = getattr(self.tuner, "perf_model", None)
        if early is None and (model is None or not listed):
            return False
        candidates = self._triton_configs(config, listed)
        kept = candidates
        if early is not None:
            positional, keywords = self.split(arguments)
            named = dict(zip(self.arg_names, positional, strict=False))
            kept = list(early(list(candidates), {**keywords, **named}, **keywords))
        if model is not None and listed:
            kept = self._best(kept, arguments, model)
        wanted = config_key({key: value for key, value in config.items() if value is not None})
        return all(config_key(_plain_config(item)[0]) != wanted for item in kept)

    def _triton_configs(self, config: Config, listed: bool) -> list[Any]:
        if listed:
            return list(self.tuner.configs)
        import triton

        values = self.launch_values(config)
        options = {name: values.pop(name) for name in _OPTIONS if name in values}
        return [triton.Config(values, **options)]

    def _best(
        self, kept: list[Any], arguments: Mapping[str, Any], model: Callable[..., float]
    ) -> list[Any]:
        top = getattr(self.tuner, "configs_top_k", 1.0)
        count = int(len(self.tuner.configs) * top) if isinstance(top, float) else int(top)
        times = [
            (model(**{**arguments, **self.launch_values(_plain_config(item)[0])}), at)
            for at, item in enumerate(kept)
        ]
        return [kept[at] for _, at in sorted(times)[:count]] if len(kept) > count else kept


def take_apart(autotuned: Any, name: str) -> Autotuned:
    """The parts of an autotuned kernel; raises `KernelError` for what cannot be adopted."""
    tuner, fn, heuristics = None, autotuned, []
    while True:
        if hasattr(fn, "configs") and hasattr(fn, "keys"):
            tuner = fn
        elif isinstance(getattr(fn, "values", None), dict):
            heuristics.append(fn.values)
        inner = getattr(fn, "fn", None)
        if hasattr(fn, "params") or inner is None or not hasattr(inner, "arg_names"):
            break
        fn = inner
    if tuner is None or not hasattr(fn, "arg_names"):
        raise KernelError(
            f"kernel {name}: {type(autotuned).__name__} is not under @triton.autotune",
            "adopt the decorated kernel itself, or declare a Kernel",
        )
    _refuse_hooks(tuner, name)
    configs, originals = [], {}
    for item in tuner.configs:
        config, given = _plain_config(item)
        configs.append(config)
        originals.update(given)
    return Autotuned(fn, tuner, tuple(heuristics), tuple(configs), originals)


def _refuse_hooks(tuner: Any, name: str) -> None:
    own = [getattr(tuner, f"user_defined_{hook}_hook", False) for hook in ("pre", "post")]
    if any(own) or any(getattr(item, "pre_hook", None) for item in tuner.configs):
        raise KernelError(
            f"kernel {name}: its pre_hook or post_hook runs Python before a launch",
            "adopt knows reset_to_zero and restore_value; for other hooks declare a Kernel, whose "
            "launches() does their work",
        )


def _plain_config(item: Any) -> tuple[dict[str, Value], dict[tuple[str, Value], Any]]:
    """A `triton.Config` as plain values, and what each stands for where it is no plain value."""
    given = dict(item.kwargs)
    for option, usual in _OPTIONS.items():
        value = getattr(item, option, None)
        if value is not None and (option in ("num_warps", "num_stages") or value != usual):
            given[option] = value
    config: dict[str, Value] = {}
    originals: dict[tuple[str, Value], Any] = {}
    for name, value in given.items():
        plain = value if isinstance(value, bool | int | float | str) else f"{value}"
        config[name] = plain
        if plain is not value:
            originals[name, plain] = value
    return config, originals


def _parameter(name: str, values: Sequence[Value]) -> Parameter:
    distinct: list[Value] = []
    for value in values:
        if not is_member(value, distinct):
            distinct.append(value)
    powers = sorted(value for value in distinct if type(value) is int and is_power_of_two(value))
    if len(powers) == len(distinct) and powers[-1] == powers[0] << (len(powers) - 1):
        return PowerOfTwo(name, powers[0], powers[-1])
    return Choice(name, distinct)

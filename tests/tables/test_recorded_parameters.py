"""Parameters inferred from configs span a space of exactly those configs."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from search_spaces.errors import TunerError
from search_spaces.params import Boolean, Choice, PowerOfTwo
from search_spaces.recorded.recorded_kernel import RecordedConfig, RecordedKernel, RecordedSpace
from search_spaces.records import Device, Toolchain, Workload, config_key
from search_spaces.registry import load
from search_spaces.space import SearchSpace
from tuner.tables.recorded_spaces import parameters_of
from workers.device import offline

DEVICE = Device("cuda", "card", "cuda:90")
WORKLOAD = Workload.of(n=1)


def spanned(configs):
    """The feasible configs of a recorded space that holds these."""
    entries = tuple(RecordedConfig(config, median_us=1.0) for config in configs)
    parameters = parameters_of(configs)
    recorded = RecordedSpace(
        "k", WORKLOAD, DEVICE, Toolchain(), parameters, configs[0], configs=entries
    )
    kernel = RecordedKernel(recorded)
    return list(kernel.space(WORKLOAD).bind(WORKLOAD, kernel.device).enumerate())


def keys(configs):
    return sorted(map(config_key, configs))


@st.composite
def chained(draw):
    """Up to five parameters, each under conditions on up to two earlier, conditional ones too."""
    parameters = []
    for at in range(draw(st.integers(2, 5))):
        others = draw(st.sets(st.integers(0, at - 1), max_size=2)) if at else ()
        when = {
            parameters[other].name: draw(
                st.lists(st.sampled_from(parameters[other].values()), min_size=1, max_size=2)
            )
            for other in sorted(others)
        }
        name = f"p{at}"
        kinds = (
            PowerOfTwo(name, 1, 4, when=when),
            Choice(name, (1, True, None, "a"), when=when),
            Boolean(name, when=when),
        )
        parameters.append(draw(st.sampled_from(kinds)))
    return SearchSpace(parameters).bind(WORKLOAD, DEVICE)


@given(bound=chained(), data=st.data())
def test_any_part_of_a_space_is_spanned_whatever_the_order_of_names(bound, data):
    configs = list(bound.enumerate())
    kept = data.draw(st.lists(st.sampled_from(configs), min_size=1, unique_by=config_key))
    order = data.draw(st.permutations([item.name for item in bound.parameters]))
    for some in (configs, kept):
        shuffled = [{name: config[name] for name in order if name in config} for config in some]
        assume(any(shuffled))
        assert keys(spanned(shuffled)) == keys(some)


def test_a_condition_may_name_a_conditional_parameter():
    workload = Workload.of(rows=8192, cols=4096, dtype="bfloat16")
    bound = load("layer_norm").space(workload).bind(workload, offline("cuda:90"))
    configs = list(bound.enumerate())
    assert {p.name: dict(p.when) for p in parameters_of(configs) if p.when} == {
        "rows_per_step": {"passes": (1,)},
        "steps": {"passes": (1,)},
        "stages": {"steps": (2, 4, 8)},
        "BLOCK": {"passes": (2,)},
        "block_stages": {"passes": (2,)},
    }
    assert keys(spanned(configs)) == keys(configs)
    by_name = [dict(sorted(config.items())) for config in configs]
    assert keys(spanned(by_name)) == keys(configs)


def test_what_no_condition_can_say_is_refused_by_name():
    either = [
        {"a": a, "b": b, **({"d": 1} if a or b else {})}
        for a in (False, True)
        for b in (False, True)
    ]
    with pytest.raises(TunerError, match="parameter d is in some configs only") as raised:
        parameters_of(either)
    assert "t4" in raised.value.hint

"""The keywords of `tune` and of sessions."""

from __future__ import annotations

import inspect
import pydoc

import pydantic
import pytest

import tuner

CALL = [
    "budget",
    "strategy",
    "seed",
    "fresh",
    "ranges",
    "numerics",
    "target",
    "settings",
    "on_progress",
    "progress",
]
SESSION = ["target", "settings", "on_progress", "progress", "pool", "database", "trace"]


def keywords(function) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function).parameters
    return {name: each for name, each in found.items() if each.kind is each.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("function", "own", "names"),
    [
        (tuner.tune, ["kernel", "workload"], [*CALL, "pool", "database", "trace"]),
        (tuner.Session.tune, ["self", "kernel", "workload"], CALL),
        (tuner.session, [], SESSION),
        (tuner.Session, [], SESSION),
    ],
)
def test_the_signature_lists_all_parameters(function, own, names):
    assert list(inspect.signature(function).parameters) == [*own, *names]


def test_the_signature_has_types_and_defaults():
    found = keywords(tuner.tune)
    defaults = {name: each.default for name, each in found.items() if each.default is not None}
    assert defaults == {
        "budget": 100, "strategy": "bayes", "seed": 0, "fresh": False, "numerics": "any",
        "pool": "local",
    }  # fmt: skip
    for each in found.values():
        pydantic.TypeAdapter(each.annotation).validate_python(each.default, strict=True)


def test_help_lists_and_explains_the_keywords():
    text = pydoc.plain(pydoc.render_doc(tuner.tune))
    assert "seed: int = 0" in text
    for name in keywords(tuner.tune):
        assert f"{name}: " in tuner.tune.__doc__.replace("\n    ", " ")


@pytest.mark.parametrize("name", ["seeed", "widen"])
def test_an_unknown_keyword_is_refused_as_python_does(name):
    with pytest.raises(TypeError, match=rf"tune\(\) got an unexpected keyword argument '{name}'"):
        tuner.tune("softmax", {"rows": 1}, **{name: 3})
    with pytest.raises(TypeError, match=r"session\(\) got an unexpected keyword argument 'seed'"):
        tuner.session(seed=3)

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
        "budget": 100, "strategy": "bayes", "seed": 0, "fresh": False, "pool": "local"
    }  # fmt: skip
    for each in found.values():
        pydantic.TypeAdapter(each.annotation).validate_python(each.default, strict=True)


def test_help_lists_and_explains_the_keywords():
    text = pydoc.plain(pydoc.render_doc(tuner.tune))
    assert "seed: int = 0" in text
    for name in keywords(tuner.tune):
        assert f"{name}: " in tuner.tune.__doc__.replace("\n    ", " ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("widen", True),
        ("space", {"BLOCK": [64]}),
        ("reference", print),
        ("tolerance", 0.1),
        ("widen", False),
    ],
)
def test_former_keywords_name_the_remedy(name, value):
    with pytest.raises(tuner.TunerError, match=f"^{name}= of captured calls") as refused:
        tuner.tune("softmax", {"rows": 1}, **{name: value})
    assert f'calls["k"].declare({name}=' in refused.value.hint
    with tuner.session() as session, pytest.raises(tuner.TunerError, match=f"^{name}= of captured"):
        session.tune("softmax", {"rows": 1}, **{name: value})


def test_a_misspelt_keyword_is_refused_as_python_does():
    with pytest.raises(TypeError, match=r"tune\(\): got an unexpected keyword argument 'seeed'"):
        tuner.tune("softmax", {"rows": 1}, seeed=3)
    with pytest.raises(TypeError, match=r"session\(\): got an unexpected keyword argument 'seed'"):
        tuner.session(seed=3)

"""The part of plotly.js that the page carries; `scripts/build_plotly.sh` makes it."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def script() -> str:
    """The bundle's source text."""
    return (files("reports") / "assets" / "plotly.min.js").read_text(encoding="utf-8")


@cache
def version_and_traces() -> tuple[str, frozenset[str]]:
    """The version of plotly.js, and the types of traces that the bundle draws, from its header."""
    found = re.search(r"^\* plotly\.js \(([a-z ]+)\) v([0-9.]+)$", script()[:400], re.MULTILINE)
    assert found is not None, "the bundle of plotly.js has no header"
    return found[2], frozenset(found[1].split())

"""The suggestion for a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

#: Words that people write for names that do not resemble them.
_MEANT = {"gpu": "cuda", "nvidia": "cuda", "amd": "hip", "rocm": "hip", "processor": "cpu"}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'BLOCK'?` with the known name that is meant or most similar, if any."""
    listed = list(known)
    meant = _MEANT.get(name.casefold())
    near = [meant] if meant in listed else get_close_matches(name, listed, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""

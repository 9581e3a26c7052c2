"""`tuner.capture()`: record the Triton kernels that some code launches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from search_spaces.errors import TunerError
from tuner.capturing import hooks
from tuner.capturing.contents import Contents
from tuner.capturing.recorder import Recorder
from tuner.capturing.table import Calls

_CONTENTS = ("integers", "keep")


@contextmanager
def capture(contents: str = "integers") -> Iterator[Calls]:
    """Record every launch of a Triton kernel inside a `with` block.

        with tuner.capture() as calls:
            y = rms_norm(x, w)
        calls                                        # a table
        tuner.tune(calls["_rms_norm_forward_kernel"])

    One record is made per distinct specialised launch: values of scalars, shapes, strides, dtypes,
    alignment and aliasing of tensors, and the grid. contents: `integers` keeps the values of
    integer tensors up to 1 MiB each, `keep` those of all tensors. Launches have the results that
    they have without it. Blocks may be nested, and see the launches of all threads.
    """
    if contents not in _CONTENTS:
        raise TunerError(f"contents is {contents!r}", f"use {' or '.join(_CONTENTS)}")
    recorder = Recorder(Contents(all=contents == "keep"))
    hooks.begin(recorder)
    try:
        yield Calls(lambda: recorder.calls(), recorder.contents.kept, recorder.dropped)
    finally:
        hooks.end(recorder)


def load_calls(path: str | Path) -> Calls:
    """The calls that `tuner capture -o FILE` or `calls.save(FILE)` wrote."""
    from tuner.capturing.files import load

    calls, contents = load(Path(path))
    return Calls(lambda: calls, contents, {})

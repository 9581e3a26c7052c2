"""What a capture found: a table of calls, and the calls of one kernel."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from search_spaces.errors import TunerError
from search_spaces.near_names import did_you_mean
from tuner.capturing import hooks
from tuner.capturing.arguments import views_in
from tuner.capturing.call_records import Call
from tuner.capturing.contents import Contents
from tuner.capturing.recorder import Recorder

if TYPE_CHECKING:
    from search_spaces.records import Value
    from search_spaces.size_range import Range
    from tuner.capturing.call_kernel import CallKernel

_COLUMNS = ("kernel", "grid", "dtypes", "shapes", "configs", "launches", "GPU time", "free", "note")
#: The most tensors of a call that a row shows.
_MOST_SHOWN = 4


class CapturedKernel:
    """One or more calls of one kernel; `tuner.tune` takes it in the place of a kernel.

    With one call `tuner.tune` gives one result, with several a list in the order of the calls.
    `declare` makes a kernel of them with a wider space or a reference of its own.
    """

    def __init__(self, calls: Sequence[Call], contents: Mapping[str, bytes]) -> None:
        self.calls = tuple(calls)
        self.contents = contents

    @property
    def name(self) -> str:
        """The name of the `@triton.jit` function."""
        return self.calls[0].kernel

    @property
    def place(self) -> str:
        """Where the launched object is: `module:object` or `file.py:object`."""
        return self.calls[0].place

    def declare(
        self,
        *,
        widen: bool = False,
        space: Mapping[str, Sequence[Value]] | None = None,
        same_grid: Sequence[str] = (),
        reference: Callable[..., Any] | None = None,
        tolerance: float | None = None,
        free: Sequence[str] = (),
        sizes: Sequence[str] = (),
        ranges: Mapping[str, Range | tuple[int, int]] | None = None,
        folder: str | Path | None = None,
    ) -> CallKernel:
        """Make a kernel of the calls; its workloads are the calls, and `tuner.tune` takes it.

        widen: whether to open the space to further compiler options and sizes. space: parameters
        with further values. same_grid: of these, the constexprs that do not change the grid, where
        the call has a tuple as its grid. reference: computes the outputs from the inputs by name,
        in float64; by default the library's own config is the reference. tolerance: the largest
        relative error. free: arguments whose values do not change the work, though the analysis
        says so. sizes: arguments that count, though the analysis calls them free. ranges: the sizes
        of one integer argument for which to tune, from its least to its largest.
        folder: for the file by which workers import the kernel; by default a temporary one, which
        is removed when the process ends.

        Raises `KernelError` in one line for a call that cannot be tuned.
        """
        from tuner.capturing.declared import declare
        from tuner.capturing.widening import Opened

        opened = Opened(widen, dict(space or {}), tuple(same_grid))
        return declare(
            self.calls,
            self.contents,
            opened,
            reference,
            tolerance,
            None if folder is None else Path(folder),
            free,
            sizes,
            ranges,
        )

    def __len__(self) -> int:
        return len(self.calls)

    def __getitem__(self, at: int) -> CapturedKernel:
        return CapturedKernel([self.calls[at]], self.contents)

    def __iter__(self) -> Iterator[CapturedKernel]:
        return (CapturedKernel([call], self.contents) for call in self.calls)

    def __repr__(self) -> str:
        return as_text(_sorted_rows(self.calls), "no calls")

    def _repr_html_(self) -> str:
        return as_html(_sorted_rows(self.calls))


class Calls:
    """All calls of a capture, in the order of their first launches; its `repr` is a table.

    Inside the `with` block it holds the calls made so far.
    """

    def __init__(
        self,
        read: Callable[[], Iterable[Call]],
        contents: Mapping[str, bytes],
        dropped: Mapping[str, int],
    ) -> None:
        self._read, self._contents = read, contents
        #: Launches that were counted and not recorded, by kernel, since it had too many kinds.
        self.dropped = dropped

    @property
    def records(self) -> tuple[Call, ...]:
        """The records of all calls."""
        return tuple(self._read())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the kernels."""
        return tuple(dict.fromkeys(call.kernel for call in self.records))

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[CapturedKernel]:
        return (CapturedKernel([call], self._contents) for call in self.records)

    @overload
    def __getitem__(self, name: str) -> CapturedKernel: ...
    @overload
    def __getitem__(self, name: int) -> CapturedKernel: ...
    def __getitem__(self, name: str | int) -> CapturedKernel:
        """All calls of the kernel of that name or place, or one call by its row.

        Raises `TunerError` for an unknown name, and for a name that two kernels have.
        """
        records = self.records
        if isinstance(name, int):
            if not -len(records) <= name < len(records):
                raise TunerError(
                    f"there is no call {name}", f"the rows are 0 to {len(records) - 1}"
                )
            return CapturedKernel([records[name]], self._contents)
        found = [call for call in records if name in (call.kernel, call.place)]
        if not found:
            known = dict.fromkeys(call.kernel for call in records)
            guess = did_you_mean(name, known)
            raise TunerError(
                f"no captured kernel is named {name!r}{guess}",
                f"the kernels are {', '.join(known)}" if known else "no launch was captured",
            )
        places = list(dict.fromkeys(call.place or call.kernel for call in found))
        if len(places) > 1:
            raise TunerError(
                f"{len(places)} captured kernels are named {name!r}",
                f"name one by its place: {', '.join(places)}",
            )
        return CapturedKernel(found, self._contents)

    def save(self, path: str | Path) -> None:
        """Write the calls to a JSON file, for `tuner run --calls` and `tuner.load_calls`.

        Each call runs a few times more, on copies of its tensors, to find what it writes.
        """
        from tuner.capturing.declared import probe_calls
        from tuner.capturing.files import save

        records = probe_calls(self.records, self._contents)
        save(Path(path), records, self._contents)

    def __repr__(self) -> str:
        lines = [as_text(_sorted_rows(self.records), "no launch of a Triton kernel was captured")]
        for name, count in self.dropped.items():
            lines.append(f"{name}: {count} launches with further arguments are not recorded")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return as_html(_sorted_rows(self.records))


def _sorted_rows(calls: Sequence[Call]) -> list[dict[str, str]]:
    """Rows with the free arguments of kernels that this process has imported."""
    from tuner.capturing.declared import sort_loaded

    return rows_of(sort_loaded(calls))


def rows_of(calls: Sequence[Call]) -> list[dict[str, str]]:
    """Calls as rows of text."""
    total = sum(call.gpu_us or 0.0 for call in calls)
    return [_row(call, total) for call in calls]


def _row(call: Call, total_us: float) -> dict[str, str]:
    shapes, dtypes = [], []
    for encoded in call.arguments.values():
        for at in views_in(encoded):
            view = call.views[at]
            shapes.append("x".join(map(str, view.shape)) or "scalar")
            dtypes.append(view.dtype)
    share = "" if call.gpu_us is None or not total_us else f"{call.gpu_us / total_us:.1%}"
    notes = [f"cannot be tuned: {call.problem}"] if call.problem else []
    if call.grid.sizes and not call.grid.callable:
        notes.append("tuple grid")
    return {
        "kernel": call.kernel,
        "grid": "x".join(map(str, call.grid.sizes)),
        "dtypes": ", ".join(dict.fromkeys(dtypes)),
        "shapes": ", ".join(shapes[:_MOST_SHOWN]) + (", ..." if len(shapes) > _MOST_SHOWN else ""),
        "configs": f"{call.configs}" if call.configs else "",
        "launches": f"{call.count}",
        "GPU time": share or "not measured",
        "free": ", ".join(call.free or ()),
        "note": "; ".join(notes),
    }


def as_text(rows: Sequence[Mapping[str, str]], empty: str) -> str:
    """Rows as aligned columns; a column without an entry is left out."""
    if not rows:
        return empty
    columns = [name for name in _COLUMNS if any(row[name] for row in rows)]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
    lines = [{name: name for name in columns}, *rows]
    return "\n".join(
        "  ".join(line[name].ljust(widths[name]) for name in columns).rstrip() for line in lines
    )


def as_html(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows as an HTML table for notebooks; names of kernels are hostile text."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in _COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(row[name])}</td>" for name in _COLUMNS) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


# -- `tuner.capture()`: record the Triton kernels that some code launches --------------------------
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

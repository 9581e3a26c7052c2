"""Whether the contents of a call can be those of another size: kept integers that may be indices.

At another size a tensor of kept contents repeats them, or has the first of them. So its integers
are right indices there if they are below the least size of the range. They also are if they index
something that stays: calls of which one has at least four times the size of another show it, if the
largest integer is not twice as large there, and is below a number of the call that stays. All else
is refused, such as offsets and tables of rows: they are those of one size alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from search_spaces.errors import KernelError
from search_spaces.size_range import Range
from tuner.capturing.call_numbers import list_numbers, size_of
from tuner.capturing.call_records import Buffer, Call

#: The ratio of sizes that shows whether integers follow, and of those that do not follow them.
_APART, _ALIKE = 4, 2
_WIDE = frozenset({"int16", "int32", "int64", "uint16", "uint32", "uint64"})


def check_contents(calls: Sequence[Call], name: str, sizes: Range) -> None:
    """Raise `KernelError` in one line for integers that may be wrong indices at other sizes.

    Those of 8 bits and flags are taken for data.
    """
    for at, buffer in _list_read(calls[0]):
        if not _WIDE & {view.dtype for view in calls[0].views if view.buffer == at}:
            continue
        alike = [call for call in calls if len(call.buffers) == len(calls[0].buffers)]
        values = [call.buffers[at].values for call in alike if call.buffers[at].bytes]
        highest = max((-1.0 if v is None else v.high for v in values), default=0.0)
        if None not in values and (highest < sizes.low or _stay(alike, at, name)):
            continue
        held = "what it holds is unknown" if None in values else f"it holds up to {highest:.0f}"
        raise KernelError(
            f"captured kernel {calls[0].kernel}: {buffer.name} has integers that may be "
            f"indices ({held}), so its contents at {name}={sizes.low} are not known",
            "give the calls as they are, without a range: a table of calls of several sizes serves "
            "those between them",
        )


def _stay(calls: Sequence[Call], at: int, name: str) -> bool:
    """Whether the integers of a buffer index something that stays."""
    pairs = ((size_of(call, name), call.buffers[at].values) for call in calls)
    highest = {size: values.high for size, values in pairs if values is not None}
    least, largest = min(highest, default=0), max(highest, default=0)
    if largest < max(1, _APART * least) or highest[largest] >= _ALIKE * highest[least]:
        return False
    numbers = [list_numbers(call) for call in calls]
    stay = [w for place, w in numbers[0].items() if all(each.get(place) == w for each in numbers)]
    return max(highest.values()) < max(stay, default=0)


def _list_read(call: Call) -> Iterator[tuple[int, Buffer]]:
    """The buffers whose contents matter."""
    overwritten = {each.buffer for each in call.written or () if not each.updated}
    return (pair for pair in enumerate(call.buffers) if pair[0] not in overwritten)

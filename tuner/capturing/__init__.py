"""Capture launches of Triton kernels, and make kernels of them that can be tuned.

`hooks` sees launches, `recorder` makes records of them (`records`, `arguments`, `snapshot`,
`grids`), `table` shows them, `files` stores them. `probe` finds what a call writes, `kernel` makes
the kernel of a call, and `declared` gives it a file by which workers find it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.base.import_names import lazy_names

if TYPE_CHECKING:
    from tuner.capturing.table import Calls, CapturedKernel, capture, load_calls

__all__ = ["Calls", "CapturedKernel", "capture", "load_calls"]

__getattr__ = lazy_names(
    __name__,
    {
        "tuner.capturing.table": ("Calls", "CapturedKernel", "capture", "load_calls"),
    },
)

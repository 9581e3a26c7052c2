"""What a table says of its kernel, for `tuner.apply`."""

from __future__ import annotations

from search_spaces.kernel import Kernel
from search_spaces.records import Value


def kernel_facts(kernel: Kernel | None) -> dict[str, Value]:
    """`place`, where a library has the kernel as `module:object`, and `free`, the arguments that no
    key has since their values do not change the work; each only where there is one."""
    found = {
        "place": getattr(kernel, "place", ""),
        "free": ",".join(getattr(kernel, "free", ())),
    }
    return {name: text for name, text in found.items() if text}

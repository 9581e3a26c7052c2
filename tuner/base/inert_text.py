"""Text of unknown origin as one line that a terminal or log file can show safely."""

from __future__ import annotations

import re

#: C0 and C1 controls, DEL, line separators, the characters that reorder text on screen, and
#: surrogates, which no stream can write, without those that stand for bytes of names of files.
_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069"
    "\ud800-\udc7f\udd00-\udfff]"
)


def inert(text: object) -> str:
    """The text with escapes in place of line breaks and of characters a terminal interprets."""
    return _CONTROLS.sub(lambda found: ascii(found.group())[1:-1], str(text))
